"""``pytest --harbor-agents``: the agents that there are, and what each needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.private import configured
from pytest_harbor.errors import SettingsError

if TYPE_CHECKING:
    from pytest_harbor.agents.command.declaration import AgentDeclaration

_BUILT_IN: Final[Mapping[str, str]] = {
    "nop": "does nothing",
    "oracle": "runs the task's reference solution",
}
_OF_CHAT: Final = ("OPENAI_API_KEY", "OPENAI_BASE_URL")


def show(config: pytest.Config) -> pytest.ExitCode:
    """Write the list; ``USAGE_ERROR`` where a declaration is broken."""
    with configured(config):
        terminal = config.get_terminal_writer()
        try:
            lines, is_sound = _listed(sessions.of(config))
        except SettingsError as error:
            raise pytest.UsageError(str(error)) from None
        for line in lines:
            terminal.line(line)
    return pytest.ExitCode.OK if is_sound else pytest.ExitCode.USAGE_ERROR


def _listed(session: sessions.HarborSession) -> tuple[list[str], bool]:
    from pytest_harbor.agents.command.declaration import AgentDeclaration
    from pytest_harbor.agents.registry import BUILT_IN, all_declarations

    lines = [f"{name}: {_BUILT_IN.get(name, 'built in')}" for name in sorted(BUILT_IN)]
    known = session.offered_agents
    lines += [
        f"{name}: offered by a plugin"
        for name, offer in sorted(known.items())
        if name not in BUILT_IN and not isinstance(offer, AgentDeclaration)
    ]
    broken = 0
    declarations = all_declarations(known=known, declared=session.declared_agents)
    if sessions.CHAT not in {*known, *declarations}:
        lines += _chat(os.environ)
    for name, read in declarations.items():
        agent = _read(read)
        if isinstance(agent, SettingsError):
            broken += 1
            problems = str(agent).splitlines()
            lines += [f"{name}: broken", *(f"    {problem}" for problem in problems)]
        else:
            lines += _described(name, agent, os.environ)
    return lines, not broken


def _read(read: Callable[[], AgentDeclaration]) -> AgentDeclaration | SettingsError:
    try:
        return read()
    except SettingsError as error:
        return error


def _chat(environ: Mapping[str, str]) -> Iterator[str]:
    key, url = (_with_state(name, environ) for name in _OF_CHAT)
    yield f"{sessions.CHAT}: a model in a loop, with a shell in the sandbox"
    yield f"    variables: {key}; {url} for another endpoint, whose key is optional"
    yield "    install: none, it runs on this machine (pip install 'pytest-harbor[judge]')"
    yield "    model: --harbor-model is needed"
    yield (
        "    continues a session: yes, MCP servers: yes, skills: no, trajectory: yes"
    )


def _with_state(name: str, environ: Mapping[str, str]) -> str:
    return name if environ.get(name) else f"{name} (not set)"


def _described(
    name: str, agent: AgentDeclaration, environ: Mapping[str, str]
) -> Iterator[str]:
    version = f" {agent.version}" if agent.version else ""
    what = f": {agent.description}" if agent.description else ""
    yield f"{name}{version}{what}"
    needed = _variables(agent, environ)
    yield f"    variables: {', '.join(needed) if needed else 'none'}"
    if agent.provider_env:
        keys = (
            f"{provider} {' or '.join(group)}"
            for provider, group in agent.provider_env.items()
        )
        yield f"    and by the model's provider: {', '.join(keys)}"
    installed = f"a script, at most {agent.install_timeout_seconds:g} s"
    brings = installed if agent.install is not None else "none, the image must have it"
    yield f"    install: {brings}"
    yield f"    model: {_model(agent)}"
    yield (
        f"    continues a session: {_yes(agent.can_continue)}, MCP servers: "
        f"{_yes(agent.mcp_config is not None)}, skills: "
        f"{_yes(agent.skills is not None)}, trajectory: "
        f"{_yes(agent.trajectory is not None)}"
    )


def _variables(agent: AgentDeclaration, environ: Mapping[str, str]) -> list[str]:
    """Variables of the host that it reads, and which of them are not set."""
    from pytest_harbor.tasks.folder.templates import TEMPLATE

    needed = []
    grouped = {name for group in agent.required_env for name in group}
    for group in agent.required_env:
        is_set = any(environ.get(name) for name in group)
        needed.append(" or ".join(group) + ("" if is_set else " (not set)"))
    for value in agent.env.values():
        match = TEMPLATE.fullmatch(value)
        if match is None or match["name"] in grouped:
            continue
        grouped.add(match["name"])
        if match["default"] is not None:
            needed.append(f"{match['name']} (optional)")
        else:
            is_set = match["name"] in environ
            needed.append(match["name"] + ("" if is_set else " (not set)"))
    return needed


def _model(agent: AgentDeclaration) -> str:
    from pytest_harbor.agents.command import template

    command = (*agent.command, *(agent.continue_command or ()))
    if template.placeholders(command) & template.OF_THE_MODEL:
        return "--harbor-model is needed"
    told = (*agent.model_flag, *agent.env.values())
    if template.placeholders(told) & template.OF_THE_MODEL:
        return "--harbor-model"
    return "its own choice"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
