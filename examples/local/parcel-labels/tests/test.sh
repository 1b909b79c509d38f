#!/bin/bash
# Runs in the working directory, with the environment of the sandbox and of the verifier.
python3 - <<'PYTHON'
import os
import pathlib

rows = [line.split("\t") for line in pathlib.Path("parcels.txt").read_text().splitlines()]
country, depot = os.environ["DEPOT_COUNTRY"], os.environ["DEPOT_NAME"]
expected = [f"{country}-{int(n):06} {who.upper()} / {depot}" for n, who in rows]
labels = pathlib.Path("labels.txt")
found = labels.read_text().splitlines() if labels.is_file() else []
right = sum(a == b for a, b in zip(expected, found))
print(f"{right} of {len(expected)} labels are right")
complete = len(found) == len(expected) == int(os.environ["EXPECTED_LABELS"])
reward = right / len(expected) if complete else 0.0
pathlib.Path("/logs/verifier/reward.txt").write_text(f"{reward}\n")
PYTHON
