#!/bin/bash
# Runs before the agent's turn, as the agent's user. The oven goes on baking after it ends,
# and is still hot in step 3.
set -euo pipefail
nohup python3 oven.py > /dev/null 2>&1 &
