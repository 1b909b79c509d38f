"""Reads TOML text, with a problem instead of an exception."""

from __future__ import annotations

from typing import Any

import tomli

from pytest_harbor.tasks.findings import Findings


def parse(text: bytes, file: str, found: Findings, rule: str) -> dict[str, Any] | None:
    """The parsed text, or ``None`` with a problem of ``rule``. A BOM is tolerated."""
    try:
        return tomli.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        found.problem(file, f"is not UTF-8 (byte {error.start})", rule)
    except tomli.TOMLDecodeError as error:
        found.problem(file, f"is not valid TOML: {error}", rule)
    except RecursionError:
        found.problem(file, "is nested too deeply", rule)
    return None
