#!/bin/bash
set -euo pipefail
sed -i 's/year % 4 == 0 and year % 400 != 0/year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)/' \
    /app/calendar_math.py
