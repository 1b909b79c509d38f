"""``${VAR}`` templates (spec 3.11)."""

from __future__ import annotations

import pytest

from pytest_harbor.tasks.folder.templates import resolve

HOST = {"KEY": "s3cret", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("${KEY}", "s3cret"),
        ("${KEY:-other}", "s3cret"),
        ("${NONE:-a}b}", "a}b"),
        ("${NONE:-}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:-x}", ""),
        ("Bearer ${KEY}", "Bearer ${KEY}"),
        ("${KEY} ", "${KEY} "),
        ("$KEY", "$KEY"),
        ("${1KEY}", "${1KEY}"),
        ("${NONE:-two\nlines}", "two\nlines"),
        ("${KEY}\n", "${KEY}\n"),
    ],
)
def test_a_value_is_replaced_as_a_whole_or_not_at_all(text: str, value: str) -> None:
    assert resolve({"X": text}, "[verifier.env]", HOST).values == {"X": value}


def test_only_what_came_from_the_host_is_a_secret() -> None:
    env = {"A": "${KEY}", "B": "${NONE:-default}", "C": "literal"}

    assert resolve(env, "[agent]", HOST).secrets == ("s3cret",)


def test_missing_variables_are_listed_with_their_table() -> None:
    resolved = resolve({"A": "${X}", "B": "${Y}", "C": "${X}"}, "[solution].env", HOST)

    assert resolved.missing == (("X", "[solution].env"), ("Y", "[solution].env"))
    assert resolved.values == {}
