"""The worth of the load, as a share of the best one's."""

from __future__ import annotations

import json
import os
from pathlib import Path

# A copy of the boxes: the agent may have changed the one in /app.
BOXES = {
    "piano": (46, 30),
    "books": (24, 22),
    "wardrobe": (19, 20),
    "kitchen": (17, 19),
    "paintings": (14, 16),
    "tools": (11, 9),
    "lamps": (5, 4),
}
BEST = 55


def worth() -> int:
    """What the load is worth; 0 for one that is not there or does not fit."""
    try:
        load = json.loads(Path("/app/load.json").read_text())
        boxes = [BOXES[name] for name in set(load)]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"load.json: {error!r}")
        return 0
    kg = sum(kg for kg, _ in boxes)
    print(f"load.json: {kg} kg")
    return sum(worth for _, worth in boxes) if kg <= 50 else 0


found = worth()
if os.environ.get("SHOW_BEST"):
    print(f"worth {found}, the best load is worth {BEST}")
Path("/logs/verifier/reward.txt").write_text(f"{found / BEST:.4f}\n")
