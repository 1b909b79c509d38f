"""``--harbor-sweep``: remove what dead runs left, and say what that was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pytest_harbor.collection.session import HarborSession
from pytest_harbor.errors import SandboxUnavailable
from pytest_harbor.sandboxes.api import Swept
from pytest_harbor.sandboxes.choose import DOCKER, LOCAL


def sweep(config: pytest.Config) -> int:
    """Sweep every kind of sandbox that is here; returns pytest's exit code."""
    session = HarborSession(config)
    code = pytest.ExitCode.OK
    try:
        for name in (LOCAL, DOCKER, *sorted(session.providers.registered)):
            try:
                found = session.bridge.run(session.providers.unswept(name).sweep)
            except SandboxUnavailable as error:
                lines = iter((f"not here: {error.message.splitlines()[0]}",))
            except Exception as error:  # noqa: BLE001 - the others are swept all the same
                code = pytest.ExitCode.TESTS_FAILED
                lines = iter((f"failed: {type(error).__name__}: {error}",))
            else:
                lines = describe(found)
            for line in lines:
                print(f"harbor: {name}: {line}")  # noqa: T201 - no reporter is here yet
    finally:
        session.close()
    return code


def describe(swept: Swept) -> Iterator[str]:
    """A line for each thing; equal ones in one line."""
    if not swept.removed:
        yield "nothing was left behind"
    for what, number in Counter(swept.removed).items():
        yield f"removed {what}" if number == 1 else f"removed {number} x {what}"
    for what in swept.kept:
        yield f"kept {what}"
