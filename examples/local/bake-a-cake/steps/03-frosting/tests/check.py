from __future__ import annotations

from pathlib import Path

from grading import read_json, reward

TEXT = "* Happy birthday, Pytest! *"

card = Path("card.txt")
lines = card.read_text().splitlines() if card.is_file() else []
framed = lines == ["*" * len(TEXT), TEXT, "*" * len(TEXT)]
golden = read_json("cake.json").get("state") == "golden"
reward(reward=float(framed and golden), framed=float(framed))
