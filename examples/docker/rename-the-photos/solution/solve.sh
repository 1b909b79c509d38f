#!/bin/bash
set -euo pipefail
declare -A seen
mkdir -p album
while IFS=$'\t' read -r _ date place; do
    place=${place,,}
    name=${date}_${place// /-}
    seen[$name]=$((${seen[$name]:-0} + 1))
    [ "${seen[$name]}" -gt 1 ] && name+=-${seen[$name]}
    touch "album/$name.jpg"
done < index.tsv
