"""Refusals at seed: what the provider, the agent or the host lacks (spec 19.6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_harbor.errors import Problem
from pytest_harbor.tasks.folder.digest import folder_digest
from pytest_harbor.tasks.folder.plan_types import EpisodePlan, TurnPlan, User
from pytest_harbor.tasks.folder.templates import resolve

TOML = "task.toml"


def seed_problems(
    plan: EpisodePlan,
    *,
    groups: bool,
    can_continue: bool,
    environ: Mapping[str, str],
    switches_network: bool = False,
    provider: str = "this",
    agent_user: User | None = None,
) -> tuple[Problem, ...]:
    """Every reason to refuse the episode before its sandbox starts.

    ``groups``: the provider runs commands as ``name:group``. ``can_continue``: the
    agent keeps its conversation from turn to turn. ``environ``: the host's environment,
    for ``${VAR}`` templates. ``switches_network``: sandboxes of ``provider`` change their
    network between phases. ``agent_user``: whom the agent runs as where the task names
    nobody. What the plan refuses by itself is in it (X11, X24, X31, X35); X04 and X36 are refused by the provider's own ``check``.
    """
    return (
        *plan.refusals,
        *(() if groups else _group_users(plan)),
        *_continuation(plan, can_continue=can_continue),
        *_one_user(plan, agent_user),
        *(() if switches_network else _phase_networks(plan, provider)),
        *unset_variables(plan, environ),
    )


def changed_folder(plan: EpisodePlan) -> Problem | None:
    """Why the folder is not the one that was planned any more (X30), or ``None``.

    Reads every file of the folder: half a millisecond for an ordinary one.
    """
    if not plan.folder_digest:
        return None
    try:
        if folder_digest(plan.folder) == plan.folder_digest:
            return None
        how = ""
    except OSError as error:
        how = f" ({error.filename}: {error.strerror})"
    return Problem(
        "",
        f"task folder changed since it was prepared{how}; start the run again",
        "X30",
    )


def _group_users(plan: EpisodePlan) -> Iterator[Problem]:
    seen: set[User] = set()
    for turn in plan.turns:
        for table, user in (
            ("agent", turn.agent_user),
            ("verifier", turn.verifier.user),
        ):
            if isinstance(user, str) and ":" in user and user not in seen:
                seen.add(user)
                step = f"step '{turn.name}': " if plan.is_multi_step else ""
                yield Problem(
                    f"{TOML}: {step}[{table}].user",
                    f"user '{user}' names a group; only Docker supports that",
                    "X32",
                )


def _phase_networks(plan: EpisodePlan, provider: str) -> Iterator[Problem]:
    """Networks of a phase alone: refused rather than run open (3.12, Q21).

    Nor is one run closed whose author asked for more.
    """
    wanted = [
        network
        for turn in plan.turns
        for network in (turn.network, turn.verifier.network)
        if network is not None
    ]
    for network in dict.fromkeys(wanted):
        yield Problem(
            f"{TOML}: {network.table}.network_mode",
            f'"{network.mode}" differs from the sandbox\'s "{plan.environment.network}",'
            f" and the network of a {provider} sandbox cannot be switched; set it in"
            " [environment]",
        )


def _continuation(plan: EpisodePlan, *, can_continue: bool) -> Iterator[Problem]:
    if plan.turn_sessions == "continue" and plan.is_multi_step and not can_continue:
        yield Problem(
            "",
            f"agent '{plan.agent}' cannot continue a session; use --harbor-turn-sessions fresh",
            "X33",
        )


def _one_user(plan: EpisodePlan, agent_user: User | None) -> Iterator[Problem]:
    if plan.turn_sessions != "continue" or not plan.is_multi_step:
        return

    def user(turn: TurnPlan) -> str:
        chosen = agent_user if turn.agent_user is None else turn.agent_user
        # 1000 is "1000".
        return "the image's default user" if chosen is None else f"'{chosen}'"

    first = plan.turns[0]
    for turn in plan.turns[1:]:
        if user(turn) != user(first):
            yield Problem(
                f"{TOML}: step '{turn.name}': [steps.agent].user",
                "turn_sessions: continue needs one agent user for all steps;"
                f" step '{first.name}' runs as {user(first)}, this one as {user(turn)}",
                "X34",
            )
            return


def unset_variables(plan: EpisodePlan, environ: Mapping[str, str]) -> Iterator[Problem]:
    """Each ``${VAR}`` without a value, once per table (X37).

    ``[solution].env`` matters to the oracle alone.
    """
    tables: list[tuple[Mapping[str, str], str]] = [
        (plan.environment.env, f"{plan.environment.table}.env")
    ]
    if plan.agent == "oracle":
        tables.append((plan.solution_env, "[solution].env"))
    for turn in plan.turns:
        label = f"step '{turn.name}': " if plan.is_multi_step else ""
        tables.append((turn.verifier.env, f"{label}[verifier].env"))
        environment = turn.verifier.environment
        if environment is not None:
            tables.append((environment.env, f"{environment.table}.env"))

    missing = {
        entry: None
        for env, table in tables
        for entry in resolve(env, table, environ).missing
    }
    for variable, table in missing:
        yield Problem(
            f"{TOML}: {table}",
            f"environment variable '{variable}' is not set (needed by {table})",
            "X37",
        )
