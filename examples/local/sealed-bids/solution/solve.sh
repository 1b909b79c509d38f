#!/bin/bash
set -euo pipefail
python3 - <<'PYTHON'
import json
import pathlib

bids = [json.loads(path.read_text()) for path in pathlib.Path("/app/bids").glob("*.json")]
winner, second = sorted((b for b in bids if b["deposit"]), key=lambda b: b["price"])[:2]
award = {"company": winner["company"], "price": second["price"]}
pathlib.Path("/app/award.json").write_text(json.dumps(award))
PYTHON
