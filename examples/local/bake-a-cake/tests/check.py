from __future__ import annotations

from pathlib import Path

from grading import read_json, reward

TEXT = "* Happy birthday, Pytest! *"

card, cake = Path("card.txt"), read_json("cake.json")
lines = card.read_text().splitlines() if card.is_file() else []
framed = lines == ["*" * len(TEXT), TEXT, "*" * len(TEXT)]
served = cake.get("state") == "golden" and cake.get("degrees") == 20
reward(reward=(framed + served) / 2, framed=float(framed), served=float(served))
