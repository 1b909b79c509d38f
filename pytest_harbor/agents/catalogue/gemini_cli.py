"""Gemini CLI, of Google: JavaScript from the npm registry, with a Node of its own if need be."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from pytest_harbor.agents.api import AgentResult, McpServer
from pytest_harbor.agents.catalogue.events import (
    Event,
    as_arguments,
    as_count,
    as_object,
    as_text,
    as_time,
    at,
    json_lines,
    shown,
)
from pytest_harbor.agents.catalogue.installing import INSTALL_ENV, launcher, node_script
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.steps import StepDraft, Steps, result_of
from pytest_harbor.agents.command.declaration import (
    AgentDeclaration,
    CommandRun,
    PlacedFile,
)
from pytest_harbor.agents.trajectory import FinalMetrics
from pytest_harbor.errors import AGENT_TURN_LIMIT, AgentError

NAME: Final = "gemini-cli"

_DEFAULTS: Final = {
    "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
_LAUNCHER: Final = """
# Without a choice of its own it takes an endpoint of one's own for a gateway.
key=gemini-api-key
[ -n "${GEMINI_API_KEY:-}" ] || key=vertex-ai
export GEMINI_CLI_SYSTEM_DEFAULTS_PATH="${GEMINI_CLI_SYSTEM_DEFAULTS_PATH:-$AGENT_PREFIX/defaults-$key.json}"
node=$AGENT_PREFIX/node/bin/node
[ -x "$node" ] || node=node
exec "$node" "$AGENT_PREFIX/package/bundle/gemini.js" "$@"
"""


def _defaults(key: str) -> str:
    settings = {**_DEFAULTS, "security": {"auth": {"selectedType": key}}}
    return f"echo '{json.dumps(settings)}' >\"$AGENT_PREFIX/defaults-{key}.json\""


INSTALL: Final = node_script(
    """
need_node 20
version=$(npm_version @google/gemini-cli "$AGENT_VERSION")
npm_unpack @google/gemini-cli "$version" "$AGENT_PREFIX/package"
""",
    _defaults("gemini-api-key"),
    _defaults("vertex-ai"),
    launcher("gemini", _LAUNCHER),
)

# As JSON, or as Node prints an object.
_CODE: Final = re.compile(r"\bcode[\"']?:\s*(\d{3})\b")
_MESSAGE: Final = re.compile(r"""\bmessage["']?:\s*(["'])((?:(?!\1)[^\\]|\\.)*)\1""")
_TURN_LIMIT_EXIT: Final = 53
_AUTH_EXIT: Final = 41
_BROKEN: Final = re.compile("terminated|fetch failed|ECONN|socket hang up")


def write_mcp(servers: Sequence[McpServer]) -> Sequence[PlacedFile]:
    """The user's settings, where MCP servers stand."""
    table = {server.name: _mcp_entry(server) for server in servers}
    content = json.dumps({"mcpServers": table}, indent=2) + "\n"
    return [PlacedFile("~/.gemini/settings.json", content)]


def _mcp_entry(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        return {"command": server.command, "args": list(server.args), "trust": True}
    key = "httpUrl" if server.transport == "streamable-http" else "url"
    entry: dict[str, Any] = {key: server.url, "trust": True}
    if server.headers:
        entry["headers"] = dict(server.headers)
    return entry


def read(run: CommandRun) -> AgentResult:
    """The trajectory of a run with ``--output-format stream-json``."""
    steps = Steps()
    open_step: StepDraft | None = None
    model: str | None = None
    stats: Event = {}
    for event in json_lines(run.output):
        kind = event.get("type")
        if kind == "init":
            model = as_text(event.get("model")) or None
        elif kind == "message" and event.get("role") == "assistant":
            if open_step is None or open_step.calls:
                open_step = steps.agent(timestamp=as_time(event.get("timestamp")))
            open_step.text += as_text(event.get("content"))
        elif kind == "tool_use":
            # Results come after all the calls of one answer.
            if open_step is None or open_step.results:
                open_step = steps.agent(timestamp=as_time(event.get("timestamp")))
            open_step.call(
                as_text(event.get("tool_id")),
                as_text(event.get("tool_name")),
                as_arguments(event.get("parameters")),
            )
        elif kind == "tool_result":
            failed = event.get("status") == "error"
            output = shown(event.get("output"))
            output = output or as_text(at(event, "error", "message"))
            extra = {"is_error": True} if failed else None
            steps.result(as_text(event.get("tool_id")), output, extra=extra)
        elif kind == "result":
            stats = as_object(event.get("stats"))
    return result_of(run, NAME, steps, model=model, final=_final(stats))


def _final(stats: Event) -> FinalMetrics | None:
    given = as_count(stats.get("input_tokens"))
    if given is None:
        return None
    return FinalMetrics(
        total_prompt_tokens=given,
        total_completion_tokens=as_count(stats.get("output_tokens")),
        total_cached_tokens=as_count(stats.get("cached")),
    )


def failure(run: CommandRun) -> AgentError | None:
    """What a run that failed says on standard error, and by its exit code."""
    if run.exit_code in (0, None):
        return None
    if run.exit_code == _TURN_LIMIT_EXIT:
        return AgentError("it used up its turns", AGENT_TURN_LIMIT)
    text = f"{_result_error(run.output)}\n{run.errors[-20_000:]}"
    status = _status(run.exit_code, text)
    if status is None:
        return None
    said = [message for _, message in _MESSAGE.findall(text)]
    return request_failure(said[-1] if said else text[-600:], status)


def _status(exit_code: int, text: str) -> int | None:
    """The HTTP status: as it is told, or as the exit code, of which eight bits are left."""
    if codes := _CODE.findall(text):
        return int(codes[-1])
    if 400 <= exit_code + 256 < 512:
        return exit_code + 256
    if exit_code == _AUTH_EXIT:
        return 401
    return 503 if _BROKEN.search(text) else None


def _result_error(output: str) -> str:
    errors = [
        shown(event.get("error"))
        for event in json_lines(output)
        if event.get("type") == "result"
    ]
    return errors[-1] if errors else ""


_HEADLESS: Final = ("gemini", "--output-format=stream-json", "--yolo")

DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="Gemini CLI, of Google",
    version="0.61.0",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("gemini", "--version"),
    command=(*_HEADLESS, "--session-id={session}", "{model_flag}"),
    continue_command=(*_HEADLESS, "--resume={session}", "{model_flag}"),
    instruction="stdin",
    model_flag=("--model={model_name}",),
    required_env=(("GEMINI_API_KEY", "GOOGLE_API_KEY"),),
    env={
        "GOOGLE_GEMINI_BASE_URL": "${GOOGLE_GEMINI_BASE_URL:-}",
        "GOOGLE_CLOUD_PROJECT": "${GOOGLE_CLOUD_PROJECT:-}",
        "GOOGLE_CLOUD_LOCATION": "${GOOGLE_CLOUD_LOCATION:-}",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "NO_BROWSER": "true",
    },
    mcp_config=write_mcp,
    skills="~/.gemini/skills",
    trajectory=read,
    failure=failure,
)
