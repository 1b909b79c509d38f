"""Several turns in one episode: spec 12, turn by turn."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.errors import AgentError, SandboxLost, TransferFailed
from pytest_harbor.sandboxes.api import ExecResult
from scripted_sandbox import OK, passing
from task_folders import write_steps_task, write_task

SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


def rewarding(*rewards):
    """An answer whose verifiers write one reward after the other, then nothing."""
    left = list(rewards)

    def answer(command):
        if "/tests/test.sh" in command.text and left:
            text = str(left.pop(0)).encode()
            command.sandbox.files["/logs/verifier/reward.txt"] = text
        return OK

    return answer


class Telling(NopAgent):
    """An agent with a transcript, that keeps what it was told."""

    def __init__(self):
        self.turns = []

    async def run(self, turn):
        self.turns.append(turn)
        return AgentResult(
            text=f"done {turn.step}",
            trajectory={"step": turn.step},
            input_tokens=10,
            cost_usd=0.5,
        )


def test_each_step_is_a_turn_of_one_sandbox(tmp_path, scripted, run_scripted):
    agent = Telling()
    scripted.answer = rewarding(1.0, 0.5, 0.0)
    result = run_scripted(write_steps_task(tmp_path / "task", "a", "b", "c"), agent)
    assert (result.status, result.reward) == ("graded", 0.5)
    assert [turn.name for turn in result.turns] == ["a", "b", "c"]
    assert [turn.reward for turn in result.turns] == [1.0, 0.5, 0.0]
    assert [turn.response for turn in result.turns] == ["done a", "done b", "done c"]
    assert result.turns[0].input_tokens == 10
    assert result.turns[0].cost_usd == 0.5
    assert (result.stopped_after_turn, result.verifier_mode) == (None, "shared")
    assert [turn.instruction for turn in agent.turns] == ["Do a.", "Do b.", "Do c."]
    assert len(scripted.started) == 1


def test_clean_up_comes_after_shared_turns_only(tmp_path, scripted, run_scripted):
    task = write_steps_task(
        tmp_path / "task",
        toml='[[steps]]\nname = "a"\n'
        '[[steps]]\nname = "b"\n[steps.verifier]\nenvironment_mode = "separate"\n'
        '[[steps]]\nname = "c"\n',
        files={f"steps/{s}/instruction.md": s for s in "abc"},
    )
    result = run_scripted(task, Telling())
    assert result.status == "graded"
    assert result.verifier_mode == "mixed"
    wipes = [call for call in scripted.calls if call[1].startswith("[] empty=")]
    removals = [text for _, text in scripted.calls if text.startswith("rm ")]
    # One clean-up: before b, which came after a shared turn; c came after b.
    assert wipes == [("upload", "[] empty=['/tests', '/logs/verifier']")]
    assert removals == ["rm -rf -- /logs/agent/trajectory.json"]


class TestCostOfCleaningUp:
    """Each call costs a container one to two requests."""

    def between(self, scripted):
        """The calls from the end of turn a's verification to the agent of b."""
        texts = [f"{what} {text}" for what, text in scripted.calls]
        begin = texts.index("download ['/logs']")
        return [text for text in texts[begin + 1 :] if "download" not in text][:2]

    VERIFIER = "upload ['/tests'] empty=['/logs/verifier', '/tests']"

    def test_one_transfer_where_no_transcript_was_left(
        self, tmp_path, scripted, run_scripted
    ):
        run_scripted(write_steps_task(tmp_path / "task", "a", "b"), "nop")
        wipe = "upload [] empty=['/tests', '/logs/verifier']"
        assert self.between(scripted) == [wipe, self.VERIFIER]

    def test_the_oracles_solution_goes_along(self, tmp_path, scripted, run_scripted):
        task = write_steps_task(
            tmp_path / "task", "a", "b", files={"solution/solve.sh": "true"}
        )
        run_scripted(task, "oracle")
        both = "upload ['/solution'] empty=['/tests', '/logs/verifier', '/solution']"
        assert self.between(scripted) == [both, "exec bash /solution/solve.sh"]

    def test_when_nobody_knows_the_transcript_is_removed(
        self, tmp_path, scripted, run_scripted
    ):
        scripted.too_big = frozenset({"/logs"})
        run_scripted(write_steps_task(tmp_path / "task", "a", "b"), "nop")
        assert any(text.startswith("rm ") for _, text in scripted.calls)


