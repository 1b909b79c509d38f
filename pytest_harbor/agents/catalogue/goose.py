"""goose: a native program from its releases on GitHub, for models of many providers."""

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
    as_list,
    as_object,
    as_text,
    as_time,
    at,
    joined_text,
    json_lines,
    shown,
)
from pytest_harbor.agents.catalogue.installing import INSTALL_ENV, PRELUDE
from pytest_harbor.agents.catalogue.providers import PROVIDER_KEYS
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.steps import StepDraft, Steps, result_of
from pytest_harbor.agents.command.declaration import (
    AgentDeclaration,
    CommandRun,
    PlacedFile,
    UnsupportedServer,
)
from pytest_harbor.agents.trajectory import FinalMetrics
from pytest_harbor.errors import AgentError

NAME: Final = "goose"

INSTALL: Final = f"""{PRELUDE}
[ "$libc" = glibc ] || die "goose has no build for musl"
machine=x86_64
[ "$arch" = x64 ] || machine=aarch64
has bzip2 || distro_install bzip2 >&2 || die "the image needs bzip2"
case ${{AGENT_VERSION:-latest}} in
  latest | stable) release=stable ;;
  *.*.*) release=v$AGENT_VERSION ;;
  *) die "goose needs a whole version, not $AGENT_VERSION" ;;
esac
url=https://github.com/aaif-goose/goose/releases/download/$release/goose-$machine-unknown-linux-gnu.tar.bz2
fetch "$url" | bzip2 -dc | tar -x -C "$AGENT_PREFIX/bin" || die "cannot fetch $url"
chmod 755 "$AGENT_PREFIX/bin/goose"
"""


def write_mcp(servers: Sequence[McpServer]) -> Sequence[PlacedFile]:
    """Its configuration, with the servers as extensions; JSON, which is YAML."""
    developer = {
        "type": "builtin",
        "name": "developer",
        "enabled": True,
        "timeout": 300,
    }
    extensions = {"developer": developer}
    extensions.update({server.name: _extension(server) for server in servers})
    content = json.dumps({"extensions": extensions}, indent=2) + "\n"
    return [PlacedFile("~/.config/goose/config.yaml", content)]


def _extension(server: McpServer) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": server.name, "enabled": True, "timeout": 300}
    if server.transport == "stdio":
        return {
            **entry,
            "type": "stdio",
            "cmd": server.command,
            "args": list(server.args),
        }
    if server.transport == "sse":
        raise UnsupportedServer("goose speaks no SSE, only stdio and streamable-http")
    entry |= {"type": "streamable_http", "uri": server.url}
    return {**entry, "headers": dict(server.headers)} if server.headers else entry


def read(run: CommandRun) -> AgentResult:
    """The trajectory of a run with ``--output-format stream-json``.

    A message comes in pieces that share its ``id``; results of tools come as the user's.
    """
    steps = Steps()
    answers: dict[str, StepDraft] = {}
    end: Event = {}
    for event in json_lines(run.output):
        if event.get("type") == "complete":
            end = event
        message = as_object(event.get("message"))
        if event.get("type") != "message":
            continue
        identity = as_text(message.get("id"))
        parts = [as_object(part) for part in as_list(message.get("content"))]
        if message.get("role") == "assistant":
            draft = answers.get(identity)
            if draft is None:
                draft = steps.agent(timestamp=as_time(message.get("created")))
                if identity:
                    answers[identity] = draft
            for part in parts:
                _part(draft, part)
        else:
            for part in parts:
                if part.get("type") == "toolResponse":
                    _response(steps, part)
    return result_of(run, NAME, steps, final=_final(end))


def _part(draft: StepDraft, part: Event) -> None:
    if part.get("type") == "text":
        draft.text += as_text(part.get("text"))
    elif part.get("type") == "thinking":
        draft.reasoning += as_text(part.get("thinking"))
    elif part.get("type") == "toolRequest":
        value = as_object(at(part, "toolCall", "value"))
        draft.call(
            as_text(part.get("id")),
            as_text(value.get("name")),
            as_arguments(value.get("arguments")),
        )


def _response(steps: Steps, part: Event) -> None:
    result = as_object(part.get("toolResult"))
    content = at(result, "value", "content")
    content = result.get("value") if content is None else content
    text = joined_text(content) or shown(result.get("error"))
    failed = result.get("status") == "error" or at(result, "value", "isError") is True
    extra = {"is_error": True} if failed else None
    steps.result(as_text(part.get("id")), text, extra=extra)


def _final(end: Event) -> FinalMetrics | None:
    given = as_count(end.get("input_tokens"))
    output = as_count(end.get("output_tokens"))
    if given is None and output is None:
        return None
    return FinalMetrics(
        total_prompt_tokens=given,
        total_completion_tokens=output,
        total_cached_tokens=as_count(end.get("cache_read_input_tokens")),
        total_cost_usd=as_cost(end.get("cost_usd")),
    )


def failure(run: CommandRun) -> AgentError | None:
    """The error event that a run ended with."""
    errors = [
        shown(event.get("error"))
        for event in json_lines(run.output)
        if event.get("type") == "error"
    ]
    if not errors:
        return None
    status = next(
        (code for words, code in _STATUS_OF_WORDS if words in errors[-1].lower()), None
    )
    return request_failure(errors[-1], status)


_STATUS_OF_WORDS: Final = (
    ("authentication", 401),
    ("401", 401),
    ("rate limit", 429),
    ("429", 429),
    ("context length", 400),
    ("network error", 503),
    ("server error", 500),
)


_HEADLESS: Final = (
    "goose",
    "run",
    "--instructions={instruction}",
    "--name={session}",
    "--output-format=stream-json",
    "--provider={provider}",
    "--model={model_name}",
    "--with-builtin=developer",
)

DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="goose, for models of many providers",
    version="stable",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("goose", "--version"),
    command=_HEADLESS,
    continue_command=(*_HEADLESS, "--resume"),
    provider_env=PROVIDER_KEYS,
    env={
        "GOOSE_MODE": "auto",
        "GOOSE_DISABLE_KEYRING": "true",
        "GOOSE_TELEMETRY_ENABLED": "false",
        "OPENAI_HOST": "${OPENAI_HOST:-}",
        "ANTHROPIC_HOST": "${ANTHROPIC_HOST:-}",
    },
    mcp_config=write_mcp,
    skills="~/.config/goose/skills",
    trajectory=read,
    failure=failure,
)
