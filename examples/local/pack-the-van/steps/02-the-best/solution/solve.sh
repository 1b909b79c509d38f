#!/bin/bash
python3 - <<'PYTHON'
import itertools
import json

boxes = json.load(open("boxes.json"))
loads = (
    load
    for size in range(len(boxes) + 1)
    for load in itertools.combinations(boxes, size)
    if sum(boxes[name]["kg"] for name in load) <= 50
)
best = max(loads, key=lambda load: sum(boxes[name]["worth"] for name in load))
json.dump(best, open("load.json", "w"))
PYTHON
