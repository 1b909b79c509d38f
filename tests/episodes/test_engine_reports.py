"""What an episode reports while it runs and when it has ended."""

from __future__ import annotations

import json
from dataclasses import asdict

import anyio
import pytest

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.episodes.episode import run
from pytest_harbor.episodes.plain_data import (
    result_from_plain,
    result_to_plain,
)
from pytest_harbor.errors import (
    AgentError,
    SandboxLost,
    SandboxStartFailed,
    UnsupportedByProvider,
)
from pytest_harbor.events import Event
from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from scripted_sandbox import OK, ScriptedProvider, passing
from task_folders import write_steps_task, write_task

PHASES = ("prepare", "agent", "collect", "verify")


def test_events_come_in_order(tmp_path, run_scripted):
    events = []
    run_scripted(write_task(tmp_path / "task"), observe=events.append)
    phases = [(f"phase_{edge}", p) for p in PHASES for edge in ("started", "ended")]
    assert [(event.kind, event.phase) for event in events] == [
        ("episode_started", None),
        ("attempt_started", None),
        ("sandbox_started", None),
        ("turn_started", None),
        *phases,
        ("turn_ended", None),
        ("episode_ended", None),
    ]
    assert {event.episode for event in events} == {"task[nop-1]"}
    assert {event.step for event in events[3:-1]} == {"task"}
    assert events[-2].data["reward"] == 1.0
    assert events[-1].data["status"] == "graded"
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_a_failed_try_is_reported(tmp_path, scripted, run_scripted):
    events = []
    scripted.failures["upload"] = [SandboxLost("gone")]
    run_scripted(write_task(tmp_path / "task"), observe=events.append)
    [failure] = [event for event in events if event.kind == "attempt_failed"]
    assert failure.message == "gone"
    assert failure.data == {
        "try": 1,
        "failure_kind": "harbor:sandbox_lost",
        "will_retry": True,
    }
    starts = [event.data for event in events if event.kind == "attempt_started"]
    assert starts == [{"try": 1}, {"try": 2}]


def test_results_and_events_survive_json(tmp_path, scripted, run_scripted):
    events = []
    scripted.failures["upload"] = [SandboxLost("gone")]
    task = write_steps_task(
        tmp_path / "task",
        toml='[[steps]]\nname = "a"\nmin_reward = {reward = 0.5}\n'
        '[[steps]]\nname = "b"\n',
        files={"steps/a/instruction.md": "a", "steps/b/instruction.md": "b"},
    )
    result = run_scripted(task, "oracle", observe=events.append)
    assert len(result.turns) == 2
    assert len(result.failed_attempts) == 1
    text = json.dumps(result_to_plain(result), allow_nan=False)
    assert result_from_plain(json.loads(text)) == result
    for event in events:
        text = json.dumps(asdict(event), allow_nan=False)
        assert Event(**json.loads(text)) == event


def test_durations_cover_every_phase(tmp_path, run_scripted):
    result = run_scripted(write_task(tmp_path / "task"))
    assert list(result.durations) == ["seed", *PHASES, "cleanup"]
    assert list(result.turns[0].durations) == list(PHASES)
    assert 0 <= sum(result.durations.values()) <= result.seconds


@pytest.mark.parametrize(
    ("keep", "reward", "kept"),
    [
        ("never", "0", False),
        ("failed", "1", False),
        ("failed", "0.5", True),
        ("always", "1", True),
    ],
)
def test_keep(tmp_path, scripted, run_scripted, keep, reward, kept):

    def answer(command):
        command.sandbox.files["/logs/verifier/reward.txt"] = reward.encode()
        return OK

    scripted.answer = answer
    result = run_scripted(write_task(tmp_path / "task"), keep=keep)
    assert bool(scripted.left_up) is kept
    assert result.kept_sandboxes == tuple(f"enter {name}" for name in scripted.left_up)


def test_keep_keeps_both_sandboxes_of_a_separate_verification(
    tmp_path, scripted, run_scripted
):
    task = write_task(tmp_path / "task", '[verifier]\nenvironment_mode = "separate"\n')
    result = run_scripted(task, keep="always")
    assert len(result.kept_sandboxes) == 2


