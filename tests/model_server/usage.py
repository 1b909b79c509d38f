"""Tokens that each answer says it used: fixed, so that sums can be checked."""

from __future__ import annotations

from dataclasses import dataclass

INPUT_TOKENS = 100
"""Per answer, those from the cache included."""
CACHED_TOKENS = 40
OUTPUT_TOKENS = 10


@dataclass(frozen=True)
class Usage:
    input_tokens: int = INPUT_TOKENS
    cached_tokens: int = CACHED_TOKENS
    output_tokens: int = OUTPUT_TOKENS
