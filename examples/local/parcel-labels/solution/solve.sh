#!/bin/bash
set -euo pipefail
while IFS=$'\t' read -r number addressee; do
    printf '%s-%06d %s / %s\n' "$DEPOT_COUNTRY" "$number" "${addressee^^}" "$DEPOT_NAME"
done < parcels.txt > labels.txt
