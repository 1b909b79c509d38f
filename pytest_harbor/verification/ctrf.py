"""CTRF reports (https://ctrf.io): the tests inside a verifier, by name.

Many verifiers run pytest with a CTRF plugin. The names of the tests that failed
belong into an episode's failure text; they never decide a reward.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CTRF_NAME: Final = "ctrf.json"
MAX_REPORT_BYTES: Final = 8 * 1024 * 1024
MAX_TESTS: Final = 1000
MAX_MESSAGE_CHARS: Final = 2000


@dataclass(frozen=True)
class InnerTest:
    """One test of a verifier's CTRF report."""

    name: str
    status: str
    message: str = ""


def read_ctrf(folder: Path) -> tuple[InnerTest, ...]:
    """The tests of ``ctrf.json`` in a verifier's log folder; none when it is unusable.

    A report is a courtesy of the verifier: a broken one is left alone in the logs.
    """
    path = folder / CTRF_NAME
    if path.is_symlink() or not path.is_file():
        return ()
    if path.stat().st_size > MAX_REPORT_BYTES:
        return ()
    try:
        report = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return ()
    return tuple(_tests(report))


def _tests(report: object) -> Iterator[InnerTest]:
    results = report.get("results") if isinstance(report, dict) else None
    tests = results.get("tests") if isinstance(results, dict) else None
    for test in tests[:MAX_TESTS] if isinstance(tests, list) else ():
        if not isinstance(test, dict) or not isinstance(test.get("name"), str):
            continue
        message = test.get("message") or test.get("trace") or ""
        yield InnerTest(
            name=test["name"],
            status=str(test.get("status", "other")),
            message=str(message)[:MAX_MESSAGE_CHARS],
        )
