"""Qwen Code: JavaScript from the npm registry, for any OpenAI-compatible endpoint."""

from __future__ import annotations

import re
from typing import Final

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.catalogue.events import Event, as_text, at, json_lines
from pytest_harbor.agents.catalogue.installing import INSTALL_ENV, launcher, node_script
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.stream_json import StreamReader
from pytest_harbor.agents.command.declaration import AgentDeclaration, CommandRun
from pytest_harbor.agents.command.mcp import json_writer
from pytest_harbor.errors import AGENT_TURN_LIMIT, AgentError

NAME: Final = "qwen-code"

_LAUNCHER: Final = """
node=$AGENT_PREFIX/node/bin/node
[ -x "$node" ] || node=node
export QWEN_CODE_SYSTEM_DEFAULTS_PATH="${QWEN_CODE_SYSTEM_DEFAULTS_PATH:-$AGENT_PREFIX/defaults.json}"
entry=$AGENT_PREFIX/package/cli-entry.js
[ -e "$entry" ] || entry=$AGENT_PREFIX/package/cli.js
exec "$node" "$entry" "$@"
"""

INSTALL: Final = node_script(
    """
need_node 22
version=$(npm_version @qwen-code/qwen-code "$AGENT_VERSION")
npm_unpack @qwen-code/qwen-code "$version" "$AGENT_PREFIX/package"
find "$AGENT_PREFIX/package/vendor" -type f -name rg -exec chmod 755 {} + 2>/dev/null || true
echo '{"general":{"enableAutoUpdate":false}}' >"$AGENT_PREFIX/defaults.json"
""",
    launcher("qwen", _LAUNCHER),
)

_STATUS: Final = re.compile(r"\b([45]\d\d)\b")


def _error_of(end: Event) -> str:
    return as_text(at(end, "error", "message")) or as_text(end.get("result"))


def read(run: CommandRun) -> AgentResult:
    """The trajectory of a run with ``--output-format stream-json``, as Claude Code's."""
    reader = StreamReader(cached_apart=False, error_of=_error_of)
    reader.read(json_lines(run.output))
    return reader.result(run, NAME)


def failure(run: CommandRun) -> AgentError | None:
    """What the ``result`` event says went wrong."""
    end = StreamReader(cached_apart=False).read(json_lines(run.output)).end
    if end.get("subtype") == "error_max_turns":
        return AgentError("it used up its turns", AGENT_TURN_LIMIT)
    if end.get("is_error") is not True:
        return None
    message = _error_of(end)
    found = _STATUS.search(message)
    if found is None and re.search("(?i)connection|fetch failed|timed? ?out", message):
        return request_failure(message, 503)
    return request_failure(message, int(found[1]) if found else None)


_HEADLESS: Final = (
    "qwen",
    "--auth-type=openai",
    "--output-format=stream-json",
    "--yolo",
)

DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="Qwen Code, for any OpenAI-compatible endpoint",
    version="0.24.4",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("qwen", "--version"),
    command=(*_HEADLESS, "--session-id={session}", "{model_flag}", "{mcp_flag}"),
    continue_command=(*_HEADLESS, "--resume={session}", "{model_flag}", "{mcp_flag}"),
    instruction="stdin",
    model_flag=("--model={model_name}",),
    required_env=(("OPENAI_API_KEY",),),
    env={
        "OPENAI_BASE_URL": "${OPENAI_BASE_URL:-}",
        "OPENAI_MODEL": "${OPENAI_MODEL:-}",
        "QWEN_CODE_SUPPRESS_YOLO_WARNING": "1",
        "QWEN_USAGE_STATISTICS_ENABLED": "false",
    },
    mcp_config=json_writer("~/.qwen/harbor-mcp.json"),
    mcp_flag=("--mcp-config={mcp_config}",),
    skills="~/.qwen/skills",
    trajectory=read,
    failure=failure,
)
