#!/bin/bash
set -euo pipefail
grep ' /exhibition' access.log | cut -d ' ' -f 1 | sort -u | wc -l > visitors.txt
