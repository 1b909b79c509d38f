"""What the turns of one try share: the agent, its sandbox, and what is in place there."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pytest_harbor.agents.api import Agent
from pytest_harbor.episodes.draft import TurnDraft
from pytest_harbor.episodes.sandbox_set import SandboxSet
from pytest_harbor.episodes.seed import Seed, phase_network
from pytest_harbor.reporter import Reporter
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.environment import Network, User
from pytest_harbor.tasks.folder.plan_types import EpisodePlan, NetworkPlan, TurnPlan


@dataclass
class Stage:
    """What the turns of one try share."""

    plan: EpisodePlan
    seed: Seed
    agent: Agent
    sandbox: Sandbox
    """The agent's."""
    sandboxes: SandboxSet
    report: Reporter
    logs: Path
    """Host folder of the turns' folders."""
    image_user: User | None
    """The sandbox's own default user."""
    user_in_place: User | None
    network_in_place: Network
    agent_is_set_up: bool = False
    session_is_open: bool = False
    """True from an agent's start until its session closes (spec 16)."""
    grading_files_left: bool = False
    """True after a turn that verified in the agent's sandbox (spec 12.1)."""
    transcript_left: bool = True
    """False when that turn is known to have left no transcript."""
    policy_says_retry: bool = False

    def draft(self, turn: TurnPlan) -> TurnDraft:
        """A fresh draft, and an empty folder for the turn on the host.

        Nothing of an earlier run may be there: a reward file would count.
        """
        logs = self.logs / turn.name
        shutil.rmtree(logs, ignore_errors=True)
        (logs / "agent").mkdir(parents=True)
        (logs / "verifier").mkdir()
        return TurnDraft(turn, self.report, logs, self.plan.keeps_session)

    def is_last(self, turn: TurnPlan) -> bool:
        """True when no turn is declared after this one."""
        return turn.index == len(self.plan.turns) - 1

    async def switch_network(self, phase: NetworkPlan | None) -> None:
        """Give the agent's sandbox the network of a phase, its own for ``None``.

        Raises:
            SandboxLost: it died, or is left without a network.
        """
        wanted = self.seed.environment.own_network
        if phase is not None:
            wanted = phase_network(phase)
        if wanted != self.network_in_place:
            await self.sandbox.set_network(wanted)
            self.network_in_place = wanted
