"""Whole episodes in real local sandboxes."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import anyio
import pytest

from episode_runs import run_folder
from pytest_harbor.episodes.plain_data import result_to_plain
from pytest_harbor.errors import SandboxStartFailed
from pytest_harbor.sandboxes.api import Provider, Swept
from pytest_harbor.sandboxes.output import MAX_LOG_BYTES, log_cut
from task_folders import write_steps_task, write_task

CHECK_ANSWER = (
    "if grep -qx 42 answer.txt; then echo 1; else echo 0; fi"
    " > /logs/verifier/reward.txt"
)


class Shell:
    """An agent that runs one shell command, as a plain blocking function."""

    name = "shell"

    def __init__(self, command):
        self.command = command

    def run(self, turn):
        result = turn.sandbox.exec(self.command)
        assert result.ok, result.output


def is_running(marker: str) -> bool:
    """Whether any process of this machine has ``marker`` as an argument."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if marker.encode() in arguments:
            return True
    return False


def all_text(folder: Path) -> bytes:
    return b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())


def test_oracle_passes_and_nop_does_not(tmp_path, run_local):
    task = write_task(
        tmp_path / "task", test=CHECK_ANSWER, solve="echo solving; echo 42 > answer.txt"
    )
    solved = run_local(task, "oracle", logs=tmp_path / "solved")
    assert (solved.status, solved.reward, solved.validated) == ("graded", 1.0, True)
    assert solved.verifier_rewards == {"reward": 1.0}
    assert solved.sandbox == "local"
    assert solved.isolation
    [turn] = solved.turns
    assert (turn.name, turn.tests_from, turn.reward_file) == ("task", "folder", "txt")
    assert (turn.agent_exit_code, turn.verifier_exit_code) == (0, 0)
    assert (turn.logs / "agent" / "oracle.txt").read_text() == "solving\n"

    idle = run_local(task, "nop", logs=tmp_path / "idle")
    assert (idle.status, idle.reward, idle.validated) == ("graded", 0.0, None)
    assert "answer.txt" in idle.turns[0].verifier_output_tail


def test_oracle_without_a_script_does_nothing_and_says_so(tmp_path, run_local):
    task = write_task(tmp_path / "task", test=CHECK_ANSWER)
    result = run_local(task, "oracle")
    assert (result.reward, result.validated) == (0.0, False)
    assert result.turns[0].warnings == (
        "task has no solution/: the oracle did nothing",
    )


def test_failing_solution_decides_nothing(tmp_path, run_local):
    task = write_task(
        tmp_path / "task", test=CHECK_ANSWER, solve="echo 42 > answer.txt; exit 7"
    )
    result = run_local(task)
    assert (result.reward, result.turns[0].agent_exit_code) == (1.0, 7)


def test_environments_reach_the_scripts_they_are_for(tmp_path, run_local):
    task = write_task(
        tmp_path / "task",
        '[environment.env]\nEVERYWHERE = "e"\n[verifier.env]\nGRADE = "0.25"\n'
        '[solution.env]\nANSWER = "42"\n',
        test='test "$EVERYWHERE" = e && test -z "$ANSWER" && test -z "$HOST_ONLY" &&'
        ' test "$(cat answer.txt)" = 42e && echo "$GRADE" > /logs/verifier/reward.txt',
        solve='test -z "$GRADE" && echo "$ANSWER$EVERYWHERE" > answer.txt',
    )
    result = run_local(task, environ={"HOST_ONLY": "x"})
    assert result.reward == 0.25


