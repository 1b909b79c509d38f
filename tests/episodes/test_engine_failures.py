"""What goes wrong around an agent's work never becomes a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.episodes.episode import run
from pytest_harbor.errors import (
    AgentError,
    SandboxLost,
    SandboxStartFailed,
    SandboxUnavailable,
    TransferFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import VERIFIER_TOOLS, Capabilities, ExecResult
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from scripted_sandbox import OK, ScriptedProvider, passing
from task_folders import write_steps_task, write_task


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(tmp_path / "task", solve="true")


def at_test(what: Callable[..., object]):
    """An answer that does ``what`` when the verifier runs."""

    def answer(command):
        return what() if "/tests/test.sh" in command.text else OK

    return answer


class TestOutage:
    def test_start_that_fails_once_is_tried_again(self, task, scripted, run_scripted):
        scripted.failures["start"] = [SandboxStartFailed("registry is down")]
        result = run_scripted(task)
        assert (result.status, result.reward) == ("graded", 1.0)
        [attempt] = result.failed_attempts
        assert attempt.number == 1
        assert attempt.failure_kind == "harbor:sandbox_start_failed"
        assert attempt.failure_reason == "registry is down"
        assert not attempt.terminal

    def test_retries_used_up(self, task, scripted, run_scripted):
        scripted.failures["start"] = [SandboxStartFailed("no") for _ in range(9)]
        result = run_scripted(task, settings={"retries": 2})
        assert (result.status, result.reward) == ("outage", None)
        assert [attempt.number for attempt in result.failed_attempts] == [1, 2, 3]
        assert (result.failure_kind, result.failed_phase) == (
            "harbor:sandbox_start_failed",
            "seed",
        )
        assert result.turns == ()

    def test_a_start_that_fails_always_is_not_tried_again(
        self, task, scripted, run_scripted
    ):
        scripted.failures["start"] = [SandboxStartFailed("no image", is_final=True)]
        result = run_scripted(task, settings={"retries": 2})
        assert (result.status, result.reward) == ("terminal", None)
        [attempt] = result.failed_attempts
        assert attempt.terminal
        assert (result.failure_kind, result.failed_phase) == (
            "harbor:sandbox_start_failed",
            "seed",
        )

    def test_an_image_for_grading_that_is_missing_costs_no_agents_work(
        self, tmp_path, scripted, run_scripted
    ):
        scripted.failures["prepare"] = [SandboxStartFailed("no image", is_final=True)]
        separate = '[verifier]\nenvironment_mode = "separate"\n'
        result = run_scripted(write_task(tmp_path / "t", separate, solve="true"))
        assert (result.status, result.failed_phase) == ("terminal", "seed")
        assert result.failure_reason == "no image"
        assert scripted.started == []

    def test_only_separate_graders_are_prepared(self, task, scripted, run_scripted):
        assert run_scripted(task).reward == 1.0
        assert "prepare" not in [method for method, _ in scripted.calls]

    def test_sandbox_that_dies_under_the_verifier(self, task, scripted, run_scripted):
        scripted.answer = at_test(lambda: SandboxLost("out of memory"))
        result = run_scripted(task, settings={"retries": 0})
        assert (result.status, result.reward) == ("outage", None)
        assert (result.failure_kind, result.failed_phase) == (
            "harbor:sandbox_lost",
            "verify",
        )
        [turn] = result.turns
        assert (turn.status, turn.reward, turn.failure_reason) == (
            "error",
            None,
            "out of memory",
        )
        assert turn.failed_phase == "verify"
        assert set(turn.durations) == {"prepare", "agent", "collect", "verify"}
        assert scripted.left_up == []

    @pytest.mark.parametrize("what", ["upload", "download"])
    def test_transfer_that_fails_once(self, task, scripted, run_scripted, what):
        scripted.failures[what] = [TransferFailed("broken pipe")]
        result = run_scripted(task, "oracle")
        assert result.status == "graded"
        assert result.failed_attempts[0].failure_kind == "harbor:transfer_failed"

    def test_logs_of_a_failed_try_are_kept_apart(self, task, scripted, run_scripted):
        lost = [SandboxLost("gone")]
        scripted.answer = lambda command: (
            lost.pop() if lost and "test.sh" in command.text else passing(command)
        )
        result = run_scripted(task)
        assert result.status == "graded"
        [turn] = result.failed_attempts[0].turns
        assert turn.logs == result.logs / "try-1" / "task"
        assert turn.logs.is_dir()
        assert result.turns[0].logs == result.logs / "turns" / "task"

    def test_environment_that_never_gets_healthy(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(
            tmp_path / "task",
            "[environment.healthcheck]\ncommand = 'ready'\nretries = 2\n"
            "interval_sec = 0.0\n",
        )
        scripted.answer = lambda command: ExecResult(1, "", "not yet")
        result = run_scripted(task, settings={"retries": 0})
        assert result.status == "outage"
        assert result.failure_kind == "harbor:environment_unhealthy"
        assert "2 attempts" in result.failure_reason
        assert "not yet" in result.failure_reason
        assert result.turns == ()
        assert [what for what, _ in scripted.calls] == ["start", "exec", "exec", "stop"]

    def test_removal_that_fails_is_a_warning(self, task, scripted, run_scripted):
        scripted.failures["stop"] = [SandboxLost("busy")]
        result = run_scripted(task)
        assert result.status == "graded"
        assert scripted.left_up
        assert "not removed" in result.warnings[-1]
        assert "busy" in result.warnings[-1]


class TestRefused:
    def test_unset_variables_are_named_all_at_once(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(
            tmp_path / "task",
            '[environment.env]\nA = "${NO_SUCH_A}"\n'
            '[verifier.env]\nB = "${NO_SUCH_B}"\nC = "${NO_SUCH_C:-fine}"\n'
            '[solution.env]\nD = "${NO_SUCH_D}"\n',
        )
        result = run_scripted(task, environ={})
        assert (result.status, result.failure_kind) == ("refused", "harbor:refused")
        assert "'NO_SUCH_A'" in result.failure_reason
        assert "[environment].env" in result.failure_reason
        assert "'NO_SUCH_B'" in result.failure_reason
        assert "NO_SUCH_C" not in result.failure_reason
        assert "NO_SUCH_D" not in result.failure_reason
        assert scripted.calls == []
        assert len(result.failed_attempts) == 1
        assert result.failed_attempts[0].terminal

    def test_the_oracle_needs_the_solutions_variables(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(
            tmp_path / "task", '[solution.env]\nD = "${NO_SUCH_D}"\n', solve="true"
        )
        result = run_scripted(task, "oracle", environ={})
        assert "[solution].env" in result.failure_reason

    def test_by_the_provider(self, task, scripted, run_scripted):
        scripted.refusal = UnsupportedByProvider("[environment].gpus: not here")
        result = run_scripted(task)
        assert (result.status, result.failure_reason) == (
            "refused",
            "[environment].gpus: not here",
        )
        assert scripted.calls == []

    def test_policy_that_cannot_be_read(self, task, run_scripted):
        result = run_scripted(task, settings={"agent_outcome_policy": ("nonsense",)})
        assert result.status == "refused"
        assert "'nonsense'" in result.failure_reason

    def test_group_user_where_there_are_no_groups(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(tmp_path / "task", '[agent]\nuser = "a:b"\n')
        assert run_scripted(task).status == "refused"
        scripted.capabilities = Capabilities(True, groups=True)
        assert run_scripted(task).status == "graded"

    def test_provider_gets_all_users_to_check(self, tmp_path, scripted, run_scripted):
        task = write_task(
            tmp_path / "task",
            '[agent]\nuser = "a"\n[verifier]\nuser = "v"\n'
            '[[verifier.collect]]\ncommand = "x"\nuser = "h"\n',
        )
        run_scripted(task)
        assert scripted.checked_users == [["a", "h", "v"]]


class TestChangedFolder:
    """X30: what was planned is what is run."""

    def run(self, folder, scripted, logs, change, **settings):
        plan = plan_episode(load_task(folder), Settings(**settings), agent="nop")
        change()

        async def main():
            return await run(plan, scripted, NopAgent(), logs=logs)

        return anyio.run(main)

    def test_is_refused(self, task, scripted, tmp_path):
        result = self.run(
            task,
            scripted,
            tmp_path / "logs",
            lambda: (task / "tests/test.sh").write_text("echo 1"),
        )
        assert (result.status, result.failure_reason) == (
            "refused",
            "task folder changed since it was prepared; start the run again",
        )
        assert scripted.calls == []
        assert [attempt.terminal for attempt in result.failed_attempts] == [True]

    def test_a_folder_that_is_gone(self, task, scripted, tmp_path):
        gone = task.with_name("gone")
        logs = tmp_path / "logs"
        result = self.run(task, scripted, logs, lambda: task.rename(gone))
        assert result.status == "refused"
        assert f"{task}: No such file or directory" in result.failure_reason

    def test_between_two_tries(self, task, scripted, tmp_path):
        def answer(command):
            (task / "tests/test.sh").write_text("echo 1")
            return SandboxLost("gone")

        scripted.answer = answer
        result = self.run(task, scripted, tmp_path / "logs", lambda: None)
        assert result.status == "refused"
        kinds = [attempt.failure_kind for attempt in result.failed_attempts]
        assert kinds == ["harbor:sandbox_lost", "harbor:refused"]

    def test_what_tools_leave_there_does_not_count(self, task, scripted, tmp_path):
        def change():
            (task / ".cache").mkdir()

        result = self.run(task, scripted, tmp_path / "logs", change)
        assert result.status == "graded"

    def test_logs_of_the_run_itself_do_not_count(self, task, scripted):
        lost = [SandboxLost("gone")]
        scripted.answer = lambda command: (
            lost.pop() if lost and "test.sh" in command.text else passing(command)
        )
        result = self.run(task, scripted, task / "results/logs", lambda: None)
        assert (result.status, len(result.failed_attempts)) == ("graded", 1)


class TestUnavailable:
    def test_by_the_probe(self, task, scripted, run_scripted):
        scripted.capabilities = Capabilities(False, reason="no daemon: start one")
        result = run_scripted(task)
        assert (result.status, result.failure_kind, result.failure_reason) == (
            "unavailable",
            "harbor:sandbox_unavailable",
            "no daemon: start one",
        )
        assert scripted.calls == []

    def test_at_the_start(self, task, scripted, run_scripted):
        scripted.failures["start"] = [SandboxUnavailable("gone since")]
        assert run_scripted(task).status == "unavailable"
        assert [what for what, _ in scripted.calls] == ["start"]


class TestMasked:
    @pytest.mark.parametrize("tool", ["bash", "timeout"])
    def test_tool_that_was_never_there(self, task, scripted, run_scripted, tool):
        scripted.tools = frozenset(VERIFIER_TOOLS) - {tool}
        result = run_scripted(task)
        assert (result.status, result.reward, result.mask_sample) == (
            "masked",
            None,
            True,
        )
        assert result.failure_kind == "verifier_error"
        assert tool in result.failure_reason
        assert result.failed_attempts == ()
        [turn] = result.turns
        assert (turn.status, turn.reward, turn.failed_phase) == (
            "masked",
            None,
            "verify",
        )
        assert not any("test.sh" in text for _, text in scripted.calls)

    def test_tool_that_we_do_not_need(self, task, scripted, run_scripted):
        scripted.tools = frozenset({"bash", "timeout"})
        assert run_scripted(task).status == "graded"

    def test_agent_timeout_before_it_is_noted(self, tmp_path, scripted, run_scripted):
        task = write_task(tmp_path / "task", "[agent]\ntimeout_sec = 0.01\n")
        scripted.tools = frozenset()

        class Slow(NopAgent):
            async def run(self, turn):
                await anyio.sleep_forever()

        result = run_scripted(task, Slow())
        assert (result.status, result.failure_kind) == ("masked", "verifier_error")
        assert result.turns[0].agent_timed_out

    def test_tool_that_the_agent_removed_is_a_measured_zero(
        self, task, scripted, run_scripted
    ):
        scripted.answer = at_test(lambda: ExecResult(127, "", "timeout: not found"))
        result = run_scripted(task)
        assert (result.status, result.reward) == ("graded", 0.0)
        assert result.failure_kind == "harbor:no_reward_file"
        assert result.failure_reason == (
            "no reward: test.sh ended with exit code 127 and wrote neither "
            "reward.json nor reward.txt"
        )


class TestDeadline:
    def test_enforced(self, tmp_path, scripted):
        result = self.run(tmp_path, scripted, enforced=True)
        assert result.status == "deadline"
        assert result.failure_kind == "harbor:task_deadline"
        assert "deadline of 0.05 s" in result.failure_reason
        assert len(result.failed_attempts) == 2
        [turn] = result.turns
        assert (turn.status, turn.reward) == ("error", None)
        assert turn.failed_phase == "verify"
        assert turn.failure_kind == "harbor:task_deadline"
        assert scripted.left_up == []

    def test_not_enforced(self, tmp_path, scripted):
        result = self.run(tmp_path, scripted, enforced=False)
        assert (result.status, result.failure_reason) == (
            "deadline",
            "Episode timed out",
        )

    @pytest.mark.parametrize("enforced", [True, False])
    def test_when_the_clock_starts(self, tmp_path, scripted, enforced):
        """With the ready sandbox, or with the episode when not enforced (Q22)."""

        class SlowStart(ScriptedProvider):
            async def start(self, spec, **options):
                await anyio.sleep(0.9)
                return await super().start(spec, **options)

        folder = write_task(tmp_path / "task")
        result = self.run_plan(
            folder, SlowStart(), tmp_path, seconds=0.8, enforced=enforced
        )
        assert result.status == ("graded" if enforced else "deadline")
        if not enforced:
            assert (result.turns, result.failed_phase) == ((), "seed")

    def test_in_a_later_turn(self, tmp_path, scripted):
        def answer(command):
            if command.sandbox.files.get("/tests/test.sh") == b"hang":
                return anyio.sleep_forever()
            return passing(command)

        scripted.answer = answer
        folder = write_steps_task(
            tmp_path / "task", "a", "b", "c", files={"steps/b/tests/test.sh": "hang"}
        )
        result = self.run_plan(folder, scripted, tmp_path, seconds=0.8, enforced=True)
        assert (result.status, result.reward) == ("deadline", None)
        assert result.failure_kind == "harbor:task_deadline"
        # No partial roll-up, but what was measured stays on record.
        assert (result.verifier_rewards, result.stopped_after_turn) == ({}, None)
        assert [turn.reward for turn in result.turns] == [1.0, None]
        assert [one.terminal for one in result.failed_attempts] == [False]
        assert [turn.reward for turn in result.failed_attempts[0].turns] == [1.0, None]

    def run(self, tmp_path, scripted, *, enforced):
        scripted.answer = at_test(anyio.sleep_forever)
        folder = write_task(tmp_path / "task")
        return self.run_plan(
            folder, scripted, tmp_path, seconds=0.05, enforced=enforced, retries=1
        )

    def run_plan(self, folder, scripted, tmp_path, *, seconds, enforced, retries=0):
        plan = plan_episode(load_task(folder), Settings(retries=retries), agent="nop")
        plan = replace(plan, deadline_seconds=seconds, deadline_enforced=enforced)

        async def main():
            return await run(plan, scripted, NopAgent(), logs=tmp_path / "logs")

        return anyio.run(main)


class TestCancelled:
    def test_leaves_nothing_and_raises(self, tmp_path, scripted):
        events = []
        closed = []
        reached = anyio.Event()

        class Agent(NopAgent):
            async def close(self):
                await anyio.lowlevel.checkpoint()
                closed.append(True)

        async def hang(command):
            reached.set()
            await anyio.sleep_forever()

        scripted.answer = hang
        plan = plan_episode(
            load_task(write_task(tmp_path / "task")), Settings(), agent="nop"
        )

        async def main():
            async with anyio.create_task_group() as group:
                group.start_soon(
                    lambda: run(
                        plan, scripted, Agent(), events.append, logs=tmp_path / "logs"
                    )
                )
                await reached.wait()
                group.cancel_scope.cancel()
            return scripted.left_up

        assert anyio.run(main) == []
        assert closed == [True]
        assert events[-1].kind == "attempt_failed"
        assert events[-1].data["failure_kind"] == "cancelled"
        assert events[-1].data["will_retry"] is False


class Failing(NopAgent):
    """An agent that fails as it is told."""

    def __init__(self, error):
        self.error = error

    async def run(self, turn):
        raise self.error


class TestAgentFailure:
    @pytest.mark.parametrize(
        ("action", "status", "reward", "tries"),
        [
            ("verify", "graded", 1.0, 0),
            ("count_as_zero", "graded", 0.0, 0),
            ("retry", "agent_failed", None, 2),
            ("fail", "agent_failed", None, 1),
        ],
    )
    def test_policy(self, task, scripted, run_scripted, action, status, reward, tries):
        agent = Failing(AgentError("overloaded", "agent_request_failed", 529))
        result = run_scripted(
            task, agent, settings={"agent_outcome_policy": (f"status:529 = {action}",)}
        )
        assert (result.status, result.reward) == (status, reward)
        assert len(result.failed_attempts) == tries
        assert result.failure_kind == "agent_request_failed"
        assert result.failure_reason == "overloaded"
        assert result.failed_phase == "agent"
        ran = any("test.sh" in text for _, text in scripted.calls)
        assert ran is (action == "verify")

    def test_any_exception_is_a_run_error(self, task, run_scripted):
        result = run_scripted(task, Failing(KeyError("tokens")))
        assert (result.status, result.reward) == ("graded", 1.0)
        assert result.failure_kind == "agent_run_error"
        assert result.failure_reason == "KeyError: 'tokens'"
        trace = result.turns[0].logs / "agent" / "exception.txt"
        assert "raise self.error" in trace.read_text()

    def test_a_lost_sandbox_is_no_failure_of_the_agent(self, task, run_scripted):
        result = run_scripted(task, Failing(SandboxLost("gone")))
        assert (result.status, result.failure_kind) == ("outage", "harbor:sandbox_lost")

    def test_what_the_provider_cannot_do_for_it_is(self, task, run_scripted):
        result = run_scripted(task, Failing(UnsupportedByProvider("no user 'x'")))
        assert (result.status, result.failure_kind) == ("graded", "agent_run_error")

    def test_missing_reward_after_it_says_both(self, task, scripted, run_scripted):
        scripted.answer = lambda command: ExecResult(1, "", "")
        result = run_scripted(task, Failing(AgentError("gave up")))
        assert result.failure_kind == "harbor:no_reward_file"
        assert any("gave up" in warning for warning in result.turns[0].warnings)

    def test_timeout_is_graded(self, tmp_path, run_scripted):
        task = write_task(tmp_path / "task", "[agent]\ntimeout_sec = 0.01\n")

        class Slow(NopAgent):
            async def run(self, turn):
                await anyio.sleep_forever()

        result = run_scripted(task, Slow())
        assert (result.status, result.reward) == ("graded", 1.0)
        assert result.turns[0].agent_timed_out
        assert result.failure_kind is None
        assert "ran out of its 0.01 s" in result.turns[0].warnings[0]

    @pytest.mark.parametrize("is_async", [True, False])
    def test_setup_has_a_bound(self, task, scripted, run_scripted, is_async):
        class Agent(NopAgent):
            async def setup(self, sandbox):
                await anyio.sleep_forever()

            async def run(self, turn):
                raise AssertionError("never set up")

        class Blocking(Agent):
            def setup(self, sandbox):
                sandbox.exec("install")

        async def install(command):
            await anyio.sleep_forever()

        if not is_async:
            scripted.answer = install
        settings = {"agent_setup_timeout_s": 0.05}
        agent = Agent() if is_async else Blocking()
        result = run_scripted(task, agent, settings=settings)
        # It says nothing about the agent's work: tried again.
        assert (result.status, len(result.failed_attempts)) == ("agent_failed", 2)
        assert result.failure_kind == "agent_setup_timeout"
        assert result.failure_reason == "the agent's setup ran out of its 0.05 s"
        assert result.failed_phase == "agent"
        assert not result.turns[0].agent_timed_out

    def test_setup_and_close_bracket_each_try(self, task, scripted, run_scripted):
        seen = []

        class Agent(NopAgent):
            async def setup(self, sandbox):
                seen.append(f"setup {sandbox.id == scripted.started[-1].id}")

            async def run(self, turn):
                seen.append("run")
                if seen.count("run") == 1:
                    raise SandboxLost("gone")

            def close(self):
                seen.append("close")

        assert run_scripted(task, Agent()).status == "graded"
        assert seen == ["setup True", "run", "close"] * 2
