"""The oracle: the agent that runs the reference solution (spec 13)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pytest_harbor.agents.api import AgentResult, AgentTurn
from pytest_harbor.errors import AGENT_TIMEOUT, AgentError
from pytest_harbor.sandboxes.transfer_types import Upload
from pytest_harbor.tasks.folder.plan_types import EpisodePlan, TurnPlan

SOLUTION_FOLDER: Final = "/solution"
LOG_NAME: Final = "oracle.txt"


class OracleAgent:
    """Runs ``/solution/solve.sh`` as the turn's agent user, from the working directory.

    The script's exit code is recorded and decides nothing. A turn without a
    ``solve.sh`` gets the reference answer as its final message, if there is one.
    """

    name = "oracle"

    def placement(self, turn: TurnPlan) -> tuple[Sequence[Upload], Sequence[str]]:
        """The turn's solution on its way to ``/solution``, and what to empty first.

        Nothing of an earlier turn's solution may stay. The first turn has none, and
        emptying would cost a request of its own.
        """
        empty = (SOLUTION_FOLDER,) if turn.index > 0 else ()
        if turn.solution is None:
            return (), empty
        executable = frozenset({"solve.sh"} if turn.has_solve_script else ())
        solution = Upload(
            turn.solution.path,
            SOLUTION_FOLDER,
            executable=executable,
            exclude=turn.solution.exclude,
        )
        return (solution,), empty

    async def run(self, turn: AgentTurn) -> AgentResult:
        """Run the placed solution.

        Raises:
            AgentError: of kind ``agent_timeout`` when it overruns the budget.
        """
        plan = turn.plan
        assert plan is not None
        if not plan.has_solve_script:
            return AgentResult(text=plan.reference_answer)
        result = await turn.sandbox.exec(
            ["bash", f"{SOLUTION_FOLDER}/solve.sh"],
            user=turn.user,
            env=turn.env,
            timeout_seconds=turn.budget_seconds,
            log=turn.logs / LOG_NAME,
        )
        if result.timed_out:
            raise AgentError(
                f"solve.sh ran out of its {turn.budget_seconds:g} s", AGENT_TIMEOUT
            )
        return AgentResult(exit_code=result.exit_code)


def shortfall(turn: TurnPlan) -> str | None:
    """Why the oracle does nothing in this turn; ``None`` when it has something."""
    if turn.has_solve_script or turn.reference_answer is not None:
        return None
    where = "no solution/" if turn.solution is None else "a solution/ without solve.sh"
    return f"{turn.name} has {where}: the oracle did nothing"


def has_whole_solution(plan: EpisodePlan) -> bool:
    """True when every step can be validated: a ``solve.sh``, its own or the task's.

    A single-step task may have a reference answer instead.
    """
    return all(
        turn.has_solve_script
        or (not plan.is_multi_step and turn.reference_answer is not None)
        for turn in plan.turns
    )
