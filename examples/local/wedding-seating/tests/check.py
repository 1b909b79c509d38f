"""Writes three rewards: happiness (0 to 1), valid (0 or 1) and neighbours (the sum)."""

import json
from pathlib import Path

# The verifier's own copy: an agent may have improved the one in /app.
affinity = json.loads(Path("/tests/affinity.json").read_text())
names = sorted({name for pair in affinity for name in pair.split("+")})


def likes(one, other):
    return affinity.get(f"{one}+{other}", affinity.get(f"{other}+{one}"))


def favourites(name):
    """The most that one guest can get from two neighbours."""
    return sum(sorted((likes(name, n) for n in names if n != name), reverse=True)[:2])


try:
    seating = json.loads(Path("/app/seating.json").read_text())
    valid = sorted(seating) == names
except (OSError, ValueError, TypeError) as error:
    print(f"seating.json: {error}")
    valid = False

total = sum(likes(a, b) for a, b in zip(seating, seating[1:] + seating[:1])) if valid else 0
bound = sum(favourites(name) for name in names) / 2
rewards = {"happiness": total / bound, "valid": int(valid), "neighbours": total}
Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
