"""Every fallback of the specification, resolved in the plan (spec 3.6, 7, 8, 14)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from pytest_harbor.errors import SettingsError
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.dataset import Dataset
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from pytest_harbor.tasks.folder.plan_types import EpisodePlan
from task_folders import PASSING_TEST, write_task

IMAGE = '[environment]\ndocker_image = "debian:12"\n'
STEP = '[[steps]]\nname = "a"\n'


def step_files(*names: str) -> dict[str, str]:
    return {f"steps/{name}/instruction.md": f"Do {name}." for name in names}


def plan_of(
    folder: Path,
    toml: str = "",
    *,
    settings: Settings | None = None,
    agent: str = "oracle",
    dataset: Dataset | None = None,
    **content: Any,
) -> EpisodePlan:
    task = load_task(write_task(folder, toml, **content), dataset=dataset)
    return plan_episode(task, settings or Settings(), agent=agent)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "my-task"


def test_a_single_step_plan(folder: Path) -> None:
    plan = plan_of(
        folder,
        """
        artifacts = ["/app/out/"]
        [agent]
        timeout_sec = 100
        user = "agent"
        [verifier]
        timeout_sec = 50
        user = 1000
        env = { KEY = "${KEY}" }
        [solution]
        env = { A = "b" }
        [environment]
        docker_image = "debian:12"
        cpus = 2
        memory_mb = 512
        storage_mb = 1000
        workdir = "/work"
        network_mode = "no-network"
        build_timeout_sec = 30
        env = { B = "c" }
        [environment.healthcheck]
        command = "true"
        retries = 0
        """,
        solve="true",
    )
    (turn,) = plan.turns

    assert (plan.task_id, plan.agent, plan.attempt) == ("my-task", "oracle", 1)
    assert plan.environment.image == "debian:12"
    assert plan.environment.network == "no-network"
    assert plan.environment.workdir == "/work"
    assert plan.environment.env == {"B": "c"}
    assert (plan.environment.cpus, plan.environment.memory_mib) == (2, 512)
    assert plan.environment.storage_mib == 1000
    assert plan.environment.start_timeout_seconds == 30
    assert plan.healthcheck is not None
    assert plan.healthcheck.retries == 1
    assert plan.solution_env == {"A": "b"}
    assert turn.name == "my-task"
    assert turn.instruction == "Do it."
    assert (turn.agent_user, turn.agent_budget_seconds) == ("agent", 100)
    assert (turn.verifier.user, turn.verifier.budget_seconds) == (1000, 50)
    assert turn.verifier.env == {"KEY": "${KEY}"}
    assert turn.verifier.mode == "shared"
    assert turn.verifier.environment is None
    assert not turn.verifier.image_tests_win
    assert [layer.path for layer in turn.verifier.tests] == [folder / "tests"]
    assert turn.solution is not None
    assert turn.has_solve_script
    assert [(a.source, a.destination) for a in turn.artifacts] == [
        ("/logs/artifacts", "logs/artifacts"),
        ("/app/out/", "app/out"),
    ]
    assert plan.deadline_seconds == 360 + 100 + 50 + 60


def test_what_nothing_sets(folder: Path) -> None:
    plan = plan_of(folder)
    (turn,) = plan.turns

    assert (turn.agent_user, turn.agent_budget_seconds) == (None, None)
    assert (turn.verifier.user, turn.verifier.budget_seconds) == (None, 600)
    assert plan.deadline_seconds == 21_600
    assert any("has no agent timeout_sec" in text for text in plan.warnings)
    assert not plan.environment.needs_container
    assert turn.solution is None


STEPS_TOML = """
[agent]
timeout_sec = 900
user = "agent"
[verifier]
timeout_sec = 77
user = "judge"
env = { A = "task", B = "task" }
[[verifier.collect]]
command = "first"
[[steps]]
name = "a"
[[steps]]
name = "b"
[steps.agent]
user = "other"
[steps.verifier]
timeout_sec = 10
user = "own"
env = { B = "step", C = "step" }
[[steps.verifier.collect]]
command = "second"
timeout_sec = 30
[[steps]]
name = "c"
[steps.agent]
timeout_sec = 5
"""


def test_a_step_falls_back_key_by_key(folder: Path) -> None:
    a, b, c = plan_of(folder, STEPS_TOML, files=step_files("a", "b", "c")).turns

    assert (a.agent_user, a.agent_budget_seconds) == ("agent", 900)
    assert (b.agent_user, b.agent_budget_seconds) == ("other", 900)
    # A later step without a user of its own goes back to the task's.
    assert (c.agent_user, c.agent_budget_seconds) == ("agent", 5)
    # Never [verifier].timeout_sec.
    assert [turn.verifier.budget_seconds for turn in (a, b, c)] == [600, 10, 600]
    assert [turn.verifier.user for turn in (a, b, c)] == ["judge", "own", "judge"]
    assert a.verifier.env == {"A": "task", "B": "task"}
    assert b.verifier.env == {"A": "task", "B": "step", "C": "step"}
    assert [(h.command, h.timeout_seconds, h.origin) for h in b.hooks] == [
        ("first", 60, "task"),
        ("second", 30, "step"),
    ]
    assert [hook.command for hook in c.hooks] == ["first"]


def test_the_multiplier_scales_budgets_and_nothing_else(folder: Path) -> None:
    dataset = Dataset(folder, folder / "dataset.toml", timeout_multiplier=2.0)
    a, b, c = plan_of(
        folder,
        STEPS_TOML + "[steps.healthcheck]\ncommand = 'x'\nstart_period_sec = 7\n",
        settings=Settings(timeout_multiplier=1.5),
        dataset=dataset,
        files=step_files("a", "b", "c"),
    ).turns

    assert a.agent_budget_seconds == 2700
    assert a.verifier.budget_seconds == 1800
    assert b.verifier.budget_seconds == 30
    assert [hook.timeout_seconds for hook in b.hooks] == [60, 30]
    check = c.healthcheck
    assert check is not None
    assert (check.timeout_seconds, check.interval_seconds) == (30, 5)
    assert (check.start_period_seconds, check.start_interval_seconds) == (7, 5)


def test_the_bound_of_the_agents_setup_is_the_runners(folder: Path) -> None:
    settings = Settings(agent_setup_timeout_s=9, timeout_multiplier=3)

    assert plan_of(folder).agent_setup_timeout_seconds == 360
    assert plan_of(folder, settings=settings).agent_setup_timeout_seconds == 9


def test_the_worked_example_of_the_deadline(folder: Path) -> None:
    plan = plan_of(
        folder,
        """
        [agent]
        timeout_sec = 900
        [environment]
        docker_image = "x"
        [[verifier.collect]]
        command = "x"
        [[steps]]
        name = "a"
        [steps.agent]
        timeout_sec = 1800
        [[steps]]
        name = "b"
        [steps.verifier]
        timeout_sec = 120
        environment_mode = "separate"
        [[steps.verifier.collect]]
        command = "x"
        timeout_sec = 30
        [steps.healthcheck]
        command = "x"
        start_period_sec = 20
        retries = 5
        """,
        settings=Settings(timeout_multiplier=1.5),
        files={**step_files("a", "b"), "steps/b/workdir/setup.sh": "true"},
    )

    assert plan.deadline_seconds == 8295
    assert plan.deadline_enforced
    assert not any("add up" in text for text in plan.warnings)


@pytest.mark.parametrize(
    ("setting", "toml", "expected"),
    [
        (None, "[agent]\ntimeout_sec = 100\n", 150),
        (20.0, "[agent]\ntimeout_sec = 100\n", 20),
        (None, "", None),
    ],
)
def test_the_bound_of_a_setup_script(
    folder: Path, setting: float | None, toml: str, expected: float | None
) -> None:
    (turn,) = plan_of(
        folder,
        toml + STEP,
        settings=Settings(timeout_multiplier=1.5, step_setup_timeout_s=setting),
        files={**step_files("a"), "steps/a/workdir/setup.sh": "true"},
    ).turns

    assert turn.has_setup
    assert turn.setup_budget_seconds == expected


def test_a_step_without_a_setup_script_has_no_bound(folder: Path) -> None:
    (turn,) = plan_of(
        folder, STEP, settings=Settings(step_setup_timeout_s=9), files=step_files("a")
    ).turns

    assert not turn.has_setup
    assert turn.setup_budget_seconds is None


MODES = [
    # [verifier] mode, [verifier.environment], step mode, step environment, expected
    (None, False, None, False, "shared"),
    (None, True, None, False, "separate"),
    ("separate", False, None, False, "separate"),
    ("shared", False, None, False, "shared"),
    (None, False, "separate", False, "separate"),
    ("separate", True, "shared", False, "shared"),
    ("shared", False, None, True, "separate"),
    (None, False, None, True, "separate"),
    ("shared", False, "separate", False, "separate"),
    ("shared", False, "separate", True, "separate"),
]


@pytest.mark.parametrize(
    ("task_mode", "task_environment", "step_mode", "step_environment", "expected"),
    MODES,
)
def test_the_mode_of_a_step(
    folder: Path,
    task_mode: str | None,
    task_environment: bool,
    step_mode: str | None,
    step_environment: bool,
    expected: str,
) -> None:
    toml = IMAGE + "[verifier]\n"
    toml += f"environment_mode = '{task_mode}'\n" if task_mode else ""
    toml += "[verifier.environment]\ndocker_image = 't'\n" if task_environment else ""
    toml += STEP + "[steps.verifier]\n"
    toml += f"environment_mode = '{step_mode}'\n" if step_mode else ""
    toml += (
        "[steps.verifier.environment]\ndocker_image = 's'\n" if step_environment else ""
    )

    (turn,) = plan_of(folder, toml, files=step_files("a")).turns

    assert turn.verifier.mode == expected
    if expected == "shared":
        assert turn.verifier.environment is None
    else:
        image = "s" if step_environment else "t" if task_environment else "debian:12"
        assert turn.verifier.environment is not None
        assert turn.verifier.environment.image == image


@pytest.mark.parametrize(
    ("verifier", "expected"),
    [
        ("", "shared"),
        ("[verifier]\nenvironment_mode = 'separate'\n", "separate"),
        ("[verifier.environment]\ndocker_image = 'v'\n", "separate"),
    ],
)
def test_the_mode_of_a_single_step(folder: Path, verifier: str, expected: str) -> None:
    (turn,) = plan_of(folder, IMAGE + verifier).turns

    assert turn.verifier.mode == expected


def test_the_worked_example_of_the_modes(folder: Path) -> None:
    a, b, c = plan_of(
        folder,
        IMAGE
        + """
        [verifier]
        environment_mode = "separate"
        [verifier.environment]
        docker_image = "task-verifier"
        [[steps]]
        name = "a"
        [steps.verifier]
        environment_mode = "shared"
        [[steps]]
        name = "b"
        [steps.verifier.environment]
        docker_image = "b-verifier"
        [[steps]]
        name = "c"
        """,
        files=step_files("a", "b", "c"),
    ).turns

    assert a.verifier.mode == "shared"
    assert b.verifier.environment is not None
    assert b.verifier.environment.image == "b-verifier"
    assert c.verifier.environment is not None
    assert c.verifier.environment.image == "task-verifier"


def test_an_environment_of_a_step_replaces_the_tasks_as_a_whole(folder: Path) -> None:
    a, b = plan_of(
        folder,
        IMAGE
        + """
        [verifier.environment]
        docker_image = "task-verifier"
        workdir = "/grade"
        cpus = 2
        env = { A = "1" }
        [[steps]]
        name = "a"
        [[steps]]
        name = "b"
        [steps.verifier.environment]
        docker_image = "b-verifier"
        """,
        files=step_files("a", "b"),
    ).turns

    assert a.verifier.environment is not None
    assert (a.verifier.environment.workdir, a.verifier.environment.cpus) == (
        "/grade",
        2,
    )
    environment = b.verifier.environment
    assert environment is not None
    assert (environment.image, environment.env) == ("b-verifier", {})
    assert (environment.workdir, environment.cpus) == (None, None)


def test_declared_artifacts_can_force_separate_verification(folder: Path) -> None:
    a, b = plan_of(
        folder,
        IMAGE
        + STEP
        + "artifacts = ['/app/x']\n[steps.verifier]\nenvironment_mode = 'shared'\n"
        + "[[steps]]\nname = 'b'\n",
        settings=Settings(separate_verifier_for_artifacts=True),
        files=step_files("a", "b"),
    ).turns

    # The setting wins over the step's own word; /logs/artifacts is not declared.
    assert a.verifier.mode == "separate"
    assert b.verifier.mode == "shared"


def test_artifacts_of_the_task_force_every_turn(folder: Path) -> None:
    (turn,) = plan_of(
        folder,
        "artifacts = ['/app/x']\n" + IMAGE,
        settings=Settings(separate_verifier_for_artifacts=True),
    ).turns

    assert turn.verifier.mode == "separate"


def test_a_single_step_verifier_is_built_from_its_tests(folder: Path) -> None:
    (turn,) = plan_of(
        folder,
        IMAGE + "workdir = '/w'\n[verifier]\nenvironment_mode = 'separate'\n",
        files={"tests/Dockerfile": "FROM x"},
    ).turns
    environment = turn.verifier.environment

    assert environment is not None
    assert (environment.image, environment.build_context) == (None, folder / "tests")
    assert environment.workdir == "/w"
    assert turn.verifier.image_tests_win


def test_an_own_image_wins_over_a_dockerfile_in_tests(folder: Path) -> None:
    (turn,) = plan_of(
        folder,
        IMAGE + "[verifier.environment]\ndocker_image = 'v'\n",
        files={"tests/Dockerfile": "FROM x"},
    ).turns
    environment = turn.verifier.environment

    assert environment is not None
    assert (environment.image, environment.build_context) == ("v", None)
    assert turn.verifier.image_tests_win


def test_a_copy_of_the_environment_does_not_bring_tests(folder: Path) -> None:
    (turn,) = plan_of(
        folder,
        "[verifier]\nenvironment_mode = 'separate'\n",
        files={"environment/Dockerfile": "FROM x"},
    ).turns

    assert turn.verifier.environment is not None
    assert turn.verifier.environment.build_context == folder / "environment"
    assert not turn.verifier.image_tests_win


@pytest.mark.parametrize(
    ("table", "context"),
    [("[verifier.environment]\ncpus = 1\n", "tests"), ("", "environment")],
)
def test_a_step_builds_from_tests_only_where_its_table_says_so(
    folder: Path, table: str, context: str
) -> None:
    (turn,) = plan_of(
        folder,
        "[verifier]\nenvironment_mode = 'separate'\n" + table + STEP,
        files={
            **step_files("a"),
            "environment/Dockerfile": "FROM x",
            "tests/Dockerfile": "FROM x",
        },
    ).turns

    assert turn.verifier.environment is not None
    assert turn.verifier.environment.build_context == folder / context
    # Steps always get the task's tests.
    assert not turn.verifier.image_tests_win


ENVIRONMENTS: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "nothing": ("", {}, {}),
    "plain files": ("", {"environment/x": ""}, {"files": "environment"}),
    "Dockerfile": (
        "",
        {"environment/Dockerfile": ""},
        {"build_context": "environment"},
    ),
    "image": (IMAGE, {}, {"image": "debian:12"}),
    "image and files": (
        IMAGE,
        {"environment/x": ""},
        {"image": "debian:12", "files": "environment"},
    ),
    "image and Dockerfile": (
        IMAGE,
        {"environment/Dockerfile": ""},
        {"image": "debian:12"},
    ),
    "Compose": (
        "",
        {"environment/docker-compose.yaml": ""},
        {"compose_file": "environment/docker-compose.yaml"},
    ),
    "Compose and Dockerfile": (
        "",
        {"environment/docker-compose.yaml": "", "environment/Dockerfile": ""},
        {
            "compose_file": "environment/docker-compose.yaml",
            "build_context": "environment",
        },
    ),
    "Compose by another name": (
        "",
        {"environment/docker-compose.yml": ""},
        {"files": "environment"},
    ),
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
def test_what_the_sandbox_is_made_of(folder: Path, case: str) -> None:
    toml, files, expected = ENVIRONMENTS[case]

    environment = plan_of(folder, toml, files=files).environment

    wanted = {
        key: folder / value if key != "image" else value
        for key, value in expected.items()
    }
    fields = ("image", "build_context", "files", "compose_file")
    assert {key: getattr(environment, key) for key in fields} == {
        **dict.fromkeys(fields),
        **wanted,
    }
    assert environment.needs_container == (set(wanted) not in ({"files"}, set()))


def test_a_verifier_in_a_container_needs_one(folder: Path) -> None:
    plan = plan_of(folder, "[verifier.environment]\ndocker_image = 'v'\n")

    assert not plan.environment.needs_container
    assert plan.needs_container


def test_the_layers_of_tests_and_what_stays_behind(folder: Path) -> None:
    (turn,) = plan_of(
        folder,
        STEP,
        files={
            **step_files("a"),
            "tests/.harborignore": "*.pyc\n",
            "tests/x.pyc": "",
            "steps/a/tests/test.sh": PASSING_TEST,
        },
    ).turns
    task, step = turn.verifier.tests

    assert task.path == folder / "tests"
    assert task.exclude == {".harborignore", "x.pyc"}
    assert (step.path, step.exclude) == (folder / "steps/a/tests", frozenset())


def test_a_solution_is_chosen_by_folder_not_by_file(folder: Path) -> None:
    a, b = plan_of(
        folder,
        STEP + "[[steps]]\nname = 'b'\n",
        solve="true",
        files={**step_files("a", "b"), "steps/a/solution/notes.txt": ""},
    ).turns

    assert a.solution is not None
    assert (a.solution.path, a.has_solve_script) == (
        folder / "steps/a/solution",
        False,
    )
    assert b.solution is not None
    assert (b.solution.path, b.has_solve_script) == (folder / "solution", True)


def test_a_reference_answer_is_for_single_steps(folder: Path) -> None:
    files = {"solution/answer.md": "42"}

    (single,) = plan_of(folder, files=files).turns
    (step,) = plan_of(folder, STEP, files={**files, **step_files("a")}).turns

    assert (single.reference_answer, step.reference_answer) == ("42", None)


def test_a_python_verifier_grades_a_single_step(folder: Path) -> None:
    (turn,) = plan_of(folder, test=None, files={"tests/verifier.py": ""}).turns

    assert turn.verifier.python_verifier == folder / "tests/verifier.py"


def test_the_template_wraps_the_first_instruction_only(folder: Path) -> None:
    template = folder.parent / "prompt.md"
    template.write_text("{braces} before\n{instruction}\nafter {instruction}")

    a, b = plan_of(
        folder,
        STEP + "[[steps]]\nname = 'b'\n",
        settings=Settings(prompt_template=template),
        files=step_files("a", "b"),
    ).turns

    assert a.instruction == "{braces} before\nDo a.\nafter Do a."
    assert b.instruction == "Do b."


@pytest.mark.parametrize(
    ("content", "text"),
    [("no place", "lacks the placeholder {instruction}"), (None, "cannot be read")],
)
def test_a_template_that_cannot_serve_is_a_settings_error(
    folder: Path, content: str | None, text: str
) -> None:
    template = folder.parent / "prompt.md"
    if content is not None:
        template.write_text(content)

    with pytest.raises(SettingsError, match=text):
        plan_of(folder, settings=Settings(prompt_template=template))


def test_the_author_names_the_headline_key(folder: Path) -> None:
    settings = Settings(reward_key="run")
    author = "[metadata.pytest_harbor]\nreward_key = 'author'\n"

    assert plan_of(folder, author, settings=settings).reward_key == "author"
    assert plan_of(folder, settings=settings).reward_key == "run"


def test_a_separate_verifier_has_the_verifiers_network(folder: Path) -> None:
    plan = plan_of(
        folder,
        IMAGE
        + "[verifier]\nenvironment_mode = 'separate'\nnetwork_mode = 'allowlist'\n"
        + "allowed_hosts = ['a.org']\n",
    )
    environment = plan.turns[0].verifier.environment

    assert environment is not None
    assert (environment.network, environment.allowed_hosts) == ("allowlist", ("a.org",))
    assert plan.environment.network == "public"
    assert plan.refusals == ()


def test_a_plan_survives_json(folder: Path) -> None:
    plan = plan_of(
        folder,
        IMAGE
        + STEPS_TOML
        + "min_reward = { core = 0.5 }\n[[steps]]\nname = 'd'\nmin_reward = 1\n"
        + "[steps.healthcheck]\ncommand = 'x'\n"
        + "[steps.verifier.environment]\ndocker_image = 'y'\n",
        settings=Settings(
            enforce_task_timeouts=False, default_episode_timeout_seconds=1
        ),
        files={
            **step_files("a", "b", "c", "d"),
            "tests/.harborignore": "x\n",
            "task_data.json": '{"a": {"b": [1, null]}}',
        },
    )
    adapter = TypeAdapter(EpisodePlan)

    assert plan.refusals
    assert adapter.validate_json(adapter.dump_json(plan)) == plan


def test_the_dataset_scales_resources_and_says_how_images_are_built(
    tmp_path: Path,
) -> None:
    dataset = Dataset(
        tmp_path,
        tmp_path / "dataset.toml",
        resource_multiplier=1.5,
        platform="linux/amd64",
        force_build=True,
        overrides={"task": {"memory_mb": 101}},
    )
    plan = plan_of(
        tmp_path / "task",
        "[environment]\ncpus = 1\nmemory_mb = 1\ndocker_image = 'x'\n"
        "[verifier.environment]\nstorage_mb = 100\ndocker_image = 'y'\n",
        dataset=dataset,
    )
    environment = plan.environment
    assert (environment.cpus, environment.memory_mib) == (1.5, 152)
    assert environment.storage_mib is None
    verifier = plan.turns[0].verifier.environment
    assert verifier is not None
    assert (verifier.storage_mib, verifier.cpus) == (150, None)
    assert (environment.platform, verifier.platform) == ("linux/amd64",) * 2
    assert plan.force_build
