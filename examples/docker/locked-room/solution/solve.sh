#!/bin/bash
set -euo pipefail
# Agatha and Basil agree with each other; Clement contradicts both.
echo Clement > /room/confession.txt
