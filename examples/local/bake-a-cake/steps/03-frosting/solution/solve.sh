#!/bin/bash
set -euo pipefail
text="* Happy birthday, Pytest! *"
frame=$(printf '*%.0s' $(seq ${#text}))
printf '%s\n' "$frame" "$text" "$frame" > card.txt
