"""Draw the visitors of a week as bars."""

from __future__ import annotations

import csv
from pathlib import Path

SOURCE = Path("/tmp/file_artifacts/visitors.csv")
CHART = Path("/app/artifact/chart.svg")

with SOURCE.open() as file:
    rows = [(row["day"], int(row["visitors"])) for row in csv.DictReader(file)]
bars = "".join(
    f'<rect x="{40 * place}" y="{40 - count}" width="30" height="{count}">'
    f"<title>{day}: {count}</title></rect>"
    for place, (day, count) in enumerate(rows)
)
CHART.parent.mkdir(parents=True, exist_ok=True)
CHART.write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{bars}</svg>\n')
print(max(rows, key=lambda row: row[1])[0])
