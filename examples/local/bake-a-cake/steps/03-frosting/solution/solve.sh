#!/bin/bash
set -euo pipefail
python3 oven_client.py cool
text="* Happy birthday, Pytest! *"
frame=$(printf '*%.0s' $(seq ${#text}))
printf '%s\n' "$frame" "$text" "$frame" > card.txt
