"""Exit code 0 when the clean list is what the instruction asks for."""

import sys
from pathlib import Path

EXPECTED = """\
name,email
Ada Lovelace,ada@analytical.example
Alan Turing,alan@bletchley.example
Edsger Dijkstra,edsger@shortest.example
Grace Hopper,grace@cobol.example
Hedy Lamarr,hedy@spread.example
"""

clean = Path("/app/guests_clean.csv")
if not clean.is_file():
    sys.exit("guests_clean.csv is missing")
lines = clean.read_text().splitlines()
for number, expected in enumerate(EXPECTED.splitlines(), start=1):
    found = lines[number - 1] if number <= len(lines) else "(nothing)"
    if found != expected:
        sys.exit(f"line {number}: expected {expected!r}, found {found!r}")
if len(lines) > len(EXPECTED.splitlines()):
    sys.exit(f"{len(lines)} lines are too many")
print("the list is clean")
