#!/bin/bash
set -euo pipefail
python3 - <<'PYTHON'
import json

recipe = json.load(open("/app/recipe.json"))
factor = 12 // recipe["serves"]
batter = {name: amount * factor for name, amount in recipe["ingredients"].items()}
json.dump(batter, open("/app/batter.json", "w"))
PYTHON