@pytest.mark.parametrize("too_big", [(), ("/logs/agent/trajectory.json",)])
def test_a_transcript_that_cannot_be_removed_is_an_outage(
    tmp_path, scripted, run_scripted, too_big
):
    """Also one that is too big to look at."""
    task = write_steps_task(tmp_path / "task", "a", "b")
    result = run_scripted(task, Telling(), settings={"retries": 0})
    assert result.status == "graded"

    scripted.can_remove = False
    scripted.too_big = frozenset(too_big)
    result = run_scripted(task, Telling())
    assert (result.status, result.failure_kind) == ("outage", "harbor:sandbox_lost")
    assert "trajectory.json" in result.failure_reason
    assert result.turns[1].failed_phase == "prepare"
    # Tried again, although it was the agent that put its own rm in the way.
    assert [attempt.number for attempt in result.failed_attempts] == [1, 2]


@pytest.mark.parametrize("agent", ["nop", "oracle"])
def test_folders_that_cannot_be_emptied_are_an_outage(
    tmp_path, scripted, run_scripted, agent
):
    def answer(command):
        if "test.sh" in command.text and not result_of_first_try:
            result_of_first_try.append(True)
            scripted.failures["upload"] = [TransferFailed("busy", blocked=True)]
        return passing(command)

    result_of_first_try = []
    scripted.answer = answer
    task = write_steps_task(tmp_path / "task", "a", "b")
    result = run_scripted(task, agent)
    assert (result.status, result.reward) == ("graded", 1.0)
    [attempt] = result.failed_attempts
    assert attempt.failure_kind == "harbor:transfer_failed"
    first, second = attempt.turns
    assert (first.reward, second.reward) == (1.0, None)
    assert second.failed_phase == "prepare"


def test_a_full_disk_is_an_outage_and_no_blocked_merge(
    tmp_path, scripted, run_scripted
):
    def answer(command):
        if "test.sh" in command.text:
            scripted.failures["upload"] = [TransferFailed("No space left on device")]
        return passing(command)

    scripted.answer = answer
    task = write_steps_task(
        tmp_path / "task",
        toml='[[steps]]\nname = "a"\n[steps.verifier]\nenvironment_mode = "separate"\n'
        '[[steps]]\nname = "b"\n',
        files={
            "steps/a/instruction.md": "",
            "steps/b/instruction.md": "",
            "steps/b/workdir/data": "x",
        },
    )
    result = run_scripted(task, settings={"retries": 0})
    assert (result.status, result.failure_kind, result.failed_phase) == (
        "outage",
        "harbor:transfer_failed",
        "prepare",
    )
    assert "No space left" in result.failure_reason


class TestLaterTurn:
    """What ends turn b ends the episode, and what a was worth is kept on record."""

    def run(self, tmp_path, run_scripted, agent, **options):
        task = write_steps_task(tmp_path / "task", "a", "b", "c")
        options.setdefault("settings", {"retries": 0})
        return run_scripted(task, agent, **options)

    def test_masked(self, tmp_path, scripted, run_scripted):
        class Agent(NopAgent):
            async def run(self, turn):
                if turn.step == "b":
                    scripted.tools = frozenset()

        result = self.run(tmp_path, run_scripted, Agent())
        assert (result.status, result.reward, result.mask_sample) == (
            "masked",
            None,
            True,
        )
        assert [turn.status for turn in result.turns] == ["graded", "masked"]
        assert (result.stopped_after_turn, result.verifier_rewards) == ("b", {})
        assert result.failure_reason.startswith("step b: ")

    @pytest.mark.parametrize(
        ("action", "status", "reward", "turns", "tries"),
        [
            ("verify", "graded", 1.0, ["graded"] * 3, 0),
            ("count_as_zero", "graded", 0.5, ["graded", "counted_as_zero"], 0),
            ("retry", "agent_failed", None, ["graded", "agent_failed"], 2),
            ("fail", "agent_failed", None, ["graded", "agent_failed"], 1),
        ],
    )
    def test_agent_failure(
        self, tmp_path, run_scripted, action, status, reward, turns, tries
    ):
        class Agent(NopAgent):
            async def run(self, turn):
                if turn.step == "b":
                    raise AgentError("gave up", "agent_gave_up")

        rules = (f"kind:agent_gave_up = {action}",)
        settings = {"retries": 1, "agent_outcome_policy": rules}
        result = self.run(tmp_path, run_scripted, Agent(), settings=settings)
        assert (result.status, result.reward) == (status, reward)
        assert [turn.status for turn in result.turns] == turns
        assert result.turns[0].reward == 1.0
        assert len(result.failed_attempts) == tries
        assert result.stopped_after_turn == (None if action == "verify" else "b")

    def test_response_is_of_the_last_turn_with_an_agent(self, tmp_path, run_scripted):
        task = write_steps_task(
            tmp_path / "task", "a", "b", files={"steps/b/workdir/data": "x"}
        )
        agent = Telling()
        result = run_scripted(task, agent)
        assert result.response == "done b"
        failed = replace(result.turns[1], durations={"prepare": 1.0}, response=None)
        assert replace(result, turns=(result.turns[0], failed)).response == "done a"


