#!/bin/bash
# /app/award.json was put here from the artifacts; a trick left running in the agent's
# sandbox, or a changed file elsewhere in it, is out of reach.
python3 - <<'PYTHON'
import json
import pathlib

expected = {"company": "Fresco GmbH", "price": 8400}
try:
    found = json.loads(pathlib.Path("/app/award.json").read_text())
except (OSError, ValueError) as error:
    print(f"award.json: {error}")
    found = {}
if not isinstance(found, dict):
    found = {}
right = {key: float(found.get(key) == value) for key, value in expected.items()}
rewards = {"reward": min(right.values()), **right}
pathlib.Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
PYTHON
