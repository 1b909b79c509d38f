"""Claude Code, of Anthropic: a native program from the npm registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.catalogue.events import (
    as_count,
    as_text,
    at,
    json_lines,
    shown,
)
from pytest_harbor.agents.catalogue.installing import INSTALL_ENV, npm_script
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.stream_json import StreamReader, usage_metrics
from pytest_harbor.agents.command.declaration import AgentDeclaration, CommandRun
from pytest_harbor.agents.command.mcp import json_writer
from pytest_harbor.agents.trajectory import Metrics
from pytest_harbor.errors import AGENT_TURN_LIMIT, AgentError

NAME: Final = "claude-code"

INSTALL: Final = npm_script(
    """
suffix=
[ "$libc" = glibc ] || suffix=-musl
package=@anthropic-ai/claude-code-linux-$arch$suffix
version=$(npm_version "$package" "$AGENT_VERSION")
npm_unpack "$package" "$version" "$AGENT_PREFIX/package"
mv "$AGENT_PREFIX/package/claude" "$AGENT_PREFIX/bin/claude"
chmod 755 "$AGENT_PREFIX/bin/claude"
rm -rf "$AGENT_PREFIX/package"
"""
)

_HEADLESS: Final = (
    "claude",
    "--print",
    "--verbose",
    "--output-format=stream-json",
    "--permission-mode=bypassPermissions",
)


def _usage_by_message(files: Mapping[str, str]) -> dict[str, Metrics]:
    """The metrics of answers as the session's own file has them, written when they are whole."""
    found: dict[str, Metrics] = {}
    for content in files.values():
        for event in json_lines(content):
            identity = as_text(at(event, "message", "id"))
            metrics = usage_metrics(at(event, "message", "usage"), cached_apart=True)
            if identity and metrics is not None:
                found[identity] = metrics
    return found


def read(run: CommandRun) -> AgentResult:
    """The trajectory of a run with ``--output-format=stream-json``."""
    reader = StreamReader(cached_apart=True, usage_of=_usage_by_message(run.files))
    return reader.read(json_lines(run.output)).result(run, NAME)


def failure(run: CommandRun) -> AgentError | None:
    """What the ``result`` event says went wrong; without one, the last retry."""
    reader = StreamReader(cached_apart=True).read(json_lines(run.output))
    end = reader.end
    if end.get("subtype") == "error_max_turns":
        return AgentError("it used up its turns", AGENT_TURN_LIMIT)
    if end.get("is_error") is True:
        message = as_text(end.get("result")) or shown(end.get("errors"))
        status = as_count(end.get("api_error_status"))
        if status is None and "ECONN" in message:
            status = 503  # nobody answered
        if status is None and "/login" in message:
            status = 401
        return request_failure(message, status)
    if run.exit_code != 0 and reader.retry:
        status = as_count(reader.retry.get("error_status"))
        return request_failure(shown(reader.retry.get("error")), status)
    return None


DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="Claude Code, of Anthropic",
    version="2.1.332",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("claude", "--version"),
    command=(*_HEADLESS, "--session-id={session}", "{model_flag}", "{mcp_flag}"),
    continue_command=(*_HEADLESS, "--resume={session}", "{model_flag}", "{mcp_flag}"),
    instruction="stdin",
    model_flag=("--model={model_name}",),
    required_env=(
        ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN"),
    ),
    env={
        "ANTHROPIC_BASE_URL": "${ANTHROPIC_BASE_URL:-}",
        "ANTHROPIC_CUSTOM_HEADERS": "${ANTHROPIC_CUSTOM_HEADERS:-}",
        "ENABLE_TOOL_SEARCH": "${ENABLE_TOOL_SEARCH:-}",
        "CLAUDE_CODE_MAX_RETRIES": "${CLAUDE_CODE_MAX_RETRIES:-}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # Its first question waits for MCP servers, whose tools it would lack.
        "MCP_CONNECTION_NONBLOCKING": "false",
        # Root may skip permissions where it says that it is in a sandbox.
        "IS_SANDBOX": "1",
    },
    mcp_config=json_writer("~/.claude/harbor-mcp.json"),
    mcp_flag=("--mcp-config={mcp_config}", "--strict-mcp-config"),
    skills="~/.claude/skills",
    trajectory=read,
    trajectory_files=("~/.claude/projects/*/{session}.jsonl",),
    failure=failure,
)
