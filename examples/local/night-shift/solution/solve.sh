#!/bin/bash
set -euo pipefail
cd /app
first=$(grep -m 1 ' ERROR ' machines.log)
time=$(echo "$first" | cut -d ' ' -f 1)
machine=$(echo "$first" | cut -d ' ' -f 2)
errors=$(grep -c ' ERROR ' machines.log)

mkdir -p evidence
grep " $machine " machines.log > "evidence/$machine.log"
echo "not worth keeping" > evidence/scratch.tmp
printf '# Night shift\n\nFirst error: %s %s\nErrors: %s\n' "$time" "$machine" "$errors" > report.md
echo "$machine failed at $time, $errors errors in all" > /logs/artifacts/summary.txt
