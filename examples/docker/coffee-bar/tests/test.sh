#!/bin/bash
# The same for every step; each brings a grade.sh of its own.

# reward 0.5 [key 1]...: writes the turn's reward.json.
reward() {
    local json="{\"reward\": $1"
    shift
    while [ $# -gt 0 ]; do
        json+=", \"$1\": $2"
        shift 2
    done
    echo "$json}" > /logs/verifier/reward.json
}

source /tests/grade.sh
