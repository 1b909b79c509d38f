"""Several turns in real local sandboxes: spec 7, 8, 12, 13 and 15."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from step_agents import PerStep

from task_folders import write_steps_task

REWARD = "echo 1 > /logs/verifier/reward.txt"
SEPARATE = '[steps.verifier]\nenvironment_mode = "separate"\n'
GRADING = "/tests /logs/verifier /logs/agent"

# Answers each line that is written to /tmp/ask, long after its turn is over.
SERVER = (
    "mkfifo /tmp/ask /tmp/answer; setsid sh -c"
    " 'while read line </tmp/ask; do echo \"got $line\" >/tmp/answer; done'"
    " >/dev/null 2>&1 &"
)
ASK_SERVER = "echo hello > /tmp/ask; timeout 20 cat /tmp/answer"


SETUPS = {
    "exit code": ("echo no package >&2; exit 3", {}, "ended with exit code 3: no"),
    "own bound": (
        "sleep 60",
        {"step_setup_timeout_s": 0.3},
        "ran out of its 0.3 s",
    ),
    "agent's budget": ("sleep 60", {}, "ran out of its 0.5 s"),
    "no bash": ("\x7fELF", {}, "ended with exit code 126"),
}


def write(folder: Path, steps: dict[str, str], *, toml: str = "", **options) -> Path:
    """A task whose steps have the keys that ``steps`` gives them."""
    tables = [f'[[steps]]\nname = "{name}"\n{keys}' for name, keys in steps.items()]
    files = {f"steps/{name}/instruction.md": f"Do {name}." for name in steps}
    files.update(options.pop("files", {}))
    return write_steps_task(folder, toml=toml + "".join(tables), files=files, **options)


def statuses(result):
    return [turn.status for turn in result.turns]


class TestCleanUp:
    LOOK = f"find {GRADING} -mindepth 1 2>/dev/null | sort"

    def test_after_a_shared_turn_only_its_grading_files_go(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {"a": "", "b": ""},
            test=f"touch /tests/made /logs/verifier/notes; {REWARD}",
            files={"tests/data/deep": "x"},
        )
        agent = PerStep(
            {
                "a": "touch /app/left /tmp/left /logs/agent/notes /logs/artifacts/kept;"
                f" {SERVER}",
                "b": f"{self.LOOK}; ls -d /app/left /tmp/left /logs/artifacts/kept;"
                f" {ASK_SERVER}",
            },
            transcript=True,
        )
        result = run_local(task, agent)
        assert result.status == "graded"
        assert agent.said("b") == [
            "/logs/agent/notes",
            "/app/left",
            "/logs/artifacts/kept",
            "/tmp/left",
            "got hello",
        ]
        # What a turn leaves is not what the next one's transcript is.
        kept = [turn.logs / "agent" / "trajectory.json" for turn in result.turns]
        assert [json.loads(path.read_text()) for path in kept] == [
            {"step": "a"},
            {"step": "b"},
        ]

    PLANT = (
        "mkdir -p /tests;"
        " touch /tests/early /logs/verifier/early /logs/agent/trajectory.json"
    )
    PLANTED = ("/logs/agent/trajectory.json", "/logs/verifier/early", "/tests/early")

    def test_nothing_is_cleaned_before_the_first_turn(self, tmp_path, run_local):
        toml = f"[environment.healthcheck]\ncommand = '{self.PLANT}'\n"
        agent = PerStep({"a": self.LOOK})
        run_local(write(tmp_path / "task", {"a": ""}, toml=toml), agent)
        assert agent.said("a") == list(self.PLANTED)

    def test_nothing_is_cleaned_after_a_separate_turn(self, tmp_path, run_local):
        agent = PerStep({"a": self.PLANT, "b": self.LOOK})
        run_local(write(tmp_path / "task", {"a": SEPARATE, "b": ""}), agent)
        assert agent.said("b") == list(self.PLANTED)

    @pytest.mark.parametrize(
        "plant",
        [
            "echo {} > /logs/agent/trajectory.json",
            "ln -s /etc/hostname /logs/agent/trajectory.json",
            "mkfifo /logs/agent/trajectory.json",
            "mkdir -p /logs/agent/trajectory.json/x",
            "rm -r /logs/agent; touch /logs/agent",
            "mkdir x; touch x/trajectory.json; rm -r /logs/agent; ln -s $PWD/x /logs/agent",
            *(
                f"cd /logs; touch artifacts/trajectory.json; rm -r agent; ln -s {to} agent"
                for to in ("artifacts", "/logs/artifacts")
            ),
        ],
    )
    def test_a_transcript_of_the_agents_own_goes_too(self, tmp_path, run_local, plant):
        agent = PerStep({"a": plant, "b": "ls -ld /logs/agent/trajectory.json"})
        result = run_local(write(tmp_path / "task", {"a": "", "b": ""}), agent)
        assert statuses(result) == ["graded", "graded"]
        assert agent.results["b"].exit_code != 0


class TestPreparation:
    def test_order_user_and_place(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {
                "a": "",
                "b": '[steps.agent]\nuser = "nobody"\n[steps.healthcheck]\n'
                'command = "pwd; echo health $(id -un) >> order"\n',
            },
            test='[ "$(tail -n1 order)" != seed ] && ' + REWARD,
            files={
                "steps/a/workdir/order": "",
                "steps/a/solution/solve.sh": "echo a >> order",
                "steps/b/workdir/order": "seed\n",
                "steps/b/workdir/setup.sh": "echo setup $(id -un) $PWD"
                " $(ls /solution) $(stat -c %U /app) >> order",
                "steps/b/solution/solve.sh": "echo agent $(id -un) >> order;"
                " cat order setup.sh; cp order /logs/artifacts/",
            },
        )
        (task / "steps/b/workdir/order").chmod(0o666)
        result = run_local(task)
        assert statuses(result) == ["graded", "graded"], result
        turn = result.turns[1]
        assert turn.artifact("logs/artifacts/order").read_text().splitlines() == [
            "seed",
            "setup nobody /app solve.sh nobody",
            "health nobody",
            "agent nobody",
        ]
        # The agent can still read setup.sh.
        assert "echo setup" in (turn.logs / "agent" / "oracle.txt").read_text()

    def test_merge(self, tmp_path, run_local):
        files = {
            "steps/b/workdir/data/theirs": "new",
            "steps/b/workdir/data/tool": "#!/bin/sh\n",
            "steps/b/workdir/fresh/file": "x",
            "steps/b/workdir/.hidden": "x",
        }
        task = write(
            tmp_path / "task",
            {"a": '[steps.agent]\nuser = "nobody"\n', "b": ""},
            files=files,
        )
        workdir = task / "steps/b/workdir"
        (workdir / "data/theirs").chmod(0o640)
        (workdir / "data/tool").chmod(0o755)
        (workdir / "fresh/file").chmod(0o604)
        (workdir / ".hidden").chmod(0o600)
        (workdir / "fresh").chmod(0o750)
        look = "data data/mine data/theirs data/tool fresh fresh/file .hidden"
        agent = PerStep(
            {
                "a": "mkdir -m 700 data; echo old | tee data/mine data/theirs",
                "b": f"stat -c '%a %U %n' {look}; cat data/mine data/theirs",
            }
        )
        run_local(task, agent)
        assert agent.said("b") == [
            "700 nobody data",
            "644 nobody data/mine",
            "640 root data/theirs",
            "755 root data/tool",
            "750 root fresh",
            "604 root fresh/file",
            "600 root .hidden",
            "old",
            "new",
        ]

    @pytest.mark.parametrize(
        ("plant", "file"),
        [
            ("mkdir -p data/inner; touch data/inner/x", "data"),
            ("touch data", "data/file"),
            ("cd /; rm -r /app; touch /app", "data"),
        ],
    )
    def test_merge_that_is_blocked(self, tmp_path, run_local, plant, file):
        task = write(
            tmp_path / "task",
            {"a": SEPARATE, "b": "", "c": ""},
            files={f"steps/b/workdir/{file}": "x"},
        )
        agent = PerStep({"a": plant})
        result = run_local(task, agent)
        assert (result.status, result.reward) == ("graded", 0.5)
        assert statuses(result) == ["graded", "prepare_failed"]
        failed = result.turns[1]
        assert failed.failure_kind == "harbor:step_workdir_failed"
        assert "workdir/ cannot be merged" in failed.failure_reason
        assert (failed.reward, failed.verifier_mode) == (0.0, None)
        assert result.stopped_after_turn == "b"
        assert [turn.step for turn in agent.turns] == ["a"]
        assert result.failed_attempts == ()

    @pytest.mark.parametrize("step", ["a", "b"])
    @pytest.mark.parametrize("case", SETUPS)
    def test_setup_that_fails(self, tmp_path, run_local, case, step):
        script, settings, says = SETUPS[case]
        task = write(
            tmp_path / "task",
            {"a": "", "b": ""},
            toml="[agent]\ntimeout_sec = 0.5\n" if case == "agent's budget" else "",
            files={f"steps/{step}/workdir/setup.sh": script},
        )
        agent = PerStep()
        started = time.monotonic()
        result = run_local(task, agent, settings=settings)
        assert time.monotonic() - started < 20
        failed = result.turns[-1]
        assert failed.name == step
        assert says in failed.failure_reason
        if case == "exit code":
            log = failed.logs / "agent" / "setup.txt"
            assert log.read_text() == "no package\n"
        assert result.failure_kind == "harbor:step_setup_failed"
        assert step not in [turn.step for turn in agent.turns]
        if step == "a":
            assert (result.status, result.reward) == ("terminal", None)
            assert [one.terminal for one in result.failed_attempts] == [True]
        else:
            assert (result.status, result.reward) == ("graded", 0.5)
            assert result.failed_attempts == ()

    def test_what_setup_starts_runs_on(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {"a": "", "b": ""},
            files={"steps/a/workdir/setup.sh": SERVER},
        )
        agent = PerStep({"a": ASK_SERVER, "b": ASK_SERVER})
        run_local(task, agent)
        assert agent.said("a") == agent.said("b") == ["got hello"]

    def test_only_a_setup_of_the_steps_own_workdir_is_run(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {"a": "", "b": "", "c": ""},
            files={
                "steps/a/workdir/setup.sh": "echo a >> ran",
                "steps/b/setup.sh": "echo beside >> ran",
                "steps/b/workdir/inner/setup.sh": "echo inner >> ran",
                "steps/c/workdir/setup.sh": "echo c >> ran",
            },
        )
        agent = PerStep({"b": "cat ran setup.sh", "c": "cat ran"})
        run_local(task, agent)
        assert agent.said("b") == ["a", "echo a >> ran"]
        assert agent.said("c") == ["a", "c"]

    @pytest.mark.parametrize("step", ["a", "b"])
    def test_health_check_that_never_passes(self, tmp_path, run_local, step):
        check = (
            "[steps.healthcheck]\ncommand = 'echo try >> tries; echo sick; exit 4'\n"
            "interval_sec = 0.01\nretries = 2\n"
        )
        task = write(tmp_path / "task", {s: check if s == step else "" for s in "ab"})
        result = run_local(task, PerStep())
        assert result.failure_kind == "harbor:step_healthcheck_failed"
        assert (
            "health check never passed (2 attempts, last: exit code 4): sick"
            in result.failure_reason
        )
        expected = ("terminal", None) if step == "a" else ("graded", 0.5)
        assert (result.status, result.reward) == expected

    def test_a_failed_preparation_under_final(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {"a": "", "b": ""},
            toml='multi_step_reward_strategy = "final"\n',
            files={"steps/b/workdir/setup.sh": "exit 1"},
        )
        result = run_local(task, PerStep())
        assert (result.reward, result.verifier_rewards) == (0.0, {"reward": 0.0})
        assert result.turns[0].reward == 1.0


def test_three_things_switch_with_the_user(tmp_path, run_local):
    task = write(
        tmp_path / "task",
        {"a": '[steps.agent]\nuser = "daemon"\n', "b": "", "c": ""},
        toml='[agent]\nuser = "nobody"\n[verifier]\nuser = "bin"\n',
        test=f"id -un > /logs/verifier/who; {REWARD}",
    )
    who = "id -un; stat -c %U /app"
    agent = PerStep(
        {
            "a": f"{who}; mkdir of-a; echo mine > of-a/file",
            "b": f"{who}; stat -c %U of-a of-a/file; cat of-a/file;"
            " echo x 2>/dev/null >> of-a/file || echo read-only; touch own",
            "c": who,
        }
    )
    result = run_local(task, agent)
    assert agent.said("a") == ["daemon", "daemon"]
    # Not recursive, and back to [agent].user.
    assert agent.said("b") == [
        "nobody",
        "nobody",
        "daemon",
        "daemon",
        "mine",
        "read-only",
    ]
    assert agent.said("c") == ["nobody", "nobody"]
    assert [turn.user for turn in agent.turns] == ["daemon", "nobody", "nobody"]
    for turn in result.turns:
        assert (turn.logs / "verifier" / "who").read_text() == "bin\n"


class TestValues:
    @pytest.mark.slow
    def test_budgets_are_the_steps(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {
                "a": "",
                "b": "[steps.agent]\ntimeout_sec = 0.3\n"
                "[steps.verifier]\ntimeout_sec = 0.3\n",
            },
            # The task's own verifier budget is none of a step's.
            toml="[agent]\ntimeout_sec = 20\n[verifier]\ntimeout_sec = 0.01\n",
            test=f"{REWARD}; sleep 0.1",
            files={"steps/b/tests/test.sh": f"{REWARD}; sleep 60"},
        )
        agent = PerStep({"a": "sleep 0.5; echo done", "b": "sleep 60; echo done"})
        result = run_local(task, agent)
        assert [turn.agent_timed_out for turn in result.turns] == [False, True]
        assert [turn.verifier_timed_out for turn in result.turns] == [False, True]
        assert agent.said("a") == ["done"]
        assert result.reward == 1.0

    def test_env_hooks_and_artifacts_are_the_tasks_and_the_steps(
        self, tmp_path, run_local
    ):
        task = write(
            tmp_path / "task",
            {
                "a": "",
                "b": 'artifacts = ["from-step"]\n'
                '[steps.verifier]\nenv = { BOTH = "step", STEP = "step" }\n'
                "[[steps.verifier.collect]]\ncommand = 'echo step >> order'\n",
            },
            toml='artifacts = ["order"]\n'
            '[verifier]\nenv = { BOTH = "task", TASK = "task" }\n'
            "[[verifier.collect]]\ncommand = 'echo task >> order'\n",
            test=f'echo "$BOTH $TASK $STEP" > /logs/verifier/env; {REWARD}',
        )
        result = run_local(task, PerStep({"b": "rm order; touch from-step"}))
        a, b = result.turns
        assert (a.logs / "verifier" / "env").read_text() == "task task \n"
        assert (b.logs / "verifier" / "env").read_text() == "step task step\n"
        assert a.artifact("order").read_text() == "task\n"
        assert b.artifact("order").read_text() == "task\nstep\n"
        assert not a.artifact("from-step").exists()
        assert b.artifact("from-step").exists()


class TestVerification:
    def test_layers_of_tests_and_a_reward_file_per_turn(self, tmp_path, run_local):
        see = "cd /tests; cat who; ls > /logs/verifier/list"
        task = write(
            tmp_path / "task",
            {"a": "", "b": "", "c": ""},
            test=f"{see}; echo 0.5 > /logs/verifier/reward.txt",
            files={
                "tests/who": "task\n",
                "steps/a/tests/who": "a\n",
                "steps/a/tests/only-a": "",
                "steps/b/tests/test.sh": f"{see};"
                """ echo '{"reward": 1, "b": 1}' > /logs/verifier/reward.json""",
                "steps/c/tests/test.sh": see,
            },
        )
        result = run_local(task, PerStep())
        assert [turn.reward_file for turn in result.turns] == ["txt", "json", None]
        assert [turn.verifier_output_tail for turn in result.turns] == [
            "a",
            "task",
            "task",
        ]
        listed = [turn.logs / "verifier" / "list" for turn in result.turns]
        assert [path.read_text().split() for path in listed] == [
            ["only-a", "test.sh", "who"],
            ["test.sh", "who"],
            ["test.sh", "who"],
        ]
        # No file of an earlier turn counted for c.
        assert result.failure_kind == "harbor:no_reward_file"
        assert result.reward == pytest.approx(0.5)
        assert result.verifier_rewards == {
            "reward": pytest.approx(0.5),
            "b": pytest.approx(1 / 3),
        }

    def test_a_separate_turn_leaves_the_agents_sandbox_running(
        self, tmp_path, run_local
    ):
        task = write(
            tmp_path / "task",
            {"a": SEPARATE, "b": SEPARATE, "c": ""},
            toml='artifacts = ["made"]\n',
            test="[ ! -e /app/left ] || echo seen >> /logs/verifier/seen;"
            " cat /app/made /logs/agent/trajectory.json >> /logs/verifier/seen;"
            f" {REWARD}",
        )
        agent = PerStep(
            {
                "a": f"touch left; echo a > made; {SERVER}",
                "b": f"echo b > made; {ASK_SERVER}; cat /logs/agent/trajectory.json",
                "c": ASK_SERVER,
            },
            transcript=True,
        )
        result = run_local(task, agent)
        assert result.verifier_mode == "mixed"
        modes = [turn.verifier_mode for turn in result.turns]
        assert modes == ["separate", "separate", "shared"]
        # The transcript goes to the verifier's sandbox, not to the agent's.
        assert agent.said("b")[0] == "got hello"
        assert "No such file" in agent.said("b")[1]
        assert agent.said("c") == ["got hello"]
        seen = [turn.logs / "verifier" / "seen" for turn in result.turns]
        assert [path.read_text() for path in seen] == [
            'a\n{"step": "a"}',
            'b\n{"step": "b"}',
            'seen\nb\n{"step": "c"}',
        ]

    def test_a_stale_transcript_is_not_this_turns(self, tmp_path, run_local):
        agent = PerStep(
            {"a": "mkdir /logs/agent/trajectory.json", "b": "true"}, transcript=True
        )
        task = write(tmp_path / "task", {"a": SEPARATE, "b": SEPARATE})
        result = run_local(task, agent)
        kept = [turn.logs / "agent" / "trajectory.json" for turn in result.turns]
        assert [json.loads(path.read_text()) for path in kept] == [
            {"step": "a"},
            {"step": "b"},
        ]

    def test_declared_artifacts_can_force_a_sandbox_of_its_own(
        self, tmp_path, run_local
    ):
        task = write(
            tmp_path / "task",
            {"a": 'artifacts = ["made"]\n', "b": ""},
            test=f"[ -e made ] && [ ! -e other ] && {REWARD}",
        )
        agent = PerStep({"a": "touch made other", "b": "rm other"})
        settings = {"separate_verifier_for_artifacts": True}
        result = run_local(task, agent, settings=settings)
        modes = [turn.verifier_mode for turn in result.turns]
        assert modes == ["separate", "shared"]
        assert (result.verifier_mode, result.reward) == ("mixed", 1.0)


def manifest(turn):
    path = turn.logs / "verifier" / "artifacts" / "manifest.json"
    return [
        (row["source"], row["destination"], row["origin"], row["status"])
        for row in json.loads(path.read_text())
    ]


def test_artifacts_of_each_turn(tmp_path, run_local):
    task = write(
        tmp_path / "task",
        {
            "a": "",
            "b": SEPARATE + "[[steps.artifacts]]\n"
            'source = "/srv/tree"\ndestination = "kept/tree"\nexclude = ["*.tmp"]\n'
            "[[steps.artifacts]]\n"
            'source = "/app/other"\ndestination = "app/log"\n'
            "[[steps.artifacts]]\n"
            'source = "/app/missing"\n',
        },
        toml='artifacts = ["/app/log"]\n',
        test="find /srv/tree /app /logs/artifacts -type f 2>/dev/null | sort"
        f" > /logs/verifier/seen; {REWARD}",
    )
    agent = PerStep(
        {
            "a": "echo a > log; echo a > /logs/artifacts/note",
            "b": "echo b > log; echo b > other; mkdir -p /srv/tree/sub;"
            " touch /srv/tree/one /srv/tree/sub/two /srv/tree/x.tmp",
        }
    )
    a, b = run_local(task, agent).turns
    assert manifest(a) == [
        ("/logs/artifacts", "artifacts/logs/artifacts", "convention", "ok"),
        ("/app/log", "artifacts/app/log", "task", "ok"),
    ]
    assert manifest(b) == [
        ("/logs/artifacts", "artifacts/logs/artifacts", "convention", "ok"),
        ("/app/log", "artifacts/app/log", "task", "ok"),
        ("/srv/tree", "artifacts/kept/tree", "step", "ok"),
        ("/app/other", "artifacts/app/log", "step", "skipped"),
        ("/app/missing", "artifacts/app/missing", "step", "failed"),
    ]
    assert a.artifact("app/log").read_text() == "a\n"
    assert b.artifact("app/log").read_text() == "b\n"
    assert sorted(p.name for p in b.artifact("kept/tree").rglob("*")) == [
        "one",
        "sub",
        "two",
    ]
    # In the verifier's sandbox each lies where it came from.
    assert (b.logs / "verifier" / "seen").read_text().split() == [
        "/app/log",
        "/logs/artifacts/note",
        "/srv/tree/one",
        "/srv/tree/sub/two",
    ]
    assert "its place is taken by artifact /app/log" in str(b.warnings)


def test_the_oracle_gets_each_steps_solution_alone(tmp_path, run_local):
    say = "find /solution -type f | sort"
    task = write(
        tmp_path / "task",
        {"a": "", "b": "", "c": ""},
        files={
            "solution/solve.sh": say,
            "steps/a/solution/solve.sh": f"{say}; touch /solution/made",
            "steps/a/solution/helper": "",
            "steps/c/solution/notes.md": "no script",
            "steps/c/workdir/setup.sh": f"{say} > listed",
        },
        test=f"cp listed /logs/verifier/ || true; {REWARD}",
    )
    result = run_local(task)
    logs = [turn.logs / "agent" / "oracle.txt" for turn in result.turns]
    assert logs[0].read_text().split() == ["/solution/helper", "/solution/solve.sh"]
    assert logs[1].read_text().split() == ["/solution/solve.sh"]
    # A folder without a script is no reason to take the task's.
    assert not logs[2].exists()
    listed = result.turns[2].logs / "verifier" / "listed"
    assert listed.read_text().split() == ["/solution/notes.md"]
    assert result.validated is False
    assert [turn.agent_exit_code for turn in result.turns] == [0, 0, None]


class TestBrokenSandbox:
    """A step that breaks the sandbox for the next one (verified elsewhere itself)."""

    CHECK = "[steps.healthcheck]\ncommand = 'true'\nretries = 1\n"
    USER = '[steps.agent]\nuser = "daemon"\n'

    @pytest.mark.parametrize(
        ("break_it", "keys", "status", "kind"),
        [
            pytest.param(
                "cd /; rm -r /app; touch /app",
                CHECK,
                "prepare_failed",
                "harbor:step_healthcheck_failed",
                id="working directory is a file, health check",
            ),
            pytest.param(
                "cd /; rm -r /app; touch /app",
                "",
                "no_reward",
                "harbor:no_reward_file",
                id="working directory is a file",
            ),
            pytest.param(
                "cd /; rm -r /app",
                "",
                "no_reward",
                "harbor:no_reward_file",
                id="no working directory",
            ),
            pytest.param(
                "rm -f /bin/sh /usr/bin/sh",
                CHECK,
                "prepare_failed",
                "harbor:step_healthcheck_failed",
                id="no shell for a health check",
            ),
            pytest.param(
                "rm -f /bin/sh /usr/bin/sh", "", "graded", None, id="no shell"
            ),
            pytest.param(
                "rm -f /bin/bash /usr/bin/bash",
                "",
                "no_reward",
                "harbor:no_reward_file",
                id="no bash for the verifier",
            ),
            pytest.param(
                "rm -f /bin/chown /usr/bin/chown",
                USER,
                "error",
                "harbor:sandbox_lost",
                id="no chown for the switch of users",
            ),
            pytest.param(
                "rm -f /etc/passwd", USER, "error", "harbor:sandbox_lost", id="no users"
            ),
            pytest.param(
                "rm -f /etc/passwd",
                '[steps.verifier]\nuser = "bin"\n',
                "error",
                "harbor:sandbox_lost",
                id="no user for the verifier",
            ),
            pytest.param(
                "setsid sleep 299792.4 & sleep 299792.4 &",
                CHECK,
                "graded",
                None,
                id="processes that hold the pipes",
            ),
        ],
    )
    def test_ends_as_specified(self, tmp_path, run_local, break_it, keys, status, kind):
        task = write(tmp_path / "task", {"a": SEPARATE, "b": keys})
        started = time.monotonic()
        result = run_local(task, PerStep({"a": break_it}), settings={"retries": 1})
        assert time.monotonic() - started < 20
        assert statuses(result) == ["graded", status], result
        assert (result.turns[1].failure_kind, result.failure_kind) == (kind, kind)
        if status == "error":
            # Nobody's score, whoever is to blame: tried again, twice the same.
            assert (result.status, len(result.failed_attempts)) == ("outage", 2)
            phase = "verify" if "verifier" in keys else "prepare"
            assert result.failed_phase == phase
        else:
            expected = 1.0 if status == "graded" else 0.5
            assert (result.status, result.reward) == ("graded", expected)
            assert result.failed_attempts == ()

    def test_setup_without_bash(self, tmp_path, run_local):
        task = write(
            tmp_path / "task",
            {"a": SEPARATE, "b": ""},
            files={"steps/b/workdir/setup.sh": "true"},
        )
        result = run_local(task, PerStep({"a": "rm -f /bin/bash /usr/bin/bash"}))
        assert result.failure_kind == "harbor:step_setup_failed"
        assert "bash: not found" in result.failure_reason

    def test_an_agent_that_ends_the_sandbox_is_tried_again(self, tmp_path, run_local):
        class Ending(PerStep):
            async def run(self, turn):
                if turn.step == "b" and len(self.turns) == 1:
                    await turn.sandbox.stop()
                return await super().run(turn)

        result = run_local(write(tmp_path / "task", {"a": "", "b": ""}), Ending())
        assert (result.status, result.reward) == ("graded", 1.0)
        [attempt] = result.failed_attempts
        assert attempt.failure_kind == "harbor:sandbox_lost"
        assert [turn.reward for turn in attempt.turns] == [1.0, None]

    def test_a_hook_whose_user_is_gone_costs_nothing(self, tmp_path, run_local):
        hook = "[[verifier.collect]]\ncommand = 'true'\nuser = 'nobody'\n"
        task = write(tmp_path / "task", {"a": ""}, toml=hook)
        result = run_local(task, PerStep({"a": "rm -f /etc/passwd"}))
        assert (result.status, result.reward) == ("graded", 1.0)
        assert "collect hook 'true' was not run" in result.turns[0].warnings[0]