class TestEarlyStop:
    def run(self, tmp_path, run_scripted):
        task = write_steps_task(
            tmp_path / "task",
            toml='[[steps]]\nname = "a"\nmin_reward = 0.5\n'
            '[[steps]]\nname = "b"\nmin_reward = 0.5\n',
            files={f"steps/{s}/instruction.md": s for s in "ab"},
        )
        return run_scripted(task)

    def test_missed_gate(self, tmp_path, scripted, run_scripted):
        scripted.answer = rewarding(0.4, 1.0)
        result = self.run(tmp_path, run_scripted)
        assert (result.reward, result.stopped_after_turn) == (0.4, "a")
        assert [turn.min_reward_met for turn in result.turns] == [False]

    def test_missed_gate_of_the_last_step(self, tmp_path, scripted, run_scripted):
        scripted.answer = rewarding(0.5, 0.4)
        result = self.run(tmp_path, run_scripted)
        assert (result.reward, result.stopped_after_turn) == (0.45, None)
        assert [turn.min_reward_met for turn in result.turns] == [True, False]

    def test_reward_of_an_earlier_turn_never_counts(
        self, tmp_path, scripted, run_scripted
    ):
        scripted.answer = rewarding(1.0)
        result = self.run(tmp_path, run_scripted)
        assert [turn.status for turn in result.turns] == ["graded", "no_reward"]
        assert result.reward == 0.5
        assert result.failure_kind == "harbor:no_reward_file"


class TestPreparation:
    def task(self, tmp_path, step, *, toml="", files=None):
        tables = "".join(
            f'[[steps]]\nname = "{s}"\n{toml if s == step else ""}' for s in "ab"
        )
        return write_steps_task(
            tmp_path / "task",
            toml=tables,
            files={
                **{f"steps/{s}/instruction.md": s for s in "ab"},
                **{f"steps/{step}/{k}": v for k, v in (files or {}).items()},
            },
        )

    def failing_setup(self, command):
        if "setup.sh" in command.text:
            return ExecResult(3, "", "no such package")
        return passing(command)

    def test_setup_of_the_first_step_is_terminal(
        self, tmp_path, scripted, run_scripted
    ):
        task = self.task(tmp_path, "a", files={"workdir/setup.sh": "exit 3"})
        scripted.answer = self.failing_setup
        result = run_scripted(task)
        assert (result.status, result.reward) == ("terminal", None)
        assert result.failure_kind == "harbor:step_setup_failed"
        assert "step a: setup.sh ended with exit code 3" in result.failure_reason
        assert "no such package" in result.failure_reason
        assert len(result.failed_attempts) == 1
        assert result.failed_attempts[0].terminal
        assert result.turns[0].reward is None
        assert not any("test.sh" in text for _, text in scripted.calls)

    def test_setup_of_a_later_step_is_a_measured_zero(
        self, tmp_path, scripted, run_scripted
    ):
        task = self.task(tmp_path, "b", files={"workdir/setup.sh": "exit 3"})
        scripted.answer = self.failing_setup
        result = run_scripted(task)
        assert (result.status, result.reward) == ("graded", 0.5)
        assert result.turns[1].status == "prepare_failed"
        assert result.turns[1].verifier_mode is None
        assert result.failure_kind == "harbor:step_setup_failed"
        assert result.stopped_after_turn is None

    def test_setup_that_overruns(self, tmp_path, scripted, run_scripted):
        task = self.task(tmp_path, "a", files={"workdir/setup.sh": "sleep 9"})
        scripted.answer = lambda command: (
            ExecResult(None, "", "", timed_out=True)
            if "setup.sh" in command.text
            else OK
        )
        result = run_scripted(task, settings={"step_setup_timeout_s": 5.0})
        assert "setup.sh ran out of its 5 s" in result.failure_reason
        [setup] = [c for c in scripted.commands if "setup.sh" in c.text]
        assert setup.timeout_seconds == 5.0

    def test_workdir_that_is_blocked(self, tmp_path, scripted, run_scripted):
        task = self.task(tmp_path, "a", files={"workdir/data": "x"})
        scripted.failures["upload"] = [
            TransferFailed("/app/data: a folder", blocked=True)
        ]
        result = run_scripted(task)
        assert (result.status, result.failure_kind) == (
            "terminal",
            "harbor:step_workdir_failed",
        )

    def test_workdir_that_cannot_be_sent_is_an_outage(
        self, tmp_path, scripted, run_scripted
    ):
        task = self.task(tmp_path, "a", files={"workdir/data": "x"})
        scripted.failures["upload"] = [TransferFailed("broken pipe")]
        assert run_scripted(task, settings={"retries": 0}).status == "outage"

    def test_health_check_that_never_passes(self, tmp_path, scripted, run_scripted):
        toml = "[steps.healthcheck]\ncommand = 'ready'\nretries = 1\n"
        task = self.task(tmp_path, "b", toml=toml)
        scripted.answer = lambda command: (
            ExecResult(1, "", "") if command.text == "ready" else passing(command)
        )
        result = run_scripted(task)
        assert (result.status, result.reward) == ("graded", 0.5)
        assert result.failure_kind == "harbor:step_healthcheck_failed"

    def test_leftover_setup_is_not_run_again(self, tmp_path, scripted, run_scripted):
        task = self.task(tmp_path, "a", files={"workdir/setup.sh": "true"})
        run_scripted(task)
        assert sum("setup.sh" in text for _, text in scripted.calls) == 1


