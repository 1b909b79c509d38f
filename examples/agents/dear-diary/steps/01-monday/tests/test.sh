#!/bin/bash
grep -qx 'Monday: rain.' monday.txt && reward=1 || reward=0
rm -f monday.txt # the page is torn out: only who remembers can write it again
echo "$reward" >/logs/verifier/reward.txt
