#!/bin/bash
grep -qx 'Monday: rain.' monday.txt && grep -qx 'Tuesday: sun.' tuesday.txt && reward=1 || reward=0
echo "$reward" >/logs/verifier/reward.txt
