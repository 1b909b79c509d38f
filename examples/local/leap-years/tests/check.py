"""Prints 1 when every due date is right, else 0; says on stderr which one is not."""

import datetime
import sys

sys.path.insert(0, "/app")
sys.dont_write_bytecode = True

from calendar_math import due_date

reward = 1
for year in (1900, 1999, 2000, 2023, 2024, 2100):
    for month in (1, 2, 12):
        start = datetime.date(year, month, 15)
        expected = start + datetime.timedelta(days=28)
        found = due_date(year, month, 15)
        if found != (expected.year, expected.month, expected.day):
            print(f"{start}: due {expected}, found {found}", file=sys.stderr)
            reward = 0
print(reward)
