"""Before anything starts: templates resolved, everything refused that cannot run.

Pure but for the probe of the provider, which is asked what it can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_harbor.agents.outcome_policy import OutcomePolicy, parse_policy
from pytest_harbor.errors import SettingsError, TaskRefused
from pytest_harbor.sandboxes.api import EnvironmentSpec, Limits, Provider, User
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import EnvironmentPlan, EpisodePlan
from pytest_harbor.tasks.folder.templates import Resolved, resolve

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

    ``[solution].env`` is the oracle's alone: other agents run without it.

    Raises:
        TaskRefused: variables that are not set, all of them with their tables (X37),
            or an outcome policy that cannot be read.
    """
    seen: list[Resolved] = []

    def values(env: Mapping[str, str], table: str) -> Mapping[str, str]:
        resolved = resolve(env, table, environ)
        seen.append(resolved)
        return resolved.values

    def spec(environment: EnvironmentPlan) -> EnvironmentSpec:
        env = values(environment.env, f"{environment.table}.env")
        return environment_spec(environment, env, force_build=plan.force_build)

    environment = spec(plan.environment)
    verifier_envs = []
    verifier_environments = []
    for turn in plan.turns:
        verifier = turn.verifier
        verifier_envs.append(values(verifier.env, _verifier_table(plan, turn.name)))
        own = verifier.environment
        verifier_environments.append(None if own is None else spec(own))
    solution_env: Mapping[str, str] = {}
    if plan.agent == ORACLE:
        solution_env = values(plan.solution_env, "[solution].env")
    _refuse_missing(seen)
    try:
        policy = parse_policy(plan.agent_outcome_policy)
    except SettingsError as error:
        raise TaskRefused(str(error)) from error
    return Seed(
        environment=environment,
        verifier_environments=tuple(verifier_environments),
        verifier_envs=tuple(verifier_envs),
        solution_env=solution_env,
        masker=Masker(secret for item in seen for secret in item.secrets),
        policy=policy,
    )


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


def _verifier_table(plan: EpisodePlan, step: str) -> str:
    if plan.is_multi_step:
        return f"[verifier].env or [steps.verifier].env of step {step!r}"
    return "[verifier].env"


def _refuse_missing(seen: Sequence[Resolved]) -> None:
    tables: dict[str, dict[str, None]] = {}
    for resolved in seen:
        for variable, table in resolved.missing:
            tables.setdefault(variable, {})[table] = None
    if tables:
        lines = [
            f"environment variable {variable!r} is not set (needed by {', '.join(of)})"
            for variable, of in tables.items()
        ]
        raise TaskRefused("\n".join(lines), rule="X37")
