#!/bin/bash
found=$(tr -d '[:space:]' < /room/confession.txt)
echo "the detective says: '$found'"
if [ "$found" = Clement ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
