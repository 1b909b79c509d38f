#!/bin/bash
# One point for every date that Python's own calendar agrees with, none for a crash.
cd /app && python3 /tests/check.py > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
