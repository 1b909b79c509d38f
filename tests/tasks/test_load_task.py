"""What a load accepts and what it makes of the folder (spec 1, 3, 19.6, 20)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.folder.dataset import Dataset
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.model import TaskConfig
from task_folders import PASSING_TEST, write_steps_task, write_task

STEP = '[[steps]]\nname = "build"\n'
IMAGE = '[environment]\ndocker_image = "debian:12"\n'
STEP_FILES = {"steps/build/instruction.md": "Build it."}


def test_a_small_task_is_read_whole(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "my-task",
        'artifacts = ["/app/out"]\n[agent]\ntimeout_sec = 900\n',
        solve="true",
        files={"environment/data.txt": "x", "task_data.json": '{"a": [1]}'},
    )

    task = load_task(folder)

    assert task.id == "my-task"
    assert task.instruction == "Do it."
    assert task.config.agent.timeout_sec == 900
    assert task.config.artifacts[0].source == "/app/out"
    assert task.tests == folder / "tests"
    assert task.has_test_script
    assert task.solution == folder / "solution"
    assert task.has_solve_script
    assert task.environment == folder / "environment"
    assert not task.has_dockerfile
    assert task.task_data == {"a": [1]}
    assert task.warnings == ()
    assert not task.is_multi_step


def test_a_multi_step_task_is_read_in_the_order_of_its_tables(tmp_path: Path) -> None:
    folder = write_steps_task(
        tmp_path / "task",
        "second",
        "first",
        files={
            "steps/first/workdir/setup.sh": "true",
            "steps/first/tests/test.sh": PASSING_TEST,
            "steps/second/setup.sh": "counts only inside workdir/",
            "steps/second/workdir/data": "x",
            "steps/second/solution/solve.sh": "true",
            "steps/second/trajectory.json": "{}",
        },
    )

    task = load_task(folder)
    second, first = task.steps

    assert task.instruction is None
    assert [step.name for step in task.steps] == ["second", "first"]
    assert first.setup
    assert first.tests == folder / "steps/first/tests"
    assert first.solution is None
    assert not second.setup
    assert second.workdir == folder / "steps/second/workdir"
    assert second.has_solve_script
    assert second.trajectory == folder / "steps/second/trajectory.json"
    assert second.instruction == "Do second."


# Spec 19.6, "Not refused", and the field notes' list of what to tolerate.
NOT_REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown key": ("inherit_prior_session = true\n", {}),
    "a trajectory in a later step": (
        STEP + '[[steps]]\nname = "ship"\n',
        {
            **STEP_FILES,
            "steps/ship/instruction.md": "",
            "steps/ship/trajectory.json": "{}",
        },
    ),
    "a step without tests": (STEP, STEP_FILES),
    "a public network on a step": (
        STEP
        + '[steps.agent]\nnetwork_mode = "public"\n'
        + "[steps.verifier]\nallow_internet = true\n",
        STEP_FILES,
    ),
    "a closed environment": ('[environment]\nnetwork_mode = "no-network"\n', {}),
    "a closed verifier environment": (
        IMAGE
        + "[verifier.environment]\n"
        + 'docker_image = "x"\nnetwork_mode = "no-network"\n',
        {},
    ),
    "a closed verifier when every step is separate": (
        IMAGE
        + '[verifier]\nenvironment_mode = "separate"\nnetwork_mode = "no-network"\n'
        + STEP,
        STEP_FILES,
    ),
    "a closed environment of several steps": (
        '[environment]\nnetwork_mode = "no-network"\n' + STEP,
        STEP_FILES,
    ),
    "own tests of a separate step whose verifier has an image": (
        IMAGE
        + STEP
        + '[steps.verifier]\nenvironment_mode = "separate"\n'
        + '[steps.verifier.environment]\ndocker_image = "x"\n',
        {**STEP_FILES, "steps/build/tests/test.sh": ""},
    ),
    "own tests of a separate step in a copy of an image": (
        IMAGE + STEP + '[steps.verifier]\nenvironment_mode = "separate"\n',
        {**STEP_FILES, "steps/build/tests/test.sh": ""},
    ),
    "own tests of a step that is shared after all": (
        '[verifier]\nenvironment_mode = "separate"\n'
        + STEP
        + '[steps.verifier]\nenvironment_mode = "shared"\n',
        {**STEP_FILES, "steps/build/tests/test.sh": ""},
    ),
    "steps that no folder order could give": (
        '[[steps]]\nname = "2.b_x-Y"\n[[steps]]\nname = "10"\n',
        {"steps/2.b_x-Y/instruction.md": "", "steps/10/instruction.md": ""},
    ),
    "the legacy strategy, whatever its value": (
        "multi_step_reward_mode = [3]\n" + STEP,
        STEP_FILES,
    ),
    "a gate on the last step": (STEP + "min_reward = 1\n", STEP_FILES),
    "an empty gate": (STEP + "min_reward = {}\n", STEP_FILES),
    "no solution": ("", {}),
    "artifacts that overlap": ('artifacts = ["/app", "/app/out"]\n', {}),
    "a top-level instruction beside steps": (
        STEP,
        {**STEP_FILES, "instruction.md": "private notes"},
    ),
    "steps that are none": ("steps = []\n", {}),
    "another strategy on a single step": ('multi_step_reward_strategy = "final"\n', {}),
    "an integer as number": ("[verifier]\ntimeout_sec = 30\n", {}),
    "a long timeout": ("[agent]\ntimeout_sec = 172800.0\n", {}),
    "half a processor": ("[environment]\ncpus = 0.5\n", {}),
    "no GPU": ('[environment]\ngpus = 0\ngpu_types = ["h100"]\n', {}),
    "an agent restriction": ('[agent]\nnetwork_mode = "no-network"\n', {}),
    "a user ID": ("[agent]\nuser = 1000\n", {}),
    "an empty instruction": ("", {"instruction.md": ""}),
    "a script with Windows line ends": ("", {"tests/test.sh": "#!/bin/sh\r\n"}),
    "a task.toml with a byte-order mark": ("", {"task.toml": b"\xef\xbb\xbf\r\n"}),
    "broken YAML under the other name": (
        "",
        {"environment/docker-compose.yml": "][", "environment/app.py": "]["},
    ),
    "Python and configuration files": (
        "",
        {"conftest.py": "1/0", "tests/test_x.py": "1/0", "pyproject.toml": "]["},
    ),
    "a nested task.toml": ("", {"environment/data/task.toml": "]["}),
    "free metadata": (
        "[metadata]\ndifficulty = 3\ntags = 'one'\nwhen = 2024-01-01\n[metadata.x]\n",
        {},
    ),
    "a separate verifier without any image": (
        '[verifier]\nenvironment_mode = "separate"\n',
        {},
    ),
    "a link that stays inside": ("", {}),
    "a Compose file that cannot be read here": (
        "artifacts = [{ source = '/x', service = 'db' }]\n",
        {"environment/docker-compose.yaml": "services: {db: {image: x}}\n"},
    ),
    "a sidecar that is defined": (
        "artifacts = [{ source = '/x', service = 'db' }]\n",
        {
            "environment/docker-compose.yaml": "# all\nservices:\n  main:\n    image: x\n"
            "\n  'db':   # data\n    image: y\nvolumes:\n  v:\n"
        },
    ),
    "an MCP server with a credential by reference": (
        (
            "[[environment.mcp_servers]]\nname = 'a'\nurl = 'http://x'\n"
            "headers = { Authorization = 'Bearer ${KEY}' }\n"
        ),
        {},
    ),
    "an empty destination": (
        "artifacts = [{ source = '/app/x', destination = '' }]\n",
        {},
    ),
    "a protected artifact of a shared verifier": ('artifacts = ["/logs/agent"]\n', {}),
}


@pytest.mark.parametrize("case", NOT_REFUSED)
def test_is_not_refused(tmp_path: Path, case: str) -> None:
    toml, files = NOT_REFUSED[case]
    folder = write_task(tmp_path / "task", toml, files=files)
    (folder / "tests" / "inside").symlink_to("../instruction.md")
    (folder / "tests" / "gone").symlink_to("nowhere")

    assert load_task(folder).id == "task"


def test_steps_need_no_instruction_of_the_task(tmp_path: Path) -> None:
    folder = write_steps_task(tmp_path / "task", "a", "b")

    assert not (folder / "instruction.md").exists()
    assert len(load_task(folder).steps) == 2


def test_links_to_folders_inside_are_no_cycle(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        files={"environment/a/x": "", "environment/b/y": "", "tests/deep/z": ""},
    )
    # Two ways to the same folder, and a chain, all of which end.
    (folder / "environment/a/b").symlink_to("../b")
    (folder / "tests/a").symlink_to("../environment/a")
    (folder / "tests/b").symlink_to("../environment/b")
    (folder / "tests/deep/all").symlink_to("../../environment")

    assert load_task(folder).has_test_script


SINGLE_STEP_VERIFIERS: dict[str, tuple[str, dict[str, Any]]] = {
    "verifier.py": ("", {"tests/verifier.py": ""}),
    "an own image": ('[verifier.environment]\ndocker_image = "x"\n', {}),
    "an own build": (
        '[verifier]\nenvironment_mode = "separate"\n',
        {"tests/Dockerfile": "FROM x"},
    ),
    "an own build with a table": (
        IMAGE + "[verifier.environment]\ncpus = 1\n",
        {"tests/Dockerfile": "FROM x"},
    ),
}


@pytest.mark.parametrize("case", SINGLE_STEP_VERIFIERS)
def test_a_single_step_task_can_do_without_a_test_script(
    tmp_path: Path, case: str
) -> None:
    toml, files = SINGLE_STEP_VERIFIERS[case]
    folder = write_task(tmp_path / "task", toml, test=None, files=files)

    assert not load_task(folder).has_test_script


def test_the_verifier_of_the_dataset_serves_tasks_without_their_own(
    tmp_path: Path,
) -> None:
    dataset = Dataset(
        tmp_path, tmp_path / "dataset.toml", verifier_py=tmp_path / "v.py"
    )
    bare = write_task(tmp_path / "bare", test=None)
    python = write_task(tmp_path / "python", test=None, files={"tests/verifier.py": ""})
    script = write_task(tmp_path / "script", files={"tests/verifier.py": ""})

    assert load_task(bare, dataset=dataset).verifier_py == tmp_path / "v.py"
    assert (
        load_task(python, dataset=dataset).verifier_py == python / "tests/verifier.py"
    )
    assert load_task(script, dataset=dataset).verifier_py is None


WARNINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a step's folder without a table": (
        STEP,
        {**STEP_FILES, "steps/extra/instruction.md": ""},
        "steps/extra/: no [[steps]] table names it, so it is not run",
    ),
    "a trajectory": (
        "",
        {"trajectory.json": "{}"},
        "trajectory.json: is not given to the agent; it is ignored",
    ),
    "a name that is no label": (
        '[task]\nname = "my task"\n',
        {},
        "task.toml: [task].name: 'my task' is not org/name",
    ),
    "no name": (
        '[task]\nversion = "1"\n',
        {},
        "task.toml: [task].name is missing (org/name)",
    ),
    "a boolean gate": (
        STEP + "min_reward = { core = true }\n",
        STEP_FILES,
        (
            "task.toml: step 'build': min_reward is a boolean, taken as 1.0 or 0.0;"
            " write a number"
        ),
    ),
    "an image beside a Dockerfile": (
        IMAGE,
        {"environment/Dockerfile": "FROM x"},
        "task.toml: [environment].docker_image is used, environment/Dockerfile is not",
    ),
    "a protected artifact": (
        'artifacts = ["/logs/agent"]\n',
        {},
        (
            "task.toml: artifacts: /logs/agent: overlaps /logs/agent, which belongs to"
            " the runner"
        ),
    ),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_warns_of(tmp_path: Path, case: str) -> None:
    toml, files, text = WARNINGS[case]

    assert load_task(write_task(tmp_path / "task", toml, files=files)).warnings == (
        text,
    )


def test_a_boolean_gate_is_a_number(tmp_path: Path) -> None:
    toml = STEP + "min_reward = { core = true, style = false, x = 1 }\n"
    task = load_task(write_task(tmp_path / "task", toml, files=STEP_FILES))

    assert task.steps[0].config.min_reward == {"core": 1.0, "style": 0.0, "x": 1.0}


UNKNOWN = [
    ("[enviroment]\n", "[enviroment] (did you mean [environment]?)"),
    ("[agent]\ntimeout = 3\n", "[agent].timeout (did you mean [agent].timeout_sec?)"),
    ("[agent]\nzzz = 3\n", "[agent].zzz"),
    ("zzz = 3\n", "zzz"),
    (
        "[environment.health_check]\n",
        "[environment.health_check] (did you mean [environment.healthcheck]?)",
    ),
    (
        "[metadata.pytest_harbor]\nmin_rewards = 1\n",
        (
            "[metadata.pytest_harbor].min_rewards"
            " (did you mean [metadata.pytest_harbor].min_reward?)"
        ),
    ),
    (
        "[[environment.mcp_servers]]\nname='a'\nurl='http://x'\nheader='x'\n",
        (
            "[[environment.mcp_servers]].header"
            " (did you mean [[environment.mcp_servers]].headers?)"
        ),
    ),
    (
        "artifacts = [{ source = '/x', excludes = [] }]\n",
        "[[artifacts]].excludes (did you mean [[artifacts]].exclude?)",
    ),
    (
        "[verifier.environment]\ndocker_image = 'x'\nmemory_gb = 3\n",
        (
            "[verifier.environment].memory_gb"
            " (did you mean [verifier.environment].memory_mb?)"
        ),
    ),
]


@pytest.mark.parametrize(("toml", "text"), UNKNOWN)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    tmp_path: Path, toml: str, text: str
) -> None:
    warnings = load_task(write_task(tmp_path / "task", toml)).warnings

    assert warnings == (f"task.toml: unknown key {text}",)


def test_an_unknown_key_of_many_steps_is_named_once(tmp_path: Path) -> None:
    toml = "".join(
        f"[[steps]]\nname = '{name}'\ndir = 'x'\n[steps.agent]\ntimeout = 1\n"
        for name in "ab"
    )
    files = {f"steps/{name}/instruction.md": "" for name in "ab"}

    warnings = load_task(write_task(tmp_path / "task", toml, files=files)).warnings

    assert warnings == (
        "task.toml: unknown key [[steps]].dir",
        (
            "task.toml: unknown key [steps.agent].timeout"
            " (did you mean [steps.agent].timeout_sec?)"
        ),
    )


@pytest.mark.parametrize(
    ("toml", "expected", "note"),
    [
        ("version = '0.0'\n", {"schema_version": "0.0"}, "version is"),
        (
            "version = '1.0'\nschema_version = '1.3'\n",
            {"schema_version": "1.3"},
            "version is",
        ),
        (
            "multi_step_reward_mode = 'final'\n",
            {"multi_step_reward_strategy": "mean"},
            "multi_step_reward_mode is",
        ),
        (
            "multi_step_reward_mode = 17\n",
            {"multi_step_reward_strategy": "mean"},
            "multi_step_reward_mode is",
        ),
    ],
)
def test_a_legacy_key_is_read_with_one_note(
    tmp_path: Path, toml: str, expected: dict[str, object], note: str
) -> None:
    task = load_task(write_task(tmp_path / "task", toml))

    assert {key: getattr(task.config, key) for key in expected} == expected
    assert len(task.warnings) == 1
    assert task.warnings[0].startswith(f"task.toml: {note} deprecated")


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        ("memory = '2G'\n", {"memory_mb": 2048}),
        ("memory = '1g'\n", {"memory_mb": 1024}),
        ("memory = '512M'\n", {"memory_mb": 512}),
        ("storage = '1500K'\n", {"storage_mb": 1}),
        ("memory = '2G'\nmemory_mb = 2048\n", {"memory_mb": 2048}),
        ("allow_internet = true\n", {"network_mode": "public"}),
        ("allow_internet = false\n", {"network_mode": "no-network"}),
        (
            "allow_internet = false\nnetwork_mode = 'public'\n",
            {"network_mode": "public"},
        ),
        (
            (
                "allow_internet = true\nnetwork_mode = 'allowlist'\n"
                "allowed_hosts = ['Example.ORG.', '*.a.org', '10.0.0.0/8', '::1']\n"
            ),
            {
                "network_mode": "allowlist",
                "allowed_hosts": ("example.org", "*.a.org", "10.0.0.0/8", "::1"),
            },
        ),
    ],
)
@pytest.mark.parametrize("table", ["environment", "verifier.environment"])
def test_a_legacy_key_of_an_environment_is_read_with_one_note(
    tmp_path: Path, table: str, toml: str, expected: dict[str, object]
) -> None:
    text = f"[{table}]\ndocker_image = 'x'\n{toml}"

    task = load_task(write_task(tmp_path / "task", text))

    environment = task.config.environment
    if table != "environment":
        assert task.config.verifier.environment is not None
        environment = task.config.verifier.environment
    assert {key: getattr(environment, key) for key in expected} == expected
    assert len(task.warnings) == 1
    assert f"[{table}]" in task.warnings[0]


def test_the_legacy_mcp_transport_is_read(tmp_path: Path) -> None:
    toml = "[[environment.mcp_servers]]\nname='a'\nurl='http://x'\ntransport = 'http'\n"
    task = load_task(write_task(tmp_path / "task", toml))

    assert task.config.environment.mcp_servers[0].transport == "streamable-http"
    assert len(task.warnings) == 1


def test_the_authors_table_for_this_plugin(tmp_path: Path) -> None:
    task = load_task(
        write_task(
            tmp_path / "task",
            """
            [metadata]
            difficulty = "hard"
            category = "games"
            tags = ["a", 3, "b"]
            [metadata.pytest_harbor]
            min_reward = 0.5
            reward_key = "correct"
            skip = "flaky"
            xfail = "bug 3"
            markers = ["slow"]
            timeout = 60
            """,
        )
    )
    author = task.config.pytest_harbor

    assert task.config.difficulty == "hard"
    assert task.config.category == "games"
    assert task.config.tags == ("a", "b")
    assert (author.min_reward, author.reward_key) == (0.5, "correct")
    assert (author.skip, author.xfail) == ("flaky", "bug 3")
    assert (author.markers, author.timeout) == (("slow",), 60)


def test_overrides_of_the_dataset_come_first(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", "[environment]\ncpus = 1\nmemory = '1G'\n")
    dataset = Dataset(
        tmp_path,
        tmp_path / "dataset.toml",
        overrides={"task": {"memory_mb": 4096}, "other": {"cpus": 8}},
    )

    environment = load_task(folder, dataset=dataset).config.environment

    assert (environment.cpus, environment.memory_mb) == (1, 4096)


def test_an_override_of_env_goes_variable_by_variable(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task", '[environment]\nenv = { A = "1", B = "2" }\n'
    )
    dataset = Dataset(
        tmp_path,
        tmp_path / "dataset.toml",
        overrides={"task": {"env": {"B": "3", "C": "4"}}},
    )
    environment = load_task(folder, dataset=dataset).config.environment
    assert environment.env == {"A": "1", "B": "3", "C": "4"}


def test_overrides_are_checked_with_the_task(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']\n",
    )
    dataset = Dataset(
        tmp_path,
        tmp_path / "dataset.toml",
        overrides={"task": {"network_mode": "public"}},
    )

    with pytest.raises(TaskLoadError, match="allowed_hosts needs network_mode"):
        load_task(folder, dataset=dataset)


@pytest.mark.parametrize(
    ("solve", "expected"), [(None, "42"), ("true", None)], ids=["alone", "with script"]
)
def test_a_reference_answer_counts_without_a_script(
    tmp_path: Path, solve: str | None, expected: str | None
) -> None:
    folder = write_task(
        tmp_path / "task", solve=solve, files={"solution/answer.md": "42"}
    )

    assert load_task(folder).answer == expected


def test_a_second_mistake_that_a_first_one_hid_is_told_with_the_right_step(
    tmp_path: Path,
) -> None:
    folder = write_task(
        tmp_path / "task",
        """
        [[steps]]
        name = "not good"
        [[steps]]
        name = "build"
        artifacts = [{ source = "/x", exclude = 3, destination = "/abs" }]
        """,
        files=STEP_FILES,
    )

    with pytest.raises(TaskLoadError) as caught:
        load_task(folder)

    assert [str(problem).split(": ")[1] for problem in caught.value.problems] == [
        "step 'not good'",
        "step 'build'",
        "step 'build'",
    ]


def test_every_key_is_documented() -> None:
    schema = TaskConfig.model_json_schema()
    undocumented = [
        f"{table}.{key}"
        for table, model in {**schema["$defs"], "task.toml": schema}.items()
        for key, value in model.get("properties", {}).items()
        if "description" not in value
    ]

    assert undocumented == []


def test_the_loader_imports_no_engine() -> None:
    code = (
        "import sys, pytest_harbor.tasks.folder.load, pytest_harbor.tasks.folder.plan;"
        "print(*{'anyio', 'docker', 'pytest', 'pathspec'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == ""


def test_a_load_opens_only_what_it_needs_and_each_file_once(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        solve="true",
        files={"tests/data/big": "", "environment/Dockerfile": "FROM x"},
    )
    code = """
import sys, pathlib
from pytest_harbor.tasks.folder.load import load_task
folder = pathlib.Path(sys.argv[1])
load_task(folder)
seen = []
sys.addaudithook(lambda event, args: seen.append((event, str(args[0])))
                 if event in ("open", "os.scandir") else None)
load_task(folder)
for event, path in seen:
    print(event, pathlib.Path(path).relative_to(folder))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )

    assert sorted(done.stdout.splitlines()) == [
        "open instruction.md",
        "open task.toml",
        "os.scandir .",
        "os.scandir solution",
        "os.scandir tests",
        "os.scandir tests/data",
    ]
