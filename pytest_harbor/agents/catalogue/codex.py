"""Codex, of OpenAI: a native program from the npm registry."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from pytest_harbor.agents.api import AgentResult, McpServer
from pytest_harbor.agents.catalogue.events import (
    Event,
    as_arguments,
    as_count,
    as_object,
    as_text,
    at,
    joined_text,
    json_lines,
    shown,
)
from pytest_harbor.agents.catalogue.installing import INSTALL_ENV, launcher, npm_script
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.steps import StepDraft, Steps, result_of, since
from pytest_harbor.agents.command.declaration import (
    AgentDeclaration,
    CommandRun,
    PlacedFile,
    UnsupportedServer,
)
from pytest_harbor.agents.trajectory import FinalMetrics
from pytest_harbor.errors import AgentError

NAME: Final = "codex"

# An endpoint of one's own is a provider of its own: the built-in one would first try to
# talk to it by WebSocket. MCP servers are a layer of configuration of their own.
_LAUNCHER: Final = r"""
if [ -n "${OPENAI_BASE_URL:-}" ]; then
  set -- -c model_provider=harbor -c model_providers.harbor.name=OpenAI \
    -c "model_providers.harbor.base_url=$OPENAI_BASE_URL" \
    -c model_providers.harbor.env_key=CODEX_API_KEY \
    -c model_providers.harbor.wire_api=responses "$@"
fi
export CODEX_API_KEY="${CODEX_API_KEY:-${OPENAI_API_KEY:-}}"
exec "$AGENT_PREFIX/lib/bin/codex" -c check_for_update_on_startup=false -c analytics.enabled=false "$@"
"""

INSTALL: Final = npm_script(
    """
