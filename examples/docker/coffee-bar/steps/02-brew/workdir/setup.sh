#!/bin/bash
# Runs before the agent's turn, as the agent's user. The machine stays on after it ends, and
# is still there in step 3.
mkfifo orders answers
bash machine.sh < /dev/null > /dev/null 2>&1 &
