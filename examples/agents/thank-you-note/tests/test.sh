#!/bin/bash
# Quotes, backticks and dollars are text, wherever they came through.
expected='Dear aunt Mai, the socks are `warm` & "soft", $5 well spent.'
[ "$(cat note.txt)" = "$expected" ] && reward=1 || reward=0
echo "$reward" >/logs/verifier/reward.txt
