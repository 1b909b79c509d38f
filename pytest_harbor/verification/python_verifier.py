"""Python verifiers: a ``verify`` function that grades by a generated ``test.sh`` (spec 6).

The function runs in the verifier's sandbox, never on the host. What is generated is
the small shell script and a runner that needs Python 3.8 and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_harbor.sandboxes.transfer_types import Upload

TESTS_FOLDER: Final = "/tests"
RUNNER_FOLDER: Final = f"{TESTS_FOLDER}/.harbor"

TEST_SH: Final = f"""\
#!/bin/bash
# Generated: grades by /tests/verifier.py.
if ! command -v python3 >/dev/null 2>&1; then
    echo "the Python verifier needs python3, and there is none in this sandbox" >&2
    exit 127
fi
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))'; then
    echo "the Python verifier needs Python 3.8 or newer: $(python3 --version 2>&1)" >&2
    exit 127
fi
exec python3 {RUNNER_FOLDER}/run.py
"""

# Plain Python 3.8: it runs in any image.
RUNNER: Final = '''\
"""Calls verify() of /tests/verifier.py and writes what it returns as a reward file."""

import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys

TESTS = "/tests"
LOGS = "/logs/verifier"


class ContractError(Exception):
    pass


def load_verify():
    sys.path[0] = TESTS
    path = os.path.join(TESTS, "verifier.py")
    spec = importlib.util.spec_from_file_location("verifier", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["verifier"] = module
    spec.loader.exec_module(module)
    verify = getattr(module, "verify", None)
    if not callable(verify):
        raise ContractError("verifier.py has no function verify")
    return verify


def arguments(verify, given):
    """Only what verify declares: by name, or by position where it is positional-only."""
    positional, named = [], {}
    for name, parameter in inspect.signature(verify).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        if name not in given:
            if required:
                raise ContractError(
                    "verify() asks for %r; it may ask for workspace, task_data, "
                    "response and state" % name
                )
            value = parameter.default
        elif given[name] is None:
            if required:
                raise ContractError(
                    "verify() requires %r, but the agent gave none" % name
                )
            value = parameter.default
        else:
            value = given[name]
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(value)
        elif value is not parameter.default:
            named[name] = value
    return positional, named


def number(value, what):
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise ContractError(
            "%s is %s, expected a number" % (what, type(value).__name__)
        )
    value = float(value)
    if not math.isfinite(value):
        raise ContractError("%s is %r, expected a finite number" % (what, value))
    return value


def reward_file(result):
    if not isinstance(result, dict):
        return "reward.txt", repr(number(result, "what verify() returned"))
    if "reward" not in result:
        raise ContractError("verify() returned a dict without the key 'reward'")
    for key in result:
        if not isinstance(key, str):
            raise ContractError("verify() returned the key %r, expected str" % (key,))
    numbers = {k: number(v, "verify()'s key %r" % k) for k, v in result.items()}
    return "reward.json", json.dumps(numbers)


def write(name, text):
    path = os.path.join(LOGS, name)
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text + "\\n")
    os.replace(path + ".new", path)


async def awaited(result):
    return await result


def main():
    with open(os.path.join(TESTS, ".harbor", "inputs.json"), encoding="utf-8") as file:
        given = json.load(file)
    try:
        verify = load_verify()
        positional, named = arguments(verify, given)
        result = verify(*positional, **named)
        if inspect.isawaitable(result):
            result = asyncio.run(awaited(result))
        name, text = reward_file(result)
    except ContractError as error:
        sys.exit("verifier.py: %s" % error)
    write(name, text)


main()
'''


def generated_uploads(
    verifier: Path,
    *,
    workspace: str,
    task_data: Mapping[str, object] | None,
    response: str | None,
) -> list[Upload]:
    """What goes into ``/tests`` so that ``bash /tests/test.sh`` runs ``verifier``.

    ``response`` is the agent's final message; the function gets it in the shape of an
    OpenAI response. A verifier that requires one where there is none writes no reward.
    """
    inputs = {
        "workspace": workspace,
        "task_data": dict(task_data or {}),
        "response": None if response is None else _as_response(response),
        "state": {"workspace": workspace},
    }
    return [
        Upload(verifier, f"{TESTS_FOLDER}/verifier.py"),
        Upload(TEST_SH.encode(), f"{TESTS_FOLDER}/test.sh", executable=frozenset({""})),
        Upload(RUNNER.encode(), f"{RUNNER_FOLDER}/run.py"),
        Upload(json.dumps(inputs).encode(), f"{RUNNER_FOLDER}/inputs.json"),
    ]


def _as_response(text: str) -> Mapping[str, object]:
    content = {"type": "output_text", "text": text, "annotations": []}
    message = {"type": "message", "role": "assistant", "content": [content]}
    return {"object": "response", "output_text": text, "output": [message]}