def test_what_cannot_be_kept_is_ended_and_said(tmp_path, scripted, run_scripted):
    scripted.failures["keep"] = [UnsupportedByProvider("ends with the session")]
    result = run_scripted(write_task(tmp_path / "task"), keep="always")
    assert scripted.left_up == []
    assert result.kept_sandboxes == ()
    assert "not kept: ends with the session" in result.warnings


def test_a_try_that_is_tried_again_keeps_nothing(tmp_path, scripted, run_scripted):
    scripted.failures["upload"] = [SandboxLost("gone")]
    result = run_scripted(write_task(tmp_path / "task"), keep="always")
    assert len(scripted.started) == 2
    assert scripted.left_up == [scripted.started[1].id]
    assert len(result.kept_sandboxes) == 1


def test_warnings_of_the_plan_are_in_the_result(tmp_path, run_scripted):
    result = run_scripted(write_task(tmp_path / "task", "unknown_key = 1\n"))
    assert any("unknown_key" in warning for warning in result.warnings)


def test_hooks_and_artifacts_that_fail_change_no_outcome(
    tmp_path, scripted, run_scripted
):

    task = write_task(
        tmp_path / "task",
        'artifacts = ["/app/missing"]\n[[verifier.collect]]\ncommand = "dump"\n',
    )
    scripted.answer = lambda command: (
        ExecResult(1, "", "") if command.text == "dump" else passing(command)
    )
    result = run_scripted(task)
    assert (result.status, result.reward) == ("graded", 1.0)
    hook, artifact = result.turns[0].warnings
    assert hook == "collect hook 'dump' ended with exit code 1"
    assert artifact == "artifact /app/missing: failed: No such file or directory"


def test_many_at_once_in_one_event_loop(tmp_path):
    """Fifty episodes share a provider and nothing else."""
    provider = ScriptedProvider()
    plan = plan_episode(
        load_task(write_task(tmp_path / "task")), Settings(), agent="nop"
    )
    results = {}

    async def one(number):
        logs = tmp_path / "logs" / str(number)
        results[number] = await run(plan, provider, NopAgent(), logs=logs)

    async def main():
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)

    anyio.run(main)
    assert {result.reward for result in results.values()} == {1.0}
    assert len({sandbox.id for sandbox in provider.started}) == 50
    assert provider.left_up == []


def test_the_package_exposes_run_lazily():
    from pytest_harbor import episodes

    assert episodes.run is run
    with pytest.raises(AttributeError):
        episodes.walk  # noqa: B018


def test_logs_of_an_earlier_run_never_count(tmp_path, scripted, run_scripted):
    task = write_task(tmp_path / "task")
    first = run_scripted(task)
    assert (first.turns[0].logs / "verifier" / "reward.txt").exists()
    scripted.answer = lambda command: ExecResult(1, "", "")
    second = run_scripted(task)
    assert second.turns[0].logs == first.turns[0].logs
    assert (second.turns[0].status, second.reward) == ("no_reward", 0.0)


SECRET = "s3cr3t-of-the-host"


@pytest.mark.parametrize("reward", [{"a": SECRET}, {SECRET: 1}])
@pytest.mark.parametrize("action", ["verify", "fail"])
def test_secrets_are_masked_wherever_text_leaves(
    tmp_path, scripted, run_scripted, action, reward
):
    """In errors, warnings, messages, inner tests, events: by value, everywhere."""
    task = write_task(
        tmp_path / "task",
        '[verifier.env]\nKEY = "${KEY}"\n[[verifier.collect]]\ncommand = "fail"\n',
    )

    class Leaking(NopAgent):
        async def run(self, turn):
            (turn.logs / f"{SECRET}.log").write_text(SECRET)
            raise AgentError(f"refused key {SECRET}", kind=f"agent_{SECRET}")

    def answer(command):
        files = command.sandbox.files
        if "test.sh" in command.text:
            assert command.env == {"KEY": SECRET}
            test = {"name": SECRET, "status": SECRET, "message": SECRET}
            report = json.dumps({"results": {"tests": [test]}}).encode()
            files["/logs/verifier/ctrf.json"] = report
            files["/logs/verifier/reward.json"] = json.dumps(reward).encode()
        return ExecResult(1, f"said {SECRET}", SECRET)

    scripted.answer = answer
    events = []
    result = run_scripted(
        task,
        Leaking(),
        observe=events.append,
        environ={"KEY": SECRET},
        settings={"agent_outcome_policy": (f"default = {action}",)},
    )
    shown = [json.dumps(result_to_plain(result))]
    shown += [json.dumps(asdict(event)) for event in events]
    shown += map(str, result.logs.rglob("*"))
    shown += [path.read_text() for path in result.logs.rglob("*") if path.is_file()]
    assert any("***" in text for text in shown)
    assert not [text for text in shown if SECRET in text]


