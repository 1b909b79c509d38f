#!/bin/bash
# Runs in a sandbox of its own; /evidence is what the collect hook wrote in the till.
expected='hazelnut 3
lemon 11
pistachio 10
stracciatella 11
vanilla 25'
found=$(paste -d ' ' - - < /evidence/tally | sort)
left=$(cat /evidence/left)
echo "the till says:"
echo "$found"
echo "lists of sold scoops: $left"
reward=0
if [ "$found" = "$expected" ]; then
    reward=0.5
    if [ "$left" = 0 ]; then reward=1; fi
fi
echo "$reward" > /logs/verifier/reward.txt