class TestUsers:
    def test_switch_back_and_verifier(self, tmp_path, scripted, run_scripted):
        task = write_steps_task(
            tmp_path / "task",
            toml='[verifier]\nuser = "grader"\n'
            '[[steps]]\nname = "a"\n[steps.agent]\nuser = "alice"\n'
            '[[steps]]\nname = "b"\n'
            '[[steps]]\nname = "c"\n',
            files={
                **{f"steps/{s}/instruction.md": s for s in "abc"},
                **{f"steps/{s}/workdir/setup.sh": "true" for s in "abc"},
            },
        )
        scripted.answer = lambda command: (
            ExecResult(0, "1000\n", "") if "id -u" in command.text else passing(command)
        )
        result = run_scripted(task)
        assert result.status == "graded"
        chowns = [t for _, t in scripted.calls if t.startswith("chown")]
        # Only the folder itself, once per switch; back to the image's own user.
        assert chowns == ["chown -- alice /app", "chown -- 1000 /app"]
        users = [c.user for c in scripted.commands if "setup.sh" in c.text]
        assert users == ["alice", None, None]
        users = [c.user for c in scripted.commands if "test.sh" in c.text]
        assert users == ["grader"] * 3

    def test_agent_user_is_the_default_only_while_the_agent_works(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(
            tmp_path / "task",
            '[agent]\nuser = "alice"\n[[verifier.collect]]\ncommand = "dump"\n',
        )

        class Working(NopAgent):
            async def run(self, turn):
                await turn.sandbox.exec("work")

        run_scripted(task, Working())
        users = {c.text: c.user for c in scripted.commands}
        assert users["work"] == "alice"
        assert users["dump"] is None
        assert users["timeout 605 bash /tests/test.sh"] is None

    def test_a_user_that_cannot_be_switched_to_is_an_outage(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(tmp_path / "task", '[agent]\nuser = "alice"\n')
        scripted.answer = lambda command: ExecResult(1, "", "unknown user")
        result = run_scripted(task, settings={"retries": 0})
        assert result.status == "outage"
        assert "'alice'" in result.failure_reason


class TestSeparate:
    def test_sees_artifacts_tests_and_transcript_and_nothing_else(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(
            tmp_path / "task", 'artifacts = ["/app/out.txt"]\n' + SEPARATE
        )

        class Agent(Telling):
            async def run(self, turn):
                files = turn.sandbox.files
                files["/app/out.txt"] = b"made"
                files["/app/secret.txt"] = b"planted"
                files["/logs/agent/notes.txt"] = b"thoughts"
                files["/logs/artifacts/kept"] = b"kept"
                files["/logs/verifier/reward.txt"] = b"1"
                return await super().run(turn)

        seen = {}

        def answer(command):
            if "test.sh" in command.text:
                seen.update(command.sandbox.files)
            return passing(command)

        scripted.answer = answer
        result = run_scripted(task, Agent())
        assert (result.reward, result.verifier_mode) == (1.0, "separate")
        assert sorted(seen) == [
            "/app/out.txt",
            "/logs/agent/trajectory.json",
            "/logs/artifacts/kept",
            "/tests/test.sh",
        ]
        turn = result.turns[0]
        assert (turn.logs / "agent" / "notes.txt").read_bytes() == b"thoughts"
        transcript = json.loads((turn.logs / "agent" / "trajectory.json").read_text())
        assert transcript == {"step": "task"}
        assert turn.artifact("app/out.txt").read_bytes() == b"made"

    def test_agents_sandbox_ends_before_the_last_verifier_starts(
        self, tmp_path, scripted, run_scripted
    ):
        run_scripted(write_steps_task(tmp_path / "task", "a", "b", toml=SEPARATE))
        agent, first, second = (sandbox.id for sandbox in scripted.started)
        life = [call for call in scripted.calls if call[0] in ("start", "stop")]
        assert life == [
            ("start", agent),
            ("start", first),
            ("stop", first),
            ("stop", agent),
            ("start", second),
            ("stop", second),
        ]

    def test_sandbox_that_cannot_be_ended_costs_no_score(
        self, tmp_path, scripted, run_scripted
    ):
        scripted.failures["stop"] = [SandboxLost("busy"), SandboxLost("busy")]
        result = run_scripted(write_task(tmp_path / "task", SEPARATE))
        assert (result.status, result.reward) == ("graded", 1.0)
        assert scripted.left_up == []  # a second call ended both

    def test_image_that_brings_its_tests(self, tmp_path, scripted, run_scripted):
        task = write_task(
            tmp_path / "task",
            '[verifier.environment]\ndocker_image = "grader:1"\n',
        )
        scripted.initial_files = {"/tests/test.sh": b"the image's own"}
        seen = []

        def answer(command):
            if command.text.startswith("timeout"):
                seen.append(command.sandbox.files["/tests/test.sh"])
            return passing(command)

        scripted.answer = answer
        result = run_scripted(task)
        assert seen == [b"the image's own"]
        assert result.turns[0].tests_from == "image"
        assert scripted.specs[1].image == "grader:1"

    def test_image_without_tests_gets_the_folders(
        self, tmp_path, scripted, run_scripted
    ):
        task = write_task(
            tmp_path / "task",
            '[verifier.environment]\ndocker_image = "grader:1"\n',
        )
        scripted.answer = lambda command: (
            ExecResult(1, "", "")
            if command.text.startswith("test -f")
            else passing(command)
        )
        result = run_scripted(task)
        assert (result.reward, result.turns[0].tests_from) == (1.0, "folder")

    def test_neither_has_tests(self, tmp_path, scripted, run_scripted):
        task = write_task(
            tmp_path / "task",
            '[verifier.environment]\ndocker_image = "grader:1"\n',
            test=None,
        )
        scripted.answer = lambda command: ExecResult(1, "", "")
        result = run_scripted(task)
        assert result.status == "masked"
        assert "/tests/test.sh" in result.failure_reason


def test_continued_sessions_need_an_agent_that_can(tmp_path, scripted, run_scripted):
    task = write_steps_task(tmp_path / "task", "a", "b")
    settings = {"turn_sessions": "continue"}
    assert run_scripted(task, settings=settings).status == "refused"
    assert scripted.calls == []

    class Continuing(NopAgent):
        can_continue = True

    assert run_scripted(task, Continuing(), settings=settings).status == "graded"


def test_solution_of_an_earlier_step_is_removed(tmp_path, scripted, run_scripted):
    task = write_steps_task(
        tmp_path / "task",
        "a",
        "b",
        "c",
        files={
            "solution/solve.sh": "root",
            "steps/a/solution/solve.sh": "a",
            "steps/a/solution/data": "a",
            "steps/c/solution/notes.md": "no script",
        },
    )
    seen = []

    def answer(command):
        if "solve.sh" in command.text:
            files = command.sandbox.files
            seen.append({p: t for p, t in files.items() if p.startswith("/solution")})
        return passing(command)

    scripted.answer = answer
    result = run_scripted(task, "oracle")
    assert seen == [
        {"/solution/solve.sh": b"a", "/solution/data": b"a"},
        {"/solution/solve.sh": b"root"},
    ]
    assert result.validated is False
    assert result.turns[2].warnings == (
        "c has a solution/ without solve.sh: the oracle did nothing",
    )
