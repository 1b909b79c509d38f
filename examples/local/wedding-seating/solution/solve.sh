#!/bin/bash
set -euo pipefail
python3 - <<'PYTHON'
import itertools
import json

affinity = json.load(open("/app/affinity.json"))
first, *others = sorted({name for pair in affinity for name in pair.split("+")})


def happiness(seating):
    pairs = zip(seating, seating[1:] + seating[:1])
    return sum(affinity.get(f"{a}+{b}", affinity.get(f"{b}+{a}")) for a, b in pairs)


best = max(([first, *order] for order in itertools.permutations(others)), key=happiness)
json.dump(best, open("/app/seating.json", "w"))
PYTHON
