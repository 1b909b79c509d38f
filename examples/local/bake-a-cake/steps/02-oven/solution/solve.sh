#!/bin/bash
set -euo pipefail
python3 oven_client.py bake batter.json 45
python3 oven_client.py bake batter.json 15
