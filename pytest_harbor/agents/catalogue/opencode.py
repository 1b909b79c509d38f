"""opencode: a native program from the npm registry, for models of many providers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from pytest_harbor.agents.api import AgentResult, McpServer
from pytest_harbor.agents.catalogue.events import (
    Event,
    as_arguments,
    as_cost,
    as_count,
    as_object,
    as_text,
    as_time,
    at,
    json_lines,
    shown,
)
from pytest_harbor.agents.catalogue.installing import INSTALL_ENV, launcher, npm_script
from pytest_harbor.agents.catalogue.providers import PROVIDER_KEYS
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.steps import Steps, result_of
from pytest_harbor.agents.command.declaration import (
    AgentDeclaration,
    CommandRun,
    PlacedFile,
)
from pytest_harbor.agents.trajectory import Metrics
from pytest_harbor.errors import AGENT_TOKEN_LIMIT, AgentError

NAME: Final = "opencode"

# Its config folder gets a package from the npm registry in the background, for plugins of the
# folder. There are none: a lock file that names the package stands for it.
_LAUNCHER: Final = """
config=${XDG_CONFIG_HOME:-$HOME/.config}/opencode
if [ ! -e "$config" ]; then
  mkdir -p "$config/node_modules" &&
    echo '{"packages":{"":{"dependencies":{"@opencode-ai/plugin":"*"}}}}' >"$config/package-lock.json"
fi
exec "$AGENT_PREFIX/lib/opencode" "$@"
"""

# Without AVX2, or on musl, it is another package.
INSTALL: Final = npm_script(
    """
suffix=
if [ "$arch" = x64 ] && ! grep -qw avx2 /proc/cpuinfo; then suffix=-baseline; fi
[ "$libc" = glibc ] || suffix=$suffix-musl
package=opencode-linux-$arch$suffix
version=$(npm_version "$package" "$AGENT_VERSION")
npm_unpack "$package" "$version" "$AGENT_PREFIX/package"
mkdir -p "$AGENT_PREFIX/lib"
mv "$AGENT_PREFIX/package/bin/opencode" "$AGENT_PREFIX/lib/opencode"
chmod 755 "$AGENT_PREFIX/lib/opencode"
rm -rf "$AGENT_PREFIX/package"
""",
    launcher("opencode", _LAUNCHER),
)

# A model that it does not know is registered, with nothing said of it.
_CONFIG: Final = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {"{provider}": {"models": {"{model_name}": {}}}},
}


def write_mcp(servers: Sequence[McpServer]) -> Sequence[PlacedFile]:
    """A configuration file with MCP servers, which is merged with the others."""
    table = {server.name: _mcp_entry(server) for server in servers}
    content = json.dumps({"mcp": table}, indent=2) + "\n"
    return [PlacedFile("~/.config/harbor-opencode-mcp.json", content)]


def _mcp_entry(server: McpServer) -> dict[str, Any]:
    if server.transport == "stdio":
        command = [server.command or "", *server.args]
        return {"type": "local", "command": command, "enabled": True}
    entry: dict[str, Any] = {"type": "remote", "url": server.url, "enabled": True}
    if server.headers:
        entry["headers"] = dict(server.headers)
    # A server that asks for a login is not to open a browser.
    return {**entry, "oauth": False}


def session(run: CommandRun) -> str | None:
    """The name that opencode gave the session."""
    names = (as_text(event.get("sessionID")) for event in json_lines(run.output))
    return next((name for name in names if name), None)


def read(run: CommandRun) -> AgentResult:
    """The trajectory of a run with ``--format json``.

    An answer's events lie between ``step_start`` and ``step_finish``; one that was cut short has
    no end.
    """
    steps = Steps()
    is_open = False
    for event in json_lines(run.output):
        kind = event.get("type")
        part = as_object(event.get("part"))
        if kind == "step_start" or (kind in _PARTS and not is_open):
            steps.agent(timestamp=as_time(event.get("timestamp")))
            is_open = True
        if kind == "text" and part.get("synthetic") is not True:
            steps.current.say(as_text(part.get("text")))
        elif kind == "reasoning":
            steps.current.think(as_text(part.get("text")))
        elif kind == "tool_use":
            _tool(steps, part)
        elif kind == "step_finish":
            steps.current.metrics = _metrics(part)
            is_open = False
    return result_of(run, NAME, steps, session=session(run))


_PARTS: Final = ("text", "reasoning", "tool_use")


def _tool(steps: Steps, part: Event) -> None:
    state = as_object(part.get("state"))
    call = as_text(part.get("callID")) or as_text(part.get("id"))
    arguments = as_arguments(state.get("input"))
    steps.current.call(call, as_text(part.get("tool")), arguments)
    if state.get("output") is not None or state.get("error") is not None:
        failed = state.get("output") is None
        content = shown(state.get("error" if failed else "output"))
        steps.result(call, content, extra={"is_error": True} if failed else None)


def _metrics(part: Event) -> Metrics | None:
    tokens = as_object(part.get("tokens"))
    given = as_count(tokens.get("input"))
    if given is None:
        return None
    cached = as_count(at(tokens, "cache", "read"))
    written = as_count(at(tokens, "cache", "write"))
    output = as_count(tokens.get("output"))
    reasoning = as_count(tokens.get("reasoning"))
    return Metrics(
        prompt_tokens=given + (cached or 0) + (written or 0),
        completion_tokens=None if output is None else output + (reasoning or 0),
        cached_tokens=cached,
        # 0 for a model whose price it does not know.
        cost_usd=as_cost(part.get("cost")) or None,
    )


def failure(run: CommandRun) -> AgentError | None:
    """The error that a run ended with; one that it got over is none."""
    last: Event | None = None
    for event in json_lines(run.output):
        if event.get("type") == "error":
            last = event
        elif event.get("type") == "step_finish":
            last = None
    if last is None:
        return None
    error = as_object(last.get("error"))
    data = as_object(error.get("data"))
    message = as_text(data.get("message")) or shown(error.get("name"))
    if error.get("name") == "ContextOverflowError":
        return AgentError(message, AGENT_TOKEN_LIMIT)
    if error.get("name") == "ProviderAuthError":
        return request_failure(message, 401)
    return request_failure(message, as_count(data.get("statusCode")))


_HEADLESS: Final = (
    "opencode",
    "run",
    "--format=json",
    "--thinking",
    "--model={model}",
)

DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="opencode, for models of many providers",
    version="1.18.33",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("opencode", "--version"),
    # With a title it asks no model for one.
    command=(*_HEADLESS, "--title=harbor"),
    continue_command=(*_HEADLESS, "--session={session}"),
    session=session,
    instruction="stdin",
    provider_env=PROVIDER_KEYS,
    env={
        "ANTHROPIC_BASE_URL": "${ANTHROPIC_BASE_URL:-}",
        "OPENAI_BASE_URL": "${OPENAI_BASE_URL:-}",
        "OPENCODE_CONFIG_CONTENT": json.dumps(_CONFIG),
        "OPENCODE_CONFIG": "{mcp_config}",
        "OPENCODE_PERMISSION": '{"*":"allow","external_directory":"allow","doom_loop":"allow"}',
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    },
    mcp_config=write_mcp,
    skills="~/.config/opencode/skills",
    trajectory=read,
    failure=failure,
)
