"""The process in which an author's own check runs (spec 10.1); standard library alone.

``python -m pytest_harbor.graphs.check_process FILE RESULT`` reads ``{mcp_url, run}`` from its
input, calls ``verify`` of FILE, and writes ``{rows}`` or ``{error}`` to RESULT.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FUNCTION = "verify"


def main() -> None:
    """Run one check."""
    file, result = Path(sys.argv[1]), Path(sys.argv[2])
    given = json.load(sys.stdin)
    try:
        rows = _call(_function(file), given)
        text = json.dumps({"rows": rows})
    except Exception as error:  # noqa: BLE001 - whatever the author's code raises
        traceback.print_exc()
        text = json.dumps({"error": _in_words(error, file)})
    result.write_text(text, encoding="utf-8")


def _function(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    function = getattr(module, FUNCTION, None)
    if function is None:
        raise AttributeError(f"{file.name} defines no function {FUNCTION}(mcp_url)")
    return function


def _call(function: Any, given: dict[str, Any]) -> Any:
    parameters = inspect.signature(function).parameters
    options = {}
    if "run" in parameters:
        run = given["run"]
        options["run"] = None if run is None else SimpleNamespace(**run)
    answer = function(given["mcp_url"], **options)
    if inspect.isawaitable(answer):
        answer = asyncio.run(_awaited(answer))
    return answer


async def _awaited(answer: Any) -> Any:
    return await answer


def _in_words(error: Exception, file: Path) -> str:
    """What was raised, and where in the author's file."""
    text = f"{type(error).__name__}: {error}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename == str(file):
            return f"{text} (line {frame.lineno}: {frame.line})"
    return text


if __name__ == "__main__":
    main()
