#!/bin/bash
found=$(tr -d '[:space:]' < visitors.txt)
echo "expected 3, found '$found'"
if [ "$found" = 3 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
