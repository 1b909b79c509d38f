"""When an agent's session opens and closes (spec 16), seen from the engine."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from pytest_harbor.agents.api import AgentNeeds, AgentResult, AgentTurn
from pytest_harbor.errors import AgentError, Problem, SandboxLost
from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.sandboxes.install_script import InstallScript
from scripted_sandbox import Command, passing
from task_folders import write_steps_task, write_task

CONTINUE = {"turn_sessions": "continue", "retries": 0}
FRESH = {"retries": 0}


class Talkative:
    """Notes what is asked of it, in order, beside the verifier's runs."""

    name = "talkative"
    can_continue = True

    def __init__(self, needs: AgentNeeds | None = None) -> None:
        self.story: list[str] = []
        self.failure: AgentError | None = None
        self.trajectory: Any = None
        self.end_error: Exception | None = None
        self.asked = needs

    def needs(self, plan, environ) -> Any:
        return self.asked or AgentNeeds()

    async def setup(self, sandbox) -> None:
        self.story.append("setup")

    async def run(self, turn: AgentTurn) -> AgentResult:
        self.turn = turn
        self.story.append(f"{'goes on' if turn.continues else 'begins'} {turn.step}")
        if self.failure is not None:
            raise self.failure
        return AgentResult(trajectory=self.trajectory)

    async def end_session(self, sandbox) -> None:
        self.story.append("ends")
        if self.end_error is not None:
            raise self.end_error

    async def close(self) -> None:
        self.story.append("closed")

    def watch(self, scripted) -> None:
        """Note the verifier's runs as well; those of the second step miss their gate."""

        def answer(command: Command) -> ExecResult:
            if "/tests/test.sh" in command.text:
                self.story.append("verified")
            return passing(command)

        scripted.answer = answer


@pytest.fixture
def agent(scripted):
    agent = Talkative()
    agent.watch(scripted)
    return agent


def steps(tmp_path, *names: str, gate: str = ""):
    tables = "".join(f'[[steps]]\nname = "{name}"\n{gate}' for name in names)
    files = {f"steps/{name}/instruction.md": name for name in names}
    return write_steps_task(tmp_path / "task", toml=tables, files=files)


def test_fresh_sessions_close_before_their_verifier(tmp_path, run_scripted, agent):
    run_scripted(steps(tmp_path, "a", "b"), agent, settings=FRESH)
    assert agent.story == [
        *("setup", "begins a", "ends", "verified"),
        *("begins b", "ends", "verified"),
        "closed",
    ]


def test_one_session_closes_before_the_last_verifier(tmp_path, run_scripted, agent):
    run_scripted(steps(tmp_path, "a", "b", "c"), agent, settings=CONTINUE)
    assert agent.story == [
        *("setup", "begins a", "verified"),
        *("goes on b", "verified"),
        *("goes on c", "ends", "verified"),
        "closed",
    ]


def test_an_early_stop_closes_it_after_the_verifier(tmp_path, run_scripted, agent):
    task = steps(tmp_path, "a", "b", gate="min_reward = 2.0\n")
    result = run_scripted(task, agent, settings=CONTINUE)
    assert result.stopped_after_turn == "a"
    assert agent.story == ["setup", "begins a", "verified", "ends", "closed"]


def test_a_single_step_has_one_whatever_is_asked(tmp_path, run_scripted, agent):
    run_scripted(write_task(tmp_path / "task"), agent, settings=CONTINUE)
    assert agent.story == ["setup", "begins task", "ends", "verified", "closed"]


def test_a_failure_closes_it_too(tmp_path, run_scripted, agent):
    agent.failure = AgentError("no key", status=401)
    result = run_scripted(steps(tmp_path, "a", "b"), agent, settings=CONTINUE)
    assert result.status == "agent_failed"
    assert agent.story == ["setup", "begins a", "ends", "closed"]


@pytest.mark.parametrize("gate", ["", "min_reward = 2.0\n"])
def test_an_end_that_fails_costs_no_score(tmp_path, run_scripted, agent, gate):
    agent.end_error = ValueError("what session?")
    task = steps(tmp_path, "a", "b", gate=gate)
    result = run_scripted(task, agent, settings=CONTINUE)
    assert result.status == "graded"
    warnings = [*result.warnings, *result.turns[-1].warnings]
    assert [text for text in warnings if "what session?" in text] == [
        "ending the agent's session failed: ValueError: what session?"
    ]


