"""Before anything starts: templates resolved, everything refused that cannot run.

Pure: what the provider can do was found out before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_harbor.agents.outcome_policy import OutcomePolicy, parse_policy
from pytest_harbor.errors import SettingsError, TaskRefused
from pytest_harbor.sandboxes.api import (
    Capabilities,
    EnvironmentSpec,
    Limits,
    Provider,
    User,
)
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import EnvironmentPlan, EpisodePlan
from pytest_harbor.tasks.folder.seed import seed_problems
from pytest_harbor.tasks.folder.templates import resolve

ORACLE = "oracle"


@dataclass(frozen=True)
class Seed:
    """What an episode needs beside its plan, secrets included; never written down."""

    environment: EnvironmentSpec
    verifier_environments: tuple[EnvironmentSpec | None, ...]
    """One per turn; ``None`` where the turn verifies in the agent's sandbox."""
    verifier_envs: tuple[Mapping[str, str], ...]
    """One per turn: the variables of ``test.sh``."""
    solution_env: Mapping[str, str]
    masker: Masker
    policy: OutcomePolicy


def make_seed(plan: EpisodePlan, environ: Mapping[str, str]) -> Seed:
    """Resolve every template of the plan from the host's environment.

    Variables that are not set are left out here; :func:`refuse` names them.
    ``[solution].env`` is the oracle's alone: other agents run without it.

    Raises:
        TaskRefused: the outcome policy cannot be read.
    """
    secrets: list[str] = []

    def values(env: Mapping[str, str], table: str) -> Mapping[str, str]:
        resolved = resolve(env, table, environ)
        secrets.extend(resolved.secrets)
        return resolved.values

    def spec(environment: EnvironmentPlan) -> EnvironmentSpec:
        env = values(environment.env, environment.table)
        return environment_spec(environment, env, force_build=plan.force_build)

    is_oracle = plan.agent == ORACLE
    verifiers = [turn.verifier for turn in plan.turns]
    try:
        policy = parse_policy(plan.agent_outcome_policy)
    except SettingsError as error:
        raise TaskRefused(str(error)) from error
    return Seed(
        environment=spec(plan.environment),
        verifier_environments=tuple(
            spec(item.environment) if item.environment else None for item in verifiers
        ),
        verifier_envs=tuple(values(item.env, "[verifier]") for item in verifiers),
        solution_env=values(plan.solution_env, "[solution]") if is_oracle else {},
        masker=Masker(secrets),
        policy=policy,
    )


def refuse(
    plan: EpisodePlan,
    *,
    capabilities: Capabilities,
    can_continue: bool,
    environ: Mapping[str, str],
) -> None:
    """Refuse what cannot run, every reason at once (spec 19.6).

    Raises:
        TaskRefused: one line per reason.
    """
    problems = seed_problems(
        plan,
        groups=capabilities.groups,
        can_continue=can_continue,
        environ=environ,
    )
    if problems:
        raise TaskRefused("\n".join(map(str, problems)), rule=problems[0].rule)


def check_provider(provider: Provider, plan: EpisodePlan, seed: Seed) -> None:
    """Let the provider refuse what it cannot do.

    Raises:
        UnsupportedByProvider: names the key and the provider.
    """
    provider.check(seed.environment, agent_sandbox_users(plan))
    for turn, own in zip(plan.turns, seed.verifier_environments, strict=True):
        if own is not None:
            provider.check(own, [turn.verifier.user])


def agent_sandbox_users(plan: EpisodePlan) -> Sequence[User | None]:
    """All users that commands in the agent's sandbox will run as, each once."""
    users: list[User | None] = []
    for turn in plan.turns:
        users.append(turn.agent_user)
        users.extend(hook.user for hook in turn.hooks)
        if turn.verifier.mode == "shared":
            users.append(turn.verifier.user)
    return list(dict.fromkeys(users))


def environment_spec(
    plan: EnvironmentPlan, env: Mapping[str, str], *, force_build: bool
) -> EnvironmentSpec:
    """What a provider is asked for, ``env`` being the resolved variables."""
    return EnvironmentSpec(
        image=plan.image,
        build_context=plan.build_context,
        files=plan.files,
        compose_file=plan.compose_file,
        workdir=plan.workdir,
        env=env,
        network=plan.network,
        allowed_hosts=plan.allowed_hosts,
        limits=Limits(plan.cpus, plan.memory_mib, plan.storage_mib),
        start_timeout_seconds=plan.start_timeout_seconds,
        force_build=force_build,
    )
