"""What only the settings of a run can tell (task-steps spec 13, 6), evals and file names."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.evals import is_eval_file, load_eval
from pytest_harbor.tasks.steps.files import is_step_file, task_name
from pytest_harbor.tasks.steps.preflight import Available, preflight
from step_bundles import agent_up, ask, env_up, grade, load_steps, write_bundle


class Case(NamedTuple):
    """Steps, what is available, and what is said after "tasks/t.json: "."""

    steps: list[Any]
    available: Available
    problems: list[str]


JUDGED = [agent_up(), ask()]
PREFLIGHT: dict[str, Case] = {
    "an agent of the bundle": Case([agent_up()], Available(), []),
    "a registered agent": Case(
        [agent_up(a2a_agent_id="codex")], Available(agents=["codex"]), []
    ),
    "an unknown agent": Case(
        [agent_up(a2a_agent_id="codx")],
        Available(agents=["codex"]),
        [
            (
                "step 1 'clerk-up': a2a_agent_id: no agent 'codx', neither in the bundle nor"
                " registered (did you mean 'codex'?)"
            )
        ],
    ),
    "an unknown agent near one of the bundle": Case(
        [agent_up(a2a_agent_id="clark")],
        Available(agents=["codex"]),
        [
            (
                "step 1 'clerk-up': a2a_agent_id: no agent 'clark', neither in the bundle"
                " nor registered (did you mean 'clerk'?)"
            )
        ],
    ),
    "the default agent": Case(
        [agent_up(a2a_agent_id=None)], Available(default_agent="clerk"), []
    ),
    "an unknown default agent": Case(
        [agent_up(a2a_agent_id=None)],
        Available(default_agent="zzz"),
        [
            (
                "step 1 'clerk-up': a2a_agent_id: no agent 'zzz', neither in the bundle nor"
                " registered; it is the configured default"
            )
        ],
    ),
    "no default agent": Case(
        [agent_up(a2a_agent_id=None)],
        Available(agents=["codex"]),
        [
            (
                "step 1 'clerk-up': no agent: give a2a_agent_id, or configure a default"
                " agent"
            )
        ],
    ),
    "a named judge": Case([*JUDGED, grade(agent_name="clerk")], Available(), []),
    "a judge to deploy": Case(
        [*JUDGED, grade(judge_a2a_agent_id="reader")], Available(), []
    ),
    "a judge of the project's own": Case(
        [*JUDGED, grade(judge_a2a_agent_id="house")], Available(judges=["house"]), []
    ),
    "an unknown judge": Case(
        [*JUDGED, grade(judge_a2a_agent_id="readr")],
        Available(),
        [
            (
                "step 3 'grade': judge_a2a_agent_id: no agent 'readr', neither in the bundle"
                " nor registered (did you mean 'reader'?)"
            )
        ],
    ),
    "no judge": Case(
        [*JUDGED, grade()],
        Available(judge_model="m"),
        [
            (
                "step 3 'grade': no agent: give judge_a2a_agent_id, or configure a default"
                " agent"
            )
        ],
    ),
    "a judge model of the step": Case(
        [*JUDGED, grade(use_agent_judge=False, default_model="m")], Available(), []
    ),
    "a judge model of the run": Case(
        [*JUDGED, grade(use_agent_judge=False)], Available(judge_model="m"), []
    ),
    "no judge model": Case(
        [*JUDGED, grade(use_agent_judge=False)],
        Available(default_agent="clerk"),
        ["step 3 'grade': no judge model: give default_model, or configure one"],
    ),
    "nobody to talk to": Case(
        [agent_up(), ask(max_conversation_turns=2)],
        Available(),
        [
            (
                "step 2 'ask': nobody answers the agent: give user_agent_name of a deployed"
                " agent or user_a2a_url, or configure a person's endpoint"
            )
        ],
    ),
    "a person": Case(
        [agent_up(), ask(max_conversation_turns=2)],
        Available(human_a2a_url="http://x/"),
        [],
    ),
    "a user at a url": Case(
        [agent_up(), ask(max_conversation_turns=2, user_a2a_url="http://x/")],
        Available(),
        [],
    ),
    "a deployed user of the default name": Case(
        [
            agent_up(),
            agent_up(id="user", agent_name="human_agent"),
            ask(max_conversation_turns=2),
        ],
        Available(),
        [],
    ),
    "sandboxes": Case(
        [env_up(sandbox_type="docker"), agent_up(sandbox_type="modal")],
        Available(sandboxes=["local", "docker"]),
        [
            (
                "step 2 'clerk-up': sandbox_type: no sandbox provider 'modal'; there are"
                " docker, local"
            )
        ],
    ),
    "sandboxes of an env": Case(
        [env_up(sandbox_type="modal")],
        Available(sandboxes=["local"]),
        ["step 1 'up': sandbox_type: no sandbox provider 'modal'; there are local"],
    ),
    "unknown sandboxes": Case([env_up(sandbox_type="modal")], Available(), []),
}


@pytest.mark.parametrize("case", PREFLIGHT)
def test_preflight(desk: Path, case: str) -> None:
    steps, available, expected = PREFLIGHT[case]
    problems = preflight(load_steps(desk, steps), available)
    assert [str(problem) for problem in problems] == [
        f"tasks/t.json: {line}" for line in expected
    ]
    assert {problem.rule for problem in problems} <= {"13.6"}


def test_a_default_agent_that_is_broken_is_told_once(tmp_path: Path) -> None:
    steps = [
        agent_up(a2a_agent_id=None),
        agent_up(id="b", agent_name="b", a2a_agent_id=None),
    ]
    task = load_steps(tmp_path, steps, files={"agents/broken/agent.toml": ""})
    problems = preflight(task, Available(default_agent="broken"))
    assert [str(problem) for problem in problems] == [
        (
            "agents/broken/agent.toml: names nothing to start: give command, image or a"
            " Dockerfile"
        )
    ]


def test_an_eval_is_a_list_of_tasks(tmp_path: Path) -> None:
    toml = 'tasks = ["b", { task_id = "a", task_version = 1 }]\ntype = "eval"\n'
    root = write_bundle(
        tmp_path, tasks={"a": [], "b": []}, files={"evals/all.toml": toml}
    )
    loaded = load_eval(root / "evals/all.toml")
    assert loaded.name == "all"
    assert loaded.tasks == (root / "tasks/b.json", root / "tasks/a.json")
    assert loaded.warnings == ()


EVALS = {
    'tasks = ["c", "bb"]\n': [
        "evals/all.toml: tasks[0]: no task 'c' in tasks/",
        "evals/all.toml: tasks[1]: no task 'bb' in tasks/ (did you mean 'b'?)",
    ],
    "tasks = []\n": ["evals/all.toml: tasks: names no task"],
    "": ["evals/all.toml: tasks: names no task"],
    'tasks = "a"\n': ["evals/all.toml: tasks: must be an array, not the string 'a'"],
    "tasks = [3]\n": ["evals/all.toml: tasks[0]: must be a table, not the number 3"],
    'tasks = [{ task_id = "a", task_version = 2 }]\n': [
        "evals/all.toml: tasks[0]: 'a' is a file, whose one version is 1, not 2"
    ],
    "tasks = [": [
        "evals/all.toml: is not valid TOML: Invalid value (at end of document)"
    ],
}


@pytest.mark.parametrize("toml", EVALS)
def test_an_eval_that_cannot_be_read(tmp_path: Path, toml: str) -> None:
    root = write_bundle(
        tmp_path, tasks={"a": [], "b": []}, files={"evals/all.toml": toml}
    )
    with pytest.raises(TaskLoadError) as caught:
        load_eval(root / "evals/all.toml")
    assert [str(problem) for problem in caught.value.problems] == EVALS[toml]


def test_an_eval_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskLoadError, match=r"^evals/x.toml: cannot be read: No such"):
        load_eval(tmp_path / "evals/x.toml")


def test_doubts_about_an_eval(tmp_path: Path) -> None:
    toml = 'tasks = ["a", "a"]\nowner = "me"\n'
    root = write_bundle(tmp_path, tasks={"a": []}, files={"evals/all.toml": toml})
    warnings = (
        "evals/all.toml: unknown key owner",
        "evals/all.toml: tasks[1]: 'a' is there twice, and runs once",
    )
    loaded = load_eval(root / "evals/all.toml")
    assert (loaded.tasks, loaded.warnings) == ((root / "tasks/a.json",), warnings)
    with pytest.raises(TaskLoadError) as caught:
        load_eval(root / "evals/all.toml", strict=True)
    assert tuple(map(str, caught.value.problems)) == warnings


@pytest.mark.parametrize(
    ("mark", "file", "expected"),
    [
        ("envs/", "tasks/reply.json", True),
        ("agents/", "tasks/reply.json", True),
        ("artifacts/", "tasks/reply.json", True),
        ("aliases.toml", "tasks/reply.json", True),
        ("skills/", "tasks/reply.json", False),
        ("tests/", "tasks/reply.json", False),
        ("envs/", "tasks/deep/reply.json", False),
        ("envs/", "tasks/reply.toml", False),
        ("envs/", "reply.json", False),
        ("tests/", "reply.task.json", True),
        ("tests/", "tasks/reply.task.json", True),
    ],
)
def test_which_files_are_step_tasks(
    tmp_path: Path, mark: str, file: str, expected: bool
) -> None:
    path = tmp_path / mark
    path.mkdir() if mark.endswith("/") else path.touch()
    assert is_step_file(tmp_path / file) is expected


def test_a_task_is_named_by_its_file() -> None:
    names = ["a.json", "a.task.json", "a.b.json"]
    assert [task_name(Path(name)) for name in names] == ["a", "a", "a.b"]


def test_which_files_are_evals(tmp_path: Path) -> None:
    assert not is_eval_file(tmp_path / "evals/all.toml")
    (tmp_path / "tasks").mkdir()
    assert is_eval_file(tmp_path / "evals/all.toml")
    assert not is_eval_file(tmp_path / "evals/all.json")
    assert not is_eval_file(tmp_path / "all.toml")


def test_recognising_files_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys, pytest_harbor.tasks.steps.files;"
        "sys.exit('pydantic' in sys.modules or 'anyio' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
