"""Before anything starts: templates resolved, everything refused that cannot run.

Pure: what the provider can do was found out before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_harbor.agents.api import Agent, AgentNeeds, McpServer
from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.agents.oracle import OracleAgent
from pytest_harbor.agents.outcome_policy import OutcomePolicy, parse_policy
from pytest_harbor.agents.python_agent import describe
from pytest_harbor.errors import (
    AGENT_MISSING_KEY,
    REFUSED,
    Problem,
    SettingsError,
    TaskRefused,
)
from pytest_harbor.sandboxes.api import Capabilities, Provider
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits, Network, User
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import (
    EnvironmentPlan,
    EpisodePlan,
    NetworkPlan,
)
from pytest_harbor.tasks.folder.seed import seed_problems
from pytest_harbor.tasks.folder.templates import resolve, resolve_inside

ORACLE = "oracle"
NO_NEEDS = AgentNeeds()


@dataclass(frozen=True)
class Seed:
    """What an episode needs beside its plan, secrets included; never written down."""

    environment: EnvironmentSpec
    verifier_environments: tuple[EnvironmentSpec | None, ...]
    """One per turn; ``None`` where the turn verifies in the agent's sandbox."""
    verifier_envs: tuple[Mapping[str, str], ...]
    """One per turn: the variables of ``test.sh``."""
    agent_env: Mapping[str, str]
    """``AgentTurn.env``: ``[solution].env`` for the oracle, else what the agent needs."""
    masker: Masker
    policy: OutcomePolicy
    agent_user: User | None = None
    """Whom the agent runs as where the task names nobody."""
    mcp_servers: tuple[McpServer, ...] = ()
    skills_dir: str | None = None
    skills: tuple[Path, ...] = ()
    problems: tuple[Problem, ...] = ()
    """What the agent lacks."""
    missing_keys: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


def make_seed(
    plan: EpisodePlan, environ: Mapping[str, str], agent: Agent | None = None
) -> Seed:
    """Resolve every template of the plan from the host's environment.

    Variables that are not set are left out here; :func:`refuse` names them.
    ``[solution].env`` is the oracle's alone: other agents run without it. Without an
    ``agent`` it is the seed of a sandbox that nobody works in.

    Raises:
        TaskRefused: the outcome policy cannot be read, or the agent's ``needs`` fail.
    """
    secrets: list[str] = []

    def values(env: Mapping[str, str], table: str) -> Mapping[str, str]:
        resolved = resolve(env, table, environ)
        secrets.extend(resolved.secrets)
        return resolved.values

    def spec(environment: EnvironmentPlan) -> EnvironmentSpec:
        env = values(environment.env, environment.table)
        named = {
            name: environ[name]
            for name in environment.variables
            if name in environ and name not in env
        }
        secrets.extend(named.values())
        return environment_spec(
            environment, env, variables=named, force_build=plan.force_build
        )

    needs = _needs(agent, plan, environ)
    secrets.extend(needs.secrets)
    servers, problems = _mcp_servers(agent, plan, environ, secrets)
    env = needs.env
    if plan.agent == ORACLE:
        env = values(plan.solution_env, "[solution]")
    verifiers = [turn.verifier for turn in plan.turns]
    try:
        policy = parse_policy(plan.agent_outcome_policy)
    except SettingsError as error:
        raise TaskRefused(str(error)) from error
    return Seed(
        environment=replace(
            spec(plan.environment),
            install=needs.install,
            phase_networks=_phase_networks(plan),
        ),
        verifier_environments=tuple(
            spec(item.environment) if item.environment else None for item in verifiers
        ),
        verifier_envs=tuple(values(item.env, "[verifier]") for item in verifiers),
        agent_env=env,
        masker=Masker(secrets),
        policy=policy,
        agent_user=needs.user,
        mcp_servers=servers,
        skills_dir=plan.skills_dir if _takes(agent, "skills") else None,
        skills=plan.skills if _takes(agent, "skills") else (),
        problems=(*needs.problems, *problems),
        missing_keys=needs.missing_keys,
        warnings=(*needs.warnings, *_not_taken(agent, plan)),
    )


def _phase_networks(plan: EpisodePlan) -> tuple[Network, ...]:
    """What the agent's sandbox will be switched to."""
    networks = [
        phase_network(network)
        for turn in plan.turns
        for network in (turn.network, turn.verifier.network)
        if network is not None
    ]
    return tuple(dict.fromkeys(networks))


def phase_network(plan: NetworkPlan) -> Network:
    """What a sandbox is asked for."""
    return Network(plan.mode, plan.allowed_hosts)