version=$(npm_version @openai/codex "$AGENT_VERSION")
npm_unpack @openai/codex "${version%-linux-*}-linux-$arch" "$AGENT_PREFIX/package"
mv "$AGENT_PREFIX"/package/vendor/*-linux-musl "$AGENT_PREFIX/lib"
rm -rf "$AGENT_PREFIX/package" "$AGENT_PREFIX/lib/codex-resources/voice"
chmod 755 "$AGENT_PREFIX/lib/bin/codex"
""",
    launcher("codex", _LAUNCHER),
)

_CALLS: Final = {
    "command_execution": "shell",
    "file_change": "apply_patch",
    "web_search": "web_search",
    "todo_list": "update_plan",
}
"""Items that are tool calls, and the tools that they are of."""

_STATUS: Final = re.compile(r"(?:unexpected|last) status:? (\d{3})")


def write_mcp(servers: Sequence[McpServer]) -> Sequence[PlacedFile]:
    """A profile, which Codex lays over its configuration."""
    lines: list[str] = []
    for server in servers:
        lines.append(f"[mcp_servers.{_toml(server.name)}]")
        if server.transport == "stdio":
            lines.append(f"command = {_toml(server.command or '')}")
            lines.append(f"args = {_toml(list(server.args))}")
        elif server.transport == "streamable-http":
            lines.append(f"url = {_toml(server.url or '')}")
            if server.headers:
                pairs = (f"{_toml(k)} = {_toml(v)}" for k, v in server.headers.items())
                lines.append(f"http_headers = {{ {', '.join(pairs)} }}")
        else:
            raise UnsupportedServer(
                "codex speaks no SSE, only stdio and streamable-http"
            )
        lines.append("")
    return [PlacedFile("~/.codex/harbor-mcp.config.toml", "\n".join(lines))]


def _toml(value: object) -> str:
    """JSON strings and arrays of strings in ASCII are TOML."""
    return json.dumps(value, ensure_ascii=True)


def session(run: CommandRun) -> str | None:
    """The name that Codex gave the session."""
    names = (as_text(event.get("thread_id")) for event in json_lines(run.output))
    return next((name for name in names if name), None)


def read(run: CommandRun) -> AgentResult:
    """The trajectory of a run with ``--json``.

    Items are what the model said, thought and did, one after another; where one answer of the
    model ends and the next begins is not told, so a step ends where it speaks again.
    """
    steps = Steps()
    usage: Event = {}
    for event in json_lines(run.output):
        item = as_object(event.get("item"))
        if event.get("type") == "item.completed":
            _item(steps, item)
        elif event.get("type") == "item.started" and _is_call(item):
            _call(steps, item)
        elif event.get("type") == "turn.completed":
            usage = as_object(event.get("usage"))
    return result_of(
        run, NAME, steps, session=session(run), final=_final(usage, run.earlier)
    )


def _is_call(item: Event) -> bool:
    return item.get("type") in _CALLS or item.get("type") == "mcp_tool_call"


def _item(steps: Steps, item: Event) -> None:
    text = as_text(item.get("text"))
    if item.get("type") == "agent_message":
        _speaking(steps).say(text)
    elif item.get("type") == "reasoning":
        _speaking(steps).think(text)
    elif _is_call(item):
        identity = as_text(item.get("id"))
        if not any(
            call.tool_call_id == identity
            for draft in steps.drafts
            for call in draft.calls
        ):
            _call(steps, item)
        _result(steps, identity, item)


def _speaking(steps: Steps) -> StepDraft:
    draft = steps.current
    return steps.agent() if draft.text or draft.calls else draft


def _call(steps: Steps, item: Event) -> None:
    identity = as_text(item.get("id"))
    kind = as_text(item.get("type"))
    if kind == "mcp_tool_call":
        name = f"{as_text(item.get('server'))}.{as_text(item.get('tool'))}"
        steps.current.call(identity, name, as_arguments(item.get("arguments")))
        return
    inputs = ("command", "changes", "query", "items")
    arguments = {name: item[name] for name in inputs if name in item}
    steps.current.call(identity, _CALLS[kind], arguments)


def _result(steps: Steps, identity: str, item: Event) -> None:
    content = shown(item.get("aggregated_output"))
    if item.get("type") == "mcp_tool_call":
        said = item.get("result")
        content = joined_text(at(said, "content")) or shown(said)
        content = content or shown(item.get("error"))
    extra = {
        name: item[name]
        for name in ("exit_code", "status")
        if isinstance(item.get(name), (int, str))
    }
    steps.result(identity, content, extra=extra or None)


def _final(usage: Event, earlier: Sequence[Event]) -> FinalMetrics | None:
    """Codex adds up over the whole session: what earlier turns used is taken off."""
    given = as_count(usage.get("input_tokens"))
    output = as_count(usage.get("output_tokens"))
    if given is None and output is None:
        return None
    final = FinalMetrics(
        total_prompt_tokens=given,
        total_completion_tokens=output,
        total_cached_tokens=as_count(usage.get("cached_input_tokens")),
    )
    return since(final, earlier) or final


def failure(run: CommandRun) -> AgentError | None:
    """Why the turn failed, as the ``turn.failed`` event says."""
    for event in json_lines(run.output):
        if event.get("type") == "turn.failed":
            message = as_text(at(event, "error", "message"))
            return request_failure(_plain(message), _status(message))
    return None


def _status(message: str) -> int | None:
    if found := _STATUS.search(message):
        return int(found[1])
    # Its own words for a 5xx, and for a connection that broke.
    if re.search("high demand|stream disconnected|error sending request", message):
        return 503
    if message.lstrip().startswith("{"):  # the endpoint's body of a 400
        return 400
    return None


def _plain(message: str) -> str:
    told = [as_text(at(found, "error", "message")) for found in json_lines(message)]
    return next((text for text in told if text), message)


_HEADLESS: Final = (
    "--json",
    "--skip-git-repo-check",
    "--dangerously-bypass-approvals-and-sandbox",
    "{model_flag}",
    "-",
)

DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="Codex, of OpenAI",
    version="0.171.0",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("codex", "--version"),
    command=("codex", "{mcp_flag}", "exec", *_HEADLESS),
    continue_command=("codex", "{mcp_flag}", "exec", "resume", "{session}", *_HEADLESS),
    session=session,
    instruction="stdin",
    model_flag=("--model={model_name}",),
    required_env=(("CODEX_API_KEY", "OPENAI_API_KEY"),),
    env={"OPENAI_BASE_URL": "${OPENAI_BASE_URL:-}"},
    mcp_config=write_mcp,
    mcp_flag=("--profile=harbor-mcp",),
    skills="~/.codex/skills",
    trajectory=read,
    failure=failure,
)
