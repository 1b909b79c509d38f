"""An author's own check, run in a process of its own, and the rows that it gives (spec 10.1)."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc

from pytest_harbor.errors import VERIFIER_ERROR, StepError
from pytest_harbor.events import Json
from pytest_harbor.graphs.python_environments import own_environment

_MODULE: Final = "pytest_harbor.graphs.check_process"
_PASSED_ON: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "SSL_CERT_FILE",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
)
"""What of the runner's environment a check sees: no key of anybody."""
_LOG_LINES: Final = 20


async def run_check(
    file: Path,
    mcp_url: str,
    run: Mapping[str, Any] | None,
    *,
    log: Path,
    timeout_seconds: float,
) -> list[dict[str, Json]]:
    """Call ``verify`` of a Python file; its rows, checked.

    ``run`` is what a parameter of that name gets: ``prompt``, ``reply``, ``trajectory``.
    What the check prints goes to ``log``. It has the runner's own packages.

    Raises:
        StepError: it raised, ended, took too long, or gave no rows; kind
            ``verifier_error``, since that is no score.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pytest-harbor-check-") as folder:
        result = Path(folder, "result.json")
        exit_code = await _run(
            file, result, {"mcp_url": mcp_url, "run": run}, log, timeout_seconds
        )
        try:
            answer = json.loads(result.read_text(encoding="utf-8"))  # noqa: ASYNC240
        except OSError:
            raise _failed(
                file, f"its process ended with exit code {exit_code}{_tail(log)}"
            ) from None
    if "error" in answer:
        raise _failed(file, answer["error"])
    problems = list(row_problems(answer["rows"]))
    if problems:
        raise _failed(file, "; ".join(problems))
    return [_row(row) for row in answer["rows"]]


def row_problems(rows: object) -> Iterator[str]:
    """Why what a check returned is not ``[{"id", "result", ...}, ...]``."""
    if not isinstance(rows, list):
        yield f"it returned {type(rows).__name__}, not a list of rows"
        return
    seen: set[str] = set()
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            yield f"row {number} is no object"
            continue
        name = row.get("id")
        if not isinstance(name, str) or not name:
            yield f"row {number} has no id"
        elif name in seen:
            yield f"two rows have the id '{name}'"
        else:
            seen.add(name)
        if not isinstance(row.get("result"), bool):
            yield f"row {number} has no result that is true or false"
        for key in ("score", "weight"):
            if key in row and not _is_number(row[key]):
                yield f"row {number}: {key} is no number"


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)


def _row(row: dict[str, Json]) -> dict[str, Json]:
    return {"score": float(bool(row["result"])), **row}


def _failed(file: Path, why: str) -> StepError:
    return StepError(f"check {file.name}: {why}", kind=VERIFIER_ERROR)


async def _run(
    file: Path,
    result: Path,
    given: Mapping[str, Any],
    log: Path,
    timeout_seconds: float,
) -> int | None:
    own = own_environment()
    env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env |= dict(own.variables)
    with log.open("ab") as output:
        process = await anyio.open_process(
            [sys.executable, "-m", _MODULE, str(file), str(result)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=result.parent,
            env=env,
            start_new_session=True,
        )
        try:
            with anyio.fail_after(timeout_seconds):
                assert process.stdin is not None
                with contextlib.suppress(OSError, anyio.BrokenResourceError):
                    await process.stdin.send(json.dumps(given).encode())
                await process.stdin.aclose()
                return await process.wait()
        except TimeoutError:
            raise _failed(file, f"took more than {timeout_seconds:g} s") from None
        finally:
            await _end(process)


async def _end(process: anyio.abc.Process) -> None:
    """Kill what is left of it, children too."""
    with anyio.CancelScope(shield=True):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        await process.aclose()


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()[-_LOG_LINES:]
    return "".join(f"\n{line}" for line in lines)
