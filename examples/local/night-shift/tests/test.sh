#!/bin/bash
reward=0
evidence=/app/evidence/oven-3.log
if [ "$(head -n 1 /app/report.md)" = "# Night shift" ] &&
    grep -qx 'First error: 00:12 oven-3' /app/report.md &&
    grep -qx 'Errors: 3' /app/report.md &&
    diff <(grep ' oven-3 ' /app/machines.log) "$evidence" &&
    [ -s /logs/artifacts/summary.txt ]; then
    reward=1
fi
echo "$reward" > /logs/verifier/reward.txt
