#!/bin/bash
# The task's tests/ come first, a step's on top of them: check.py is the step's, if it has one.
cd /app && python3 /tests/check.py
