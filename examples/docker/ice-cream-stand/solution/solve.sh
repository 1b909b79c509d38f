#!/bin/bash
set -euo pipefail
redis-cli --raw -h till lrange sold 0 -1 | sort | uniq -c | while read -r count flavour; do
    redis-cli -h till hset tally "$flavour" "$count"
done
redis-cli -h till del sold
