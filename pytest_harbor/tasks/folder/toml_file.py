"""Reads a TOML file into a model, with messages that its author understands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic_core import ErrorDetails

from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.keys import key_name
from pytest_harbor.tasks.validation import (
    TOML_WORDS,
    KeyPath,
    Model,
    is_lack,
    message,
    read_model,
)

# Keys whose every mistake has a refusal of its own; any other is X01 (spec 19.6).
RULE_OF_KEY = {
    "multi_step_reward_strategy": "X17",
    "artifacts": "X19",
    "collect": "X20",
    "mcp_servers": "X22",
}

# A table lacks a key; X21 and X22 say so of the one that goes with another.
LACKS = ("missing", "X21", "X22")


def validate(
    raw: dict[str, Any],
    model: type[Model],
    file: str,
    found: Findings,
    path: KeyPath = (),
) -> Model:
    """The model of ``raw``. What is wrong goes to ``found``, and is then left out.

    So that further checks can go on and everything is told at once, a refused key
    is dropped and counts as unset. ``path`` is where ``raw`` lies in its file.
    """

    def report(detail: ErrorDetails, place: KeyPath, left: object) -> None:
        # These are about a whole table: one that should be there, or is incomplete.
        is_table = detail["type"] in ("dict_type", "model_type")
        is_table = is_table or is_lack(detail, LACKS)
        location = (*path, *place)
        name = key_name(location, left, is_table=is_table) if location else ""
        found.problem(
            f"{file}: {name}" if name else file,
            message(detail, TOML_WORDS),
            _rule(detail),
        )

    config, _ = read_model(raw, model, report, lacks=LACKS)
    return config or model()


def _rule(detail: ErrorDetails) -> str:
    kind = detail["type"]
    if kind.startswith("X"):
        return kind
    return next(
        (RULE_OF_KEY[part] for part in detail["loc"] if part in RULE_OF_KEY), "X01"
    )


def tables(value: object) -> Iterator[dict[str, Any]]:
    """The tables of an array of tables that may be something else."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))