PLANTS = {
    "file": "echo 1 > /logs/verifier/reward.txt",
    "json": """echo '{"reward": 1}' > /logs/verifier/reward.json""",
    "read-only": "echo 1 > /logs/verifier/reward.txt; chmod 0 /logs/verifier/reward.txt;"
    " chmod 0555 /logs/verifier",
    "immutable": "echo 1 > /logs/verifier/reward.txt;"
    " chattr +i /logs/verifier/reward.txt || true",
    "folder": "mkdir -p /logs/verifier/reward.json/x; echo 1 > /logs/verifier/reward.txt",
    "link": "echo 1 > /app/reward; ln -s /app/reward /logs/verifier/reward.txt",
    "linked folder": "mkdir /app/v; echo 1 > /app/v/reward.txt;"
    " rm -r /logs/verifier; ln -s /app/v /logs/verifier",
    "file for folder": "rm -r /logs/verifier; echo 1 > /logs/verifier",
    "tests": "mkdir -p /tests/lib; echo 'echo 1 > /logs/verifier/reward.txt' >"
    " /tests/lib/grade.sh",
    "linked tests": "mkdir /app/t; ln -s /app/t /tests;"
    " mkdir /app/t/lib; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/lib/grade.sh",
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_reward_never_counts(tmp_path, run_local, plant):
    silent = "[ -f /tests/lib/grade.sh ] && bash /tests/lib/grade.sh; true"
    task = write_task(tmp_path / "task", test=silent)
    result = run_local(task, Shell(PLANTS[plant]), logs=tmp_path / "silent")
    assert (result.status, result.reward) == ("graded", 0.0)
    assert result.failure_kind == "harbor:no_reward_file"

    honest = write_task(
        tmp_path / "honest", test=f"{silent}\necho 0.25 > /logs/verifier/reward.txt"
    )
    result = run_local(honest, Shell(PLANTS[plant]), logs=tmp_path / "honest-logs")
    assert (result.status, result.reward) == ("graded", 0.25)


def test_agent_timeout_kills_everything_and_is_graded(tmp_path, run_local):
    marker = "271828.18"
    task = write_task(
        tmp_path / "task",
        "[agent]\ntimeout_sec = 0.5\n",
        test=CHECK_ANSWER,
        solve="echo 42 > answer.txt; echo started\n"
        f"setsid sh -c 'sleep {marker} & sleep {marker}' &\n"
        f'trap "" TERM; sleep {marker}; echo 0 > answer.txt',
    )
    started = time.monotonic()
    result = run_local(task)
    assert time.monotonic() - started < 30
    assert (result.status, result.reward) == ("graded", 1.0)
    [turn] = result.turns
    assert turn.agent_timed_out
    assert "ran out of its 0.5 s" in turn.warnings[0]
    assert (turn.logs / "agent" / "oracle.txt").read_text() == "started\n"
    assert not is_running(marker)


@pytest.mark.slow
def test_blocking_agent_loses_its_sandbox_with_its_budget(tmp_path, run_local):
    marker = "161803.39"
    task = write_task(tmp_path / "task", "[agent]\ntimeout_sec = 0.2\n")
    result = run_local(task, Shell(f"sleep {marker}"))
    assert (result.status, result.reward) == ("graded", 1.0)
    assert result.turns[0].agent_timed_out
    assert not is_running(marker)


class TestVerifier:
    def test_timeout_beside_a_valid_file(self, tmp_path, run_local):
        marker = "141421.35"
        task = write_task(
            tmp_path / "task",
            "[verifier]\ntimeout_sec = 0.5\n",
            test=f"echo 0.75 > /logs/verifier/reward.txt; sleep {marker}",
        )
        result = run_local(task, "nop")
        assert (result.status, result.reward) == ("graded", 0.75)
        assert result.turns[0].verifier_timed_out
        assert not is_running(marker)

    def test_timeout_without_a_file(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task",
            "[verifier]\ntimeout_sec = 0.2\n",
            test="echo thinking; sleep 60",
        )
        result = run_local(task, "nop")
        assert (result.status, result.reward) == ("graded", 0.0)
        assert result.failure_reason == (
            "no reward: test.sh ran out of its 0.2 s and wrote neither reward.json "
            "nor reward.txt"
        )
        assert result.turns[0].verifier_output_tail == "thinking"

    def test_exit_code_is_shown_and_decides_nothing(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task", test="echo 1 > /logs/verifier/reward.txt; exit 3"
        )
        result = run_local(task, "nop")
        assert (result.reward, result.turns[0].verifier_exit_code) == (1.0, 3)

    def test_tools_that_the_agent_removed(self, tmp_path, run_local):
        task = write_task(tmp_path / "task")
        result = run_local(task, Shell("rm -f /bin/bash /usr/bin/bash"))
        assert (result.status, result.reward) == ("graded", 0.0)
        assert result.failure_kind == "harbor:no_reward_file"

    def test_windows_line_ends_are_named(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task",
            test="set -e\r\necho 1 > /logs/verifier/reward.txt\r\n",
        )
        result = run_local(task, "nop")
        assert result.reward == 0.0
        assert "Windows line ends (CRLF)" in result.failure_reason

    def test_invalid_file_names_the_key(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task",
            test="""echo '{"reward": "high"}' > /logs/verifier/reward.json""",
        )
        result = run_local(task, "nop")
        assert result.failure_kind == "harbor:invalid_reward_file"
        assert "key 'reward' is a string" in result.failure_reason

    def test_reward_that_is_a_link_out(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task",
            test="ln -s /app/reward.json /logs/verifier/reward.json\n"
            "echo 1 > /logs/verifier/reward.txt",
        )
        result = run_local(task, "nop")
        assert (result.reward, result.failure_kind) == (
            0.0,
            "harbor:invalid_reward_file",
        )

    def test_script_with_an_output_file_of_its_own(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task",
            test="echo captured\n"
            "echo own > /logs/verifier/test-stdout.txt\n"
            "echo 1 > /logs/verifier/reward.txt",
        )
        folder = run_local(task, "nop").turns[0].logs / "verifier"
        assert (folder / "test-stdout.txt").read_text() == "own\n"
        assert (folder / "captured-stdout.txt").read_text() == "captured\n"

    def test_script_that_redirects_everything(self, tmp_path, run_local):
        task = write_task(
            tmp_path / "task",
            test="exec > /logs/verifier/test-stdout.txt 2>&1\necho own",
        )
        turn = run_local(task, "nop").turns[0]
        assert turn.verifier_output_tail == "own"
        assert not (turn.logs / "verifier" / "captured-stdout.txt").exists()

    def test_odd_bytes_are_kept(self, tmp_path, run_local):
        odd = bytes(range(256)) * 3
        task = write_task(
            tmp_path / "task",
            test="cat /tests/odd; echo 1 > /logs/verifier/reward.txt",
            files={"tests/odd": odd},
        )
        result = run_local(task, "nop")
        log = result.turns[0].logs / "verifier" / "test-stdout.txt"
        assert log.read_bytes() == odd
        assert json.dumps(result_to_plain(result))

    def test_inner_tests_of_a_ctrf_report(self, tmp_path, run_local):
        report = json.dumps(
            {"results": {"tests": [{"name": "test_it", "status": "failed"}]}}
        )
        task = write_task(
            tmp_path / "task",
            test="cp /tests/report /logs/verifier/ctrf.json;"
            " echo 0 > /logs/verifier/reward.txt",
            files={"tests/report": report},
        )
        [inner] = run_local(task, "nop").turns[0].inner_tests
        assert (inner.name, inner.status) == ("test_it", "failed")


def test_separate_verifier_sees_no_trace_of_the_agent(tmp_path, run_local):
    task = write_task(
        tmp_path / "task",
        'artifacts = ["answer.txt"]\n[verifier]\nenvironment_mode = "separate"\n',
        test="set -e\ngrep -qx 42 /app/answer.txt\n"
        "for p in /app/other /logs/agent/trace /solution /tmp/trace; do\n"
        '  [ ! -e "$p" ]\ndone\necho 1 > /logs/verifier/reward.txt',
        solve="echo 42 > answer.txt; touch other /logs/agent/trace /tmp/trace",
    )
    result = run_local(task)
    assert (result.reward, result.verifier_mode) == (1.0, "separate")
    turn = result.turns[0]
    assert turn.artifact("answer.txt").read_text() == "42\n"
    assert (turn.logs / "agent" / "trace").exists()


def test_a_flood_of_output_is_cut_and_its_end_is_still_shown(tmp_path, run_local):
    flood = f"yes | head -c {MAX_LOG_BYTES + 10_000_000}; echo the end; exit 1"
    result = run_local(write_task(tmp_path / "task", test=flood), "nop")
    [turn] = result.turns
    assert turn.verifier_output_tail.endswith("y\nthe end")
    log = turn.logs / "verifier" / "test-stdout.txt"
    assert log.stat().st_size < MAX_LOG_BYTES + 100
    with log.open("rb") as file:
        file.seek(-100, 2)
        assert file.read().decode().endswith(f"\n{log_cut()}\n")


def test_secrets_are_nowhere(tmp_path, run_local):
    secret = "s3cr3t-value-of-the-run"
    task = write_task(
        tmp_path / "task",
        '[environment.env]\nKEY = "${KEY}"\n',
        test='echo "graded with $KEY"; echo "$KEY" > /logs/verifier/notes.txt; exit 1',
        solve='echo "solving with $KEY"; echo "$KEY" > /logs/agent/own.log;'
        ' mkdir -p /logs/artifacts; echo "$KEY" > /logs/artifacts/kept',
    )
    events = []
    result = run_local(task, observe=events.append, environ={"KEY": secret})
    assert result.status == "graded"
    assert "graded with ***" in result.turns[0].verifier_output_tail
    assert (result.turns[0].logs / "agent" / "own.log").read_text() == "***\n"
    assert secret.encode() not in all_text(result.logs)
    assert secret not in json.dumps(result_to_plain(result))
    assert secret not in json.dumps([asdict(event) for event in events])


def test_steps_with_workdir_setup_and_users(tmp_path, run_local):
    task = write_steps_task(
        tmp_path / "task",
        toml='[[steps]]\nname = "a"\n[steps.agent]\nuser = "nobody"\n'
        '[[steps]]\nname = "b"\n[steps.verifier.env]\nSTEP = "b"\n',
        test='. ./check.sh; echo "$GRADE" > /logs/verifier/reward.txt',
        files={
            "steps/a/instruction.md": "a",
            "steps/b/instruction.md": "b",
            "steps/a/workdir/setup.sh": "id -un > who; echo GRADE=0.5 > check.sh",
            "steps/a/solution/solve.sh": "[ $(cat who) = nobody ] && id -un > solver",
            "steps/b/workdir/check.sh": "[ $(cat solver) = nobody ] && GRADE=1\n"
            '[ "$STEP" = b ] || GRADE=0\n[ -e root ] || GRADE=0',
            "steps/b/solution/solve.sh": "[ $(id -u) = 0 ] && touch root",
        },
    )
    result = run_local(task)
    assert [turn.reward for turn in result.turns] == [0.5, 1.0]
    assert (result.reward, result.validated) == (0.75, True)


class TestPythonVerifier:
    """The generated script in a sandbox; its contract is tested on its own."""

    SOURCE = (
        "from pathlib import Path\n"
        "import expected\n"
        "def verify(workspace, task_data, response=None):\n"
        "    answer = Path(workspace, 'answer.txt')\n"
        "    given = answer.read_text() if answer.exists() else response['output_text']\n"
        "    return {'reward': given.strip() == expected.ANSWER, 'n': task_data['n']}\n"
    )

    def write(self, tmp_path, **options):
        options.setdefault("files", {})
        options["files"] = {
            "tests/verifier.py": self.SOURCE,
            "tests/expected.py": "ANSWER = '42'",
            "task_data.json": '{"n": 3}',
            **options["files"],
        }
        return write_task(tmp_path / "task", test=None, **options)

    def test_grades_the_workspace(self, tmp_path, run_local):
        result = run_local(self.write(tmp_path, solve="echo 42 > answer.txt"))
        assert result.verifier_rewards == {"reward": 1.0, "n": 3.0}
        assert result.turns[0].reward_file == "json"

    def test_grades_the_reference_answer(self, tmp_path, run_local):
        result = run_local(self.write(tmp_path, files={"solution/answer.md": "42"}))
        assert (result.reward, result.validated) == (1.0, True)
        assert result.turns[0].response == "42"

    def test_error_of_its_own_is_a_measured_zero(self, tmp_path, run_local):
        result = run_local(self.write(tmp_path), "nop")
        assert (result.status, result.reward) == ("graded", 0.0)
        assert "TypeError" in result.turns[0].verifier_output_tail


class FailsOnce(Provider):
    """A provider whose first sandbox cannot be started."""

    name = "local"

    def __init__(self, inner):
        self.inner = inner
        self.starts = 0

    async def probe(self):
        return await self.inner.probe()

    def check(self, spec, users):
        self.inner.check(spec, users)

    async def start(self, spec, **options):
        self.starts += 1
        if self.starts == 1:
            raise SandboxStartFailed("the disk was full")
        return await self.inner.start(spec, **options)

    async def sweep(self):
        return Swept()

    async def aclose(self):
        pass


def test_an_outage_is_tried_again(tmp_path, local, portal):
    task = write_task(
        tmp_path / "task", test=CHECK_ANSWER, solve="echo 42 > answer.txt"
    )
    result = portal.call(
        partial(run_folder, FailsOnce(local), task, "oracle", logs=tmp_path / "logs")
    )
    assert (result.status, result.reward) == ("graded", 1.0)
    assert len(result.failed_attempts) == 1


def test_a_cancelled_episode_leaves_no_process(tmp_path, local, portal):
    marker = "173205.08"
    task = write_task(tmp_path / "task")

    class Working:
        name = "working"

        def __init__(self):
            self.is_at_work = anyio.Event()

        async def run(self, turn):
            await turn.sandbox.spawn(["setsid", "sleep", marker])
            self.is_at_work.set()
            await turn.sandbox.exec(["sleep", marker])

    async def main():
        agent = Working()
        async with anyio.create_task_group() as group:
            group.start_soon(
                partial(run_folder, local, task, agent, logs=tmp_path / "logs")
            )
            await agent.is_at_work.wait()
            group.cancel_scope.cancel()

    portal.call(main)
    assert not is_running(marker)


@pytest.mark.slow
def test_fifty_at_once_in_one_event_loop(tmp_path, local, portal):
    task = write_task(
        tmp_path / "task",
        test=CHECK_ANSWER,
        solve='[ ! -e answer.txt ] && echo 42 > answer.txt; echo "$$"',
    )
    results = {}

    async def one(number):
        logs = tmp_path / "logs" / str(number)
        results[number] = await run_folder(local, task, "oracle", logs=logs)

    async def main():
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)

    portal.call(main)
    assert [results[n].reward for n in range(50)] == [1.0] * 50
    assert not any(result.failed_attempts for result in results.values())
