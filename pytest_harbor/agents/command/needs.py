"""What a declared agent needs or lacks: known before anything starts. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_harbor.agents.api import AgentNeeds
from pytest_harbor.agents.command import template
from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.errors import Problem
from pytest_harbor.sandboxes.environment import NetworkMode
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.tasks.folder.templates import resolve


def needs_of(
    declaration: AgentDeclaration,
    name: str,
    model: str | None,
    network: NetworkMode,
    environ: Mapping[str, str],
) -> AgentNeeds:
    """What the agent asks for; ``name`` is the one that it goes by.

    ``network`` is what its sandbox will have.
    """
    table = f"env of agent '{name}'"
    provider = template.model_values(model).get("provider") or ""
    groups = (*declaration.required_env, declaration.provider_env.get(provider, ()))
    groups = tuple(group for group in groups if group)
    passed_on = {
        variable: f"${{{variable}}}"
        for group in groups
        for variable in group
        if environ.get(variable)
    }
    resolved = resolve({**passed_on, **declaration.env}, table, environ)
    installing = resolve(
        declaration.install_env, f"install_env of agent '{name}'", environ
    )
    missing = [
        Problem("", f"environment variable '{variable}' is not set (needed by {where})")
        for variable, where in (*resolved.missing, *installing.missing)
    ]
    missing += [
        Problem("", f"{_none_of(group)} (needed by agent '{name}')")
        for group in groups
        if not any(environ.get(variable) for variable in group)
        and not any((variable, table) in resolved.missing for variable in group)
    ]
    warnings = []
    if declaration.network and network != "public":
        warnings.append(
            f"agent '{name}' runs inside the sandbox, whose network is "
            f"{network!r}: it may not reach its model"
        )
    return AgentNeeds(
        install=install_script(declaration, environ),
        env={key: value for key, value in resolved.values.items() if value},
        secrets=(*resolved.secrets, *installing.secrets),
        user=declaration.user,
        missing_keys=tuple(missing),
        problems=tuple(
            Problem("", text) for text in _model_problems(declaration, name, model)
        ),
        warnings=tuple(warnings),
    )


def install_script(
    declaration: AgentDeclaration, environ: Mapping[str, str]
) -> InstallScript | None:
    """The script that installs it; ``environ`` is the host's environment."""
    if declaration.install is None:
        return None
    given = resolve(declaration.install_env, "install_env", environ)
    return InstallScript(
        name=declaration.name,
        script=declaration.install,
        probe=declaration.probe,
        env={
            **{name: value for name, value in given.values.items() if value},
            "AGENT_VERSION": declaration.version or "",
        },
        secrets=given.secrets,
        timeout_seconds=declaration.install_timeout_seconds,
    )


def _none_of(group: tuple[str, ...]) -> str:
    if len(group) == 1:
        return f"environment variable '{group[0]}' is not set"
    names = ", ".join(f"'{variable}'" for variable in group)
    return f"none of the environment variables {names} is set"


def _model_problems(
    declaration: AgentDeclaration, name: str, model: str | None
) -> Iterator[str]:
    """A model that it cannot be told of, or one that it cannot do without."""
    commands = (*declaration.command, *(declaration.continue_command or ()))
    in_command = template.placeholders(commands) & template.OF_THE_MODEL
    used = in_command | (
        template.placeholders((*declaration.model_flag, *declaration.env.values()))
        & template.OF_THE_MODEL
    )
    if model is None:
        if in_command:
            yield f"agent '{name}' needs a model: name it with --harbor-model"
        return
    if not used and not declaration.model_flag:
        yield f"agent '{name}' cannot be told a model: leave out --harbor-model"
    needs_provider = "provider" in used or declaration.provider_env
    if needs_provider and "/" not in model:
        yield (
            f"agent '{name}' needs the model's provider: write --harbor-model "
            f"provider/{model}"
        )
