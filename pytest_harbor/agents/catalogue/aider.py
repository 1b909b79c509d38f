"""aider: Python from PyPI, for models of many providers through litellm.

It edits files by itself and runs no commands. Its log is a chat in Markdown, without calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.catalogue.installing import (
    INSTALL_ENV,
    launcher,
    python_script,
)
from pytest_harbor.agents.catalogue.providers import PROVIDER_KEYS
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.steps import Steps, result_of
from pytest_harbor.agents.command.declaration import AgentDeclaration, CommandRun
from pytest_harbor.agents.trajectory import Metrics
from pytest_harbor.errors import AGENT_TOKEN_LIMIT, AgentError

NAME: Final = "aider"

# Outside a repository it would make one, and commit to it.
_LAUNCHER: Final = """
export OPENAI_API_BASE="${OPENAI_API_BASE:-${OPENAI_BASE_URL:-}}"
[ -n "$OPENAI_API_BASE" ] || unset OPENAI_API_BASE
git rev-parse --git-dir >/dev/null 2>&1 || set -- --no-git "$@"
exec "$AGENT_PREFIX/venv/bin/aider" "$@"
"""

INSTALL: Final = python_script(
    """
python_install "$(python_requirement aider-chat "$AGENT_VERSION")" 10 12
""",
    launcher("aider", _LAUNCHER),
)

_HISTORY: Final = "{home}/.aider/harbor.chat.md"
_STARTED: Final = "# aider chat started at "
_SAID: Final = "#### "
_TOKENS: Final = re.compile(
    r"Tokens: ([\d.,]+[kM]?) sent(?:, ([\d.,]+[kM]?) cache write)?"
    r"(?:, ([\d.,]+[kM]?) cache hit)?, ([\d.,]+[kM]?) received\."
    r"(?: Cost: \$([\d.]+) message)?"
)
_ERROR: Final = re.compile(r"litellm\.(\w+): (.*)")
_STATUS_OF_ERROR: Final = {
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "BadRequestError": 400,
    "RateLimitError": 429,
    "InternalServerError": 500,
    "ServiceUnavailableError": 503,
    "APIConnectionError": 503,
    "Timeout": 503,
}


def read(run: CommandRun) -> AgentResult:
    """The last chat of its history: what was said, and the tokens, which it rounds."""
    steps = Steps()
    lines = _last_chat(run)
    words: list[str] = []
    for line in [*lines, _SAID]:
        if line.startswith(_SAID) or _is_note(line):
            if said := "\n".join(words).strip():
                steps.agent(text=said)
            words = []
        else:
            words.append(line)
            continue
        if found := _TOKENS.search(line):
            steps.current.metrics = _metrics(found)
    return result_of(run, NAME, steps)


def _is_note(line: str) -> bool:
    """Aider's own words; two spaces at the end tell them from a quotation."""
    return line.startswith("> ") and line.endswith("  ")


def _last_chat(run: CommandRun) -> list[str]:
    """Its lines, from the instruction on; the instruction itself is known."""
    history = "\n".join(run.files.values()).rpartition(_STARTED)[2]
    lines = history.splitlines()[1:]
    first = next((n for n, line in enumerate(lines) if line.startswith(_SAID)), None)
    return [] if first is None else lines[first:]


def _metrics(found: re.Match[str]) -> Metrics:
    sent, written, hit, received, cost = found.groups()
    return Metrics(
        prompt_tokens=_count(sent),
        completion_tokens=_count(received),
        cached_tokens=_count(hit) if hit else None,
        cost_usd=float(cost) if cost and cost.count(".") <= 1 else None,
        extra={"cache_creation_input_tokens": _count(written)} if written else None,
    )


def _count(text: str) -> int:
    factor = {"k": 1_000, "M": 1_000_000}.get(text[-1], 1)
    try:
        return round(float(text.rstrip("kM").replace(",", "")) * factor)
    except ValueError:
        return 0


def failure(run: CommandRun) -> AgentError | None:
    """An error of a request that nothing followed; aider ends with exit code 0 all the same."""
    if "input exceeds the model's" in run.output or "exceeds the max" in run.output:
        return AgentError("the conversation grew too long", AGENT_TOKEN_LIMIT)
    last = None
    for line in _told(run):
        if found := _ERROR.search(line):
            last = found
        elif _TOKENS.search(line):
            last = None
    if last is None:
        return None
    return request_failure(last[2], _STATUS_OF_ERROR.get(last[1]))


def _told(run: CommandRun) -> Iterator[str]:
    yield from run.output.splitlines()
    yield from run.errors.splitlines()


_HEADLESS: Final = (
    "aider",
    "--yes-always",
    "--no-analytics",
    "--no-auto-commits",
    "--no-auto-lint",
    "--no-check-update",
    "--no-detect-urls",
    "--no-dirty-commits",
    "--no-fancy-input",
    "--no-gitignore",
    "--no-pretty",
    "--no-show-model-warnings",
    "--no-show-release-notes",
    "--no-stream",
    "--no-suggest-shell-commands",
    f"--chat-history-file={_HISTORY}",
    "--input-history-file={home}/.aider/harbor.input",
    "--message-file={instruction}",
    "--model={model}",
)

DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="aider, which edits files and runs no commands, for models of many providers",
    version="0.86.2",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("aider", "--version"),
    command=_HEADLESS,
    continue_command=(*_HEADLESS, "--restore-chat-history"),
    provider_env=PROVIDER_KEYS,
    env={
        "OPENAI_BASE_URL": "${OPENAI_BASE_URL:-}",
        "OPENAI_API_BASE": "${OPENAI_API_BASE:-}",
        "ANTHROPIC_BASE_URL": "${ANTHROPIC_BASE_URL:-}",
        "AIDER_EDIT_FORMAT": "${AIDER_EDIT_FORMAT:-}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    },
    trajectory=read,
    trajectory_files=(_HISTORY,),
    failure=failure,
)
