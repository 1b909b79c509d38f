#!/bin/bash
# The dearest box first, then whatever still fits.
python3 - <<'PYTHON'
import json

boxes, load, free = json.load(open("boxes.json")), [], 50
for name in sorted(boxes, key=lambda name: -boxes[name]["worth"]):
    if boxes[name]["kg"] <= free:
        load.append(name)
        free -= boxes[name]["kg"]
json.dump(load, open("load.json", "w"))
PYTHON