def _needs(
    agent: Agent | None, plan: EpisodePlan, environ: Mapping[str, str]
) -> AgentNeeds:
    ask = getattr(agent, "needs", None)
    if not callable(ask):
        return NO_NEEDS
    try:
        needs = ask(plan, environ)
    except (Exception, SystemExit) as error:
        raise TaskRefused(
            f"agent '{plan.agent}': needs() failed: {describe(error)}"
        ) from error
    if not isinstance(needs, AgentNeeds):
        raise TaskRefused(
            f"agent '{plan.agent}': needs() returned {type(needs).__name__}, expected "
            "AgentNeeds"
        )
    return needs


def _takes(agent: Agent | None, what: str) -> bool:
    return bool(getattr(agent, f"takes_{what}", False))


def _mcp_servers(
    agent: Agent | None,
    plan: EpisodePlan,
    environ: Mapping[str, str],
    secrets: list[str],
) -> tuple[tuple[McpServer, ...], tuple[Problem, ...]]:
    """The servers, headers resolved, for an agent that takes them (spec 3.8)."""
    if not _takes(agent, "mcp_servers"):
        return (), ()
    servers: list[McpServer] = []
    problems: dict[Problem, None] = {}
    for server in plan.mcp_servers:
        table = f"{server.table} '{server.name}'"
        headers = resolve_inside(server.headers, table, environ)
        secrets.extend(headers.secrets)
        for variable, _ in headers.missing:
            text = f"environment variable '{variable}' is not set (needed by {table})"
            problems[Problem("", text, "X37")] = None
        servers.append(
            McpServer(
                name=server.name,
                transport=server.transport,
                url=server.url,
                command=server.command,
                args=server.args,
                headers=headers.values,
            )
        )
    return tuple(servers), tuple(problems)


def _not_taken(agent: Agent | None, plan: EpisodePlan) -> list[str]:
    """What the task offers to agents and this one does not take (spec 3.8)."""
    if agent is None or isinstance(agent, (NopAgent, OracleAgent)):
        return []
    warnings = []
    if plan.mcp_servers and not _takes(agent, "mcp_servers"):
        names = ", ".join(server.name for server in plan.mcp_servers)
        warnings.append(
            f"agent '{plan.agent}' takes no MCP servers; it is not told of {names}"
        )
    folders = [plan.skills_dir] if plan.skills_dir else []
    folders += [str(folder) for folder in plan.skills]
    if folders and not _takes(agent, "skills"):
        warnings.append(
            f"agent '{plan.agent}' takes no skills; it is not given those in "
            f"{', '.join(folders)}"
        )
    return warnings


def refuse(
    plan: EpisodePlan,
    seed: Seed,
    *,
    capabilities: Capabilities,
    can_continue: bool,
    environ: Mapping[str, str],
    provider: str = "this",
) -> None:
    """Refuse what cannot run, every reason at once (spec 19.6).

    Raises:
        TaskRefused: one line per reason.
    """
    problems = (
        *seed_problems(
            plan,
            groups=capabilities.groups,
            can_continue=can_continue,
            environ=environ,
            switches_network=capabilities.switches_network,
            provider=provider,
            agent_user=seed.agent_user,
        ),
        *seed.problems,
    )
    every = (*problems, *seed.missing_keys)
    if every:
        raise TaskRefused(
            "\n".join(map(str, every)),
            rule=every[0].rule,
            kind=REFUSED if problems else AGENT_MISSING_KEY,
        )


def check_provider(provider: Provider, plan: EpisodePlan, seed: Seed) -> None:
    """Let the provider refuse what it cannot do.

    Raises:
        UnsupportedByProvider: names the key and the provider.
    """
    provider.check(seed.environment, agent_sandbox_users(plan, seed.agent_user))
    for turn, own in zip(plan.turns, seed.verifier_environments, strict=True):
        if own is not None:
            provider.check(own, [turn.verifier.user])


def agent_sandbox_users(
    plan: EpisodePlan, agent_user: User | None = None
) -> Sequence[User | None]:
    """All users that commands in the agent's sandbox will run as, each once.

    ``agent_user`` stands in where a turn names none.
    """
    users: list[User | None] = []
    for turn in plan.turns:
        users.append(agent_user if turn.agent_user is None else turn.agent_user)
        users.extend(hook.user for hook in turn.hooks)
        if turn.verifier.mode == "shared":
            users.append(turn.verifier.user)
    return list(dict.fromkeys(users))


def environment_spec(
    plan: EnvironmentPlan,
    env: Mapping[str, str],
    *,
    variables: Mapping[str, str],
    force_build: bool,
) -> EnvironmentSpec:
    """What a provider is asked for, ``env`` and ``variables`` being resolved."""
    return EnvironmentSpec(
        image=plan.image,
        build_context=plan.build_context,
        files=plan.files,
        compose_file=plan.compose_file,
        variables=variables,
        workdir=plan.workdir,
        env=env,
        network=plan.network,
        allowed_hosts=plan.allowed_hosts,
        limits=Limits(plan.cpus, plan.memory_mib, plan.storage_mib),
        start_timeout_seconds=plan.start_timeout_seconds,
        force_build=force_build,
        platform=plan.platform,
    )