def test_what_a_provider_says_is_masked(tmp_path, scripted, run_scripted):
    error = SandboxStartFailed(f"no access with {SECRET}")
    error.kind = f"vendor:{SECRET}"
    scripted.failures["start"] = [error]
    task = write_task(tmp_path / "task", '[environment.env]\nKEY = "${KEY}"\n')
    settings = {"retries": 0}
    result = run_scripted(task, environ={"KEY": SECRET}, settings=settings)
    assert (result.failure_kind, result.failure_reason) == (
        "vendor:***",
        "no access with ***",
    )
    assert SECRET not in json.dumps(result_to_plain(result))


def test_final_message_is_masked_in_the_result_only(tmp_path, scripted, run_scripted):
    class Leaking(NopAgent):
        async def run(self, turn):
            return AgentResult(text=f"the key is {SECRET}")

    task = write_task(tmp_path / "task", '[verifier.env]\nKEY = "${KEY}"\n')
    result = run_scripted(task, Leaking(), environ={"KEY": SECRET})
    assert result.turns[0].response == "the key is ***"


def test_the_solutions_variables_are_the_oracles_alone(tmp_path, run_scripted):
    seen = []

    class Curious(NopAgent):
        async def run(self, turn):
            seen.append(turn.env)

    task = write_task(tmp_path / "task", '[solution.env]\nANSWER = "42"\n')
    run_scripted(task, Curious())
    assert seen == [{}]


def test_a_reward_file_without_the_headline_key_says_so(
    tmp_path, scripted, run_scripted
):
    def answer(command):
        if "test.sh" in command.text:
            command.sandbox.files["/logs/verifier/reward.json"] = b'{"style": 1}'
        return ExecResult(0, "", "")

    scripted.answer = answer
    [turn] = run_scripted(write_task(tmp_path / "task")).turns
    assert turn.headline_problem.startswith(
        "reward.json has no key 'reward' (only 'style')"
    )
    assert turn.warnings == (f"{turn.headline_problem}; it counts as 0.0",)


class TestLimits:
    TOML = "[environment]\nmemory_mb = 512\n"

    def test_what_ran_out_of_memory_is_told_by_phase(
        self, tmp_path, scripted, run_scripted
    ):
        def answer(command):
            command.sandbox.oom_kills += 2 if "test.sh" in command.text else 0
            return passing(command)

        class Hungry(NopAgent):
            async def run(self, turn):
                turn.sandbox.oom_kills += 1

        scripted.answer = answer
        task = write_task(tmp_path / "task", self.TOML)
        result = run_scripted(task, Hungry())
        assert (result.status, result.reward) == ("graded", 1.0)
        assert result.turns[0].warnings == (
            "out of memory in phase agent: 1 process was killed (memory_mb = 512)",
            "out of memory in phase verify: 2 processes were killed (memory_mb = 512)",
        )

    def test_in_a_sandbox_of_the_verifiers_own(self, tmp_path, scripted, run_scripted):
        def answer(command):
            command.sandbox.oom_kills += 1
            return passing(command)

        scripted.answer = answer
        toml = '[verifier]\nenvironment_mode = "separate"\n'
        result = run_scripted(write_task(tmp_path / "task", toml))
        assert "out of memory in phase verify: 1 process was killed" in (
            result.turns[0].warnings
        )

    def test_limits_that_are_none_are_told_once(self, tmp_path, scripted, run_scripted):
        scripted.unenforced = ("storage_mb (no quota here)",)
        toml = '[verifier]\nenvironment_mode = "separate"\n'
        result = run_scripted(write_task(tmp_path / "task", toml))
        assert result.status == "graded"
        told = [line for line in result.warnings if "not enforced" in line]
        assert told == ["not enforced: storage_mb (no quota here)"]
