from __future__ import annotations

from pathlib import Path

from grading import read_json, reward

cake, log = read_json("cake.json"), Path("oven.log")
golden = cake.get("state") == "golden"
# The oven's own book has the last word: a cake.json written by hand was never baked.
baked = golden and log.is_file() and '"state": "golden"' in log.read_text()
reward(reward=float(baked), baked=float(baked))
