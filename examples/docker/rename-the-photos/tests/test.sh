#!/bin/bash
# Three rewards: the headline, the share of right names, and who made the folder.
cat > /tmp/expected <<'NAMES'
2026-07-14_lake-bled-2.jpg
2026-07-14_lake-bled-3.jpg
2026-07-14_lake-bled.jpg
2026-07-15_ljubljana.jpg
2026-07-17_piran.jpg
NAMES
ls album 2> /dev/null | LC_ALL=C sort > /tmp/found
right=$(grep -cxFf /tmp/expected /tmp/found)
wrong=$(grep -cvxFf /tmp/expected /tmp/found)
reward=0
[ "$right" = 5 ] && [ "$wrong" = 0 ] && reward=1
echo "{\"reward\": $reward, \"right\": $right, \"wrong\": $wrong}" > /logs/verifier/reward.json
