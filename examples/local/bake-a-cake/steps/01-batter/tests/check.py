from __future__ import annotations

from grading import read_json, reward

expected = {"flour_g": 360, "sugar_g": 270, "butter_g": 240, "eggs": 6}
reward(reward=float(read_json("batter.json") == expected))
