"""What servers and agents said, cut to size."""

from __future__ import annotations

import pytest

from pytest_harbor.protocols.excerpts import is_too_deep, shortened


@pytest.mark.parametrize(
    ("text", "limit", "result"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 4, "ab\n[... 2 characters left out ...]\nef"),
        ("abcdefg", 5, "ab\n[... 3 characters left out ...]\nfg"),
    ],
)
def test_shortened(text, limit, result):
    assert shortened(text, limit) == result


@pytest.mark.parametrize(
    ("value", "levels", "result"),
    [
        ("text", 0, False),
        ([], 0, False),
        ([1], 0, True),
        ({"a": [1, {"b": "c"}]}, 3, False),
        ({"a": [1, {"b": "c"}]}, 2, True),
        (({"a": ()},), 2, False),
    ],
)
def test_depth(value, levels, result):
    assert is_too_deep(value, levels) is result