def test_what_it_writes_at_its_end_is_masked_whatever_comes(
    tmp_path, run_scripted, agent
):
    """Here the episode's deadline."""

    async def end_session(sandbox):
        (agent.turn.logs / "end.txt").write_text("sesame-open-7")
        await anyio.sleep_forever()

    agent.asked = AgentNeeds(secrets=("sesame-open-7",))
    agent.end_session = end_session
    settings = {
        **CONTINUE,
        "enforce_task_timeouts": False,
        "default_episode_timeout_seconds": 1.0,
        "sandbox_start_timeout_s": 1.0,
    }
    task = steps(tmp_path, "a", "b", gate="min_reward = 2.0\n")
    result = run_scripted(task, agent, settings=settings)
    assert result.status == "deadline"
    assert (agent.turn.logs / "end.txt").read_text() == "***"


def test_a_sandbox_lost_after_the_last_score_costs_none(tmp_path, run_scripted, agent):
    agent.end_error = SandboxLost("gone")
    task = steps(tmp_path, "a", "b", gate="min_reward = 2.0\n")
    result = run_scripted(task, agent, settings=CONTINUE)
    assert result.status == "graded"
    assert "the agent's session was not closed: gone" in result.warnings


def test_a_sandbox_lost_before_the_verifier_is_an_outage(tmp_path, run_scripted, agent):
    agent.end_error = SandboxLost("gone")
    result = run_scripted(write_task(tmp_path / "task"), agent, settings=FRESH)
    assert (result.status, result.failure_kind) == ("outage", "harbor:sandbox_lost")


def test_steps_are_the_agents_own_and_counted_once(tmp_path, run_scripted, agent):
    copied = {"source": "agent", "message": "before", "is_copied_context": True}
    mine = {"source": "agent", "message": "now"}
    agent.trajectory = {"steps": [copied, {"source": "user", "message": "?"}, mine, 7]}
    result = run_scripted(write_task(tmp_path / "task"), agent)
    assert result.turns[0].agent_steps == 1


def test_trajectories_that_are_none_are_not_joined(tmp_path, run_scripted, agent):
    agent.trajectory = {"something": "else"}
    result = run_scripted(steps(tmp_path, "a", "b"), agent, settings=CONTINUE)
    assert result.trajectory is None
    assert any("trajectories were not joined" in text for text in result.warnings)


class TestNeeds:
    def test_they_reach_sandbox_turn_and_provider(
        self, tmp_path, run_scripted, scripted
    ):
        install = InstallScript("x", "true")
        needs = AgentNeeds(
            install=install, env={"A": "b"}, user="cook", warnings=("w",)
        )
        agent = Talkative(needs)
        toml = '[verifier]\nenvironment_mode = "separate"\nuser = "judge"\n'
        result = run_scripted(write_task(tmp_path / "task", toml), agent)
        agents, verifiers = scripted.specs
        assert (agents.install, verifiers.install) == (install, None)
        assert (agent.turn.env, agent.turn.user) == ({"A": "b"}, "cook")
        assert scripted.checked_users == [["cook"], ["judge"]]
        assert "w" in result.warnings

    def test_a_users_own_wish_is_second_to_the_tasks(self, tmp_path, run_scripted):
        agent = Talkative(AgentNeeds(user="cook"))
        run_scripted(write_task(tmp_path / "task", '[agent]\nuser = "guest"\n'), agent)
        assert agent.turn.user == "guest"

    def test_its_user_counts_for_one_session(self, tmp_path, run_scripted):
        toml = (
            '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
            '[steps.agent]\nuser = "cook"\n'
        )
        files = {f"steps/{name}/instruction.md": name for name in "ab"}
        task = write_steps_task(tmp_path / "task", toml=toml, files=files)
        agent = Talkative(AgentNeeds(user="cook"))
        result = run_scripted(task, agent, settings=CONTINUE)
        assert (result.status, agent.turn.user) == ("graded", "cook")

    def test_problems_refuse(self, tmp_path, run_scripted, scripted):
        agent = Talkative(AgentNeeds(problems=(Problem("", "no such model"),)))
        result = run_scripted(write_task(tmp_path / "task"), agent)
        assert (result.status, result.failure_reason) == ("refused", "no such model")
        assert scripted.calls == []

    @pytest.mark.parametrize(
        ("asked", "says"),
        [
            ("nothing", "needs() returned str, expected AgentNeeds"),
            (ZeroDivisionError("oh"), "needs() failed: ZeroDivisionError: oh"),
        ],
    )
    def test_needs_that_are_none_refuse(self, tmp_path, run_scripted, asked, says):
        class Odd(Talkative):
            def needs(self, plan, environ):
                if isinstance(asked, Exception):
                    raise asked
                return asked

        result = run_scripted(write_task(tmp_path / "task"), Odd())
        assert result.status == "refused"
        assert says in result.failure_reason
