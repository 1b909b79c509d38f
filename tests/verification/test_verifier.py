"""Running a verifier: what goes in, what comes out, what an agent cannot spoil."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.errors import TransferFailed
from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.sandboxes.output import Masker
from pytest_harbor.tasks.folder.plan_types import InputFolder, VerifierPlan
from pytest_harbor.verification.verifier import (
    VerifierInputs,
    dropped_rewards,
    has_windows_line_ends,
    output_tail,
    verify,
)
from scripted_sandbox import OK, ScriptedProvider, ScriptedSandbox, passing
from task_folders import write_task


@pytest.fixture
def provider():
    return ScriptedProvider()


@pytest.fixture
def tests(tmp_path):
    return write_task(tmp_path / "task") / "tests"


@pytest.fixture
def run(provider, tests, tmp_path):
    def run_it(inputs=VerifierInputs(), **plan):  # noqa: B008 - frozen
        plan.setdefault("tests", (InputFolder(tests),))
        made = VerifierPlan(mode="shared", budget_seconds=0.5, **plan)
        logs = tmp_path / "logs"
        (logs / "verifier").mkdir(parents=True)

        async def main():
            sandbox = ScriptedSandbox(provider, "box")
            provider.started.append(sandbox)
            return await verify(
                sandbox, made, inputs, logs=logs, masker=Masker(["hunter22"])
            )

        return anyio.run(main)

    return run_it


def test_script_runs_under_timeout_with_user_and_env(provider, run):
    run(VerifierInputs(env={"A": "1"}), user="grader")
    [command] = provider.commands
    assert command.argv == ["timeout", "6", "bash", "/tests/test.sh"]
    assert (command.user, command.env) == ("grader", {"A": "1"})
    assert command.timeout_seconds == 0.5
    assert command.cwd is None


def test_wipe_tests_and_transcript_are_one_transfer(provider, run):
    run(VerifierInputs(trajectory={"steps": []}))
    transfers = [text for what, text in provider.calls if what == "upload"]
    assert transfers == [
        "['/tests', '/logs/agent/trajectory.json'] empty=['/logs/verifier', '/tests']"
    ]


def test_excluded_files_stay_behind(provider, tests, run):
    (tests / "notes.md").write_text("for maintainers")
    run(tests=(InputFolder(tests, frozenset({"notes.md"})),))
    assert "/tests/test.sh" in provider.started[0].files
    assert "/tests/notes.md" not in provider.started[0].files


def test_later_layers_lie_on_top(provider, tests, tmp_path, run):
    step = tmp_path / "step"
    step.mkdir()
    (step / "test.sh").write_text("the step's")
    (tests / "shared").write_text("the task's")
    run(tests=(InputFolder(tests), InputFolder(step)))
    files = provider.started[0].files
    assert files["/tests/test.sh"] == b"the step's"
    assert files["/tests/shared"] == b"the task's"


def test_blocked_transcript_gives_nobody_a_second_try(provider, run):
    provider.failures["upload"] = [TransferFailed("a folder", blocked=True)]
    done = run(VerifierInputs(trajectory={}))
    assert done.reading.reward == 1.0
    assert "transcript was not written" in done.warnings[0]


@pytest.mark.parametrize("trajectory", [None, {}])
def test_other_transfers_that_fail_are_outages(provider, run, trajectory):
    provider.failures["upload"] = [TransferFailed("pipe", blocked=trajectory is None)]
    with pytest.raises(TransferFailed):
        run(VerifierInputs(trajectory=trajectory))


def test_agent_that_floods_its_logs_loses_only_them(provider, run):
    provider.too_big = frozenset({"/logs"})
    done = run()
    assert done.reading.reward == 1.0
    assert done.warnings == ("the agent's logs were not saved: more than 9 bytes",)


def test_logs_of_the_verifier_that_are_cut_are_told(provider, run):
    provider.too_big = frozenset({"/logs", "/logs/verifier"})
    done = run()
    assert not done.reading.is_valid
    assert "verifier's logs are not complete" in done.warnings[-1]


def test_warnings_about_the_reward_are_passed_on(provider, run):
    def answer(command):
        command.sandbox.files["/logs/verifier/reward.json"] = b'{"style": 1}'
        return OK

    provider.answer = answer
    assert "'style'" in run().warnings[0]


def test_output_tail_is_masked_and_short(provider, run):
    lines = "\n".join(f"line {n} hunter22" for n in range(100))
    provider.answer = lambda command: ExecResult(1, lines, "")
    tail = run().output_tail.splitlines()
    assert len(tail) == 30
    assert tail[-1] == "line 99 ***"


def test_inner_tests_come_along(provider, run):
    def answer(command):
        report = b'{"results": {"tests": [{"name": "t", "status": "failed"}]}}'
        command.sandbox.files["/logs/verifier/ctrf.json"] = report
        return passing(command)

    provider.answer = answer
    assert [test.name for test in run().inner_tests] == ["t"]


@pytest.mark.parametrize(
    ("dropped", "below", "names"),
    [
        ((), "", set()),
        (("reward.json: link out: /x",), "", {"reward.json"}),
        (("verifier/reward.txt: devices and FIFOs",), "verifier/", {"reward.txt"}),
        # The agent's own files of that name are not the verifier's.
        (("agent/reward.json: link out: /x", "reward.txt: x"), "verifier/", set()),
        (("sub/reward.json: link out", "my-reward.json: link out"), "", set()),
    ],
)
def test_dropped_rewards(dropped, below, names):
    assert dropped_rewards(dropped, below) == names


def test_windows_line_ends_of_the_script_that_ran(tests, tmp_path):
    (tests / "test.sh").write_bytes(b"echo 1\r\n")
    step = tmp_path / "step"
    step.mkdir()
    layers = (InputFolder(tests), InputFolder(step))
    plan = VerifierPlan(mode="shared", budget_seconds=1, tests=layers)
    assert has_windows_line_ends(plan)
    (step / "test.sh").write_bytes(b"echo 1\n")
    assert not has_windows_line_ends(plan)


def test_output_tail_of_nothing(tmp_path):
    assert output_tail(tmp_path) == ""
