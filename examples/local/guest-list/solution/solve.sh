#!/bin/bash
set -euo pipefail
python3 - <<'PYTHON'
import csv

guests = {}
with open("/app/guests.csv", newline="") as source:
    for row in csv.DictReader(source):
        guests.setdefault(row["email"].strip().lower(), row["name"].strip())
with open("/app/guests_clean.csv", "w", newline="") as target:
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(["name", "email"])
    writer.writerows([name, email] for email, name in sorted(guests.items()))
PYTHON
