"""The agent's phase of a turn: its setup, its budget, and what its failure does."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anyio

from pytest_harbor.agents.api import AgentTurn
from pytest_harbor.agents.outcome_policy import Action
from pytest_harbor.agents.python_agent import run_agent, set_up_agent
from pytest_harbor.episodes.draft import TurnDraft
from pytest_harbor.episodes.stage import Stage
from pytest_harbor.errors import AGENT_SETUP_TIMEOUT, AGENT_TIMEOUT, AgentError
from pytest_harbor.sandboxes.environment import User

BUDGET_SLACK_SECONDS: Final = 1.0
"""An agent that limits its own command by the budget gets to say how that ended."""


async def run_agent_phase(stage: Stage, draft: TurnDraft, user: User | None) -> Action:
    """Run the agent within its budget; returns what its outcome does to the turn.

    Raises:
        SandboxError: an outage.
    """
    turn = draft.plan
    budget = turn.agent_budget_seconds
    logs = draft.logs / "agent"
    agent_turn = AgentTurn(
        instruction=turn.instruction,
        sandbox=stage.sandbox,
        step=turn.name,
        index=turn.index,
        user=user,
        budget_seconds=budget,
        logs=logs,
        env=stage.seed.agent_env,
        plan=turn,
        continues=stage.session_is_open,
        mcp_servers=stage.seed.mcp_servers,
        skills_dir=stage.seed.skills_dir,
        skills=stage.seed.skills,
        network=turn.network.mode if turn.network else stage.plan.environment.network,
    )
    failure: AgentError | None = None
    slack = getattr(stage.agent, "slack_seconds", BUDGET_SLACK_SECONDS)
    limit = None if budget is None else budget + slack
    try:
        await _set_up_agent(stage, logs)
        await stage.switch_network(turn.network)
        stage.session_is_open = True
        with anyio.move_on_after(limit) as scope:
            draft.agent = await run_agent(stage.agent, agent_turn)
            failure = draft.agent.failure
        if scope.cancelled_caught:
            failure = AgentError(
                f"the agent ran out of its {budget:g} s", AGENT_TIMEOUT
            )
    except AgentError as error:
        failure = error
    for warning in draft.agent.warnings:
        draft.warn(warning)
    if failure is None:
        return "verify"
    return _judge_failure(stage, draft, failure)


async def _set_up_agent(stage: Stage, logs: Path) -> None:
    """Let the agent prepare itself, once per try. Raises AgentError."""
    if stage.agent_is_set_up:
        return
    limit = stage.plan.agent_setup_timeout_seconds
    with anyio.move_on_after(limit) as scope:
        await set_up_agent(stage.agent, stage.sandbox, logs)
    if scope.cancelled_caught:
        raise AgentError(
            f"the agent's setup ran out of its {limit:g} s", AGENT_SETUP_TIMEOUT
        )
    stage.agent_is_set_up = True


def _judge_failure(stage: Stage, draft: TurnDraft, failure: AgentError) -> Action:
    draft.agent_timed_out = failure.kind == AGENT_TIMEOUT
    action = stage.seed.policy.action(failure.kind, failure.status)
    if action != "verify" or not draft.agent_timed_out:
        draft.failed(failure.kind, failure.message)
    if action == "verify":
        what = failure.message.strip()
        if not draft.agent_timed_out:
            what = f"the agent failed ({failure.kind}): {what}"
        draft.warn(f"{what}; its work is graded")
    return action
