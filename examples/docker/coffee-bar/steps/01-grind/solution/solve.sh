#!/bin/bash
grep -v '^stone ' beans.txt | { sum=0; while read -r _ grams; do sum=$((sum + grams)); done; echo "$sum"; } > grounds.txt
