"""Fixtures and the marker in people's own Python tests (design 5.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from task_folders import write_task

if TYPE_CHECKING:
    from scratch_project import Project

GRADE = (
    "test -e /app/done && echo 1 > /logs/verifier/reward.txt"
    " || echo 0 > /logs/verifier/reward.txt"
)


def test_episode_sandbox_task_and_settings(project: Project) -> None:
    project.task("t", solve="touch /app/done", test=GRADE)
    project.file(
        "tests/test_mine.py",
        """
import pytest

@pytest.mark.harbor("datasets/t")
def test_episode(harbor_episode, harbor_task):
    assert harbor_episode.reward == 1.0
    assert harbor_episode.task_id == harbor_task.id == "t"

@pytest.mark.harbor("../datasets/t", agent="nop", min_reward=0.5)
def test_agent_of_the_marker(harbor_episode):
    assert harbor_episode.agent == "nop"
    assert harbor_episode.reward == 0.0   # the test judges, not the threshold

@pytest.mark.harbor("datasets/t/task.toml")
def test_sandbox(harbor_sandbox, harbor_settings):
    assert harbor_sandbox.exec("test -d /app").exit_code == 0
    assert harbor_sandbox.exec(["test", "-e", "/app/done"]).exit_code == 1
    assert harbor_settings.attempts == 1

def test_factory(harbor_sandbox_factory):
    one, two = (harbor_sandbox_factory("datasets/t") for _ in range(2))
    one.exec("echo one > /app/who")
    assert two.exec("test -e /app/who").exit_code == 1
    assert one.read_text("/app/who") == "one\\n"

@pytest.mark.harbor("datasets/t")
def test_factory_with_the_task_of_the_marker(harbor_sandbox_factory):
    assert harbor_sandbox_factory().workdir == "/app"
""",
    )
    result = project.run("tests", "--strict-markers")
    result.assert_outcomes(passed=5)
    rows = project.rows("rollouts.jsonl")
    assert [row["is_test"] for row in rows] == [True, True]
    assert [row["agent"] for row in rows] == ["oracle", "nop"]


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.slow
def test_runs_of_python_tests_are_rolled_up(project: Project, workers: str) -> None:
    project.task("t")
    project.file(
        "test_mine.py",
        'import pytest\n@pytest.mark.harbor("datasets/t")\n'
        "def test_x(harbor_episode):\n    pass\n",
    )
    result = project.run_apart("test_mine.py", workers)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 episode: 1 passed, 0 failed, 0 errors; *"])
    assert (project.latest / "summary.json").is_file()


SWEEPS = """
import pytest
from pytest_harbor.sandboxes.local.provider import LocalProvider

class Special(LocalProvider):
    name = "special"
    async def sweep(self):
        open("swept", "w").close()
        return await super().sweep()

def pytest_harbor_sandbox_providers(config):
    return {"special": Special}

@pytest.fixture
def anyio_backend():
    return "asyncio"
"""


@pytest.mark.parametrize(
    "test",
    [
        "def test_x(harbor_sandbox):\n    harbor_sandbox.stop()\n",
        (
            "@pytest.mark.anyio\nasync def test_x(harbor_sandbox_factory):\n"
            "    await (await harbor_sandbox_factory()).stop()\n"
        ),
    ],
)
def test_sandboxes_of_python_tests_are_swept_and_stopped(
    project: Project, test: str
) -> None:
    project.task("t")
    project.file("conftest.py", SWEEPS)
    project.file(
        "test_mine.py", f'import pytest\n@pytest.mark.harbor("datasets/t")\n{test}'
    )
    result = project.run("test_mine.py", "--harbor-sandbox=special")
    result.assert_outcomes(passed=1)
    assert (project.path / "swept").exists()
    assert "trouble" not in str(result.stdout)


EXITS = """
import sys
import pytest
from pytest_harbor.sandboxes.local.provider import LocalProvider

class Exits(LocalProvider):
    async def start(self, *args, **options):
        sys.exit(4)

@pytest.fixture(scope="session")
def harbor_provider():
    return Exits()

@pytest.mark.harbor("datasets/t")
def test_sandbox(harbor_sandbox):
    pass
"""


def test_a_provider_that_exits_breaks_nothing_else(project: Project) -> None:
    """The event loop and pytest's own fixtures outlive it."""
    project.task("t")
    project.file("test_mine.py", EXITS)
    result = project.run("test_mine.py", "datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*RuntimeError: SystemExit: 4*"])


def test_async_tests_get_awaitable_handles(project: Project) -> None:
    project.task("t")
    project.file(
        "test_mine.py",
        """
import pytest

@pytest.mark.anyio
@pytest.mark.harbor("datasets/t")
async def test_async(harbor_sandbox, harbor_sandbox_factory, harbor_episode):
    assert (await harbor_sandbox.exec("echo hi")).stdout == "hi\\n"
    other = await harbor_sandbox_factory()
    assert (await other.exec("exit 3")).exit_code == 3
    assert other.workdir == "/app"
    assert harbor_episode.reward == 1.0

@pytest.fixture
def anyio_backend():
    return "asyncio"
""",
    )
    project.run("test_mine.py").assert_outcomes(passed=1)


def test_marker_is_relative_to_the_test_file_first(project: Project) -> None:
    write_task(
        project.path / "tests/tasks/t", test="echo 1 > /logs/verifier/reward.txt"
    )
    write_task(project.path / "tasks/t", test="echo 0.5 > /logs/verifier/reward.txt")
    project.file(
        "tests/test_mine.py",
        'import pytest\n@pytest.mark.harbor("tasks/t")\n'
        "def test_x(harbor_task, pytestconfig):\n"
        "    assert harbor_task.folder == pytestconfig.rootpath / 'tests/tasks/t'\n",
    )
    project.run("tests/test_mine.py").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("", "*no task: mark the test with @pytest.mark.harbor*"),
        ("@pytest.mark.harbor", "*no task: mark the test*"),
        ("@pytest.mark.harbor('nowhere')", "*no task folder 'nowhere'*"),
        ("@pytest.mark.harbor('datasets')", "*no task folder 'datasets'*"),
        ("@pytest.mark.harbor('a', 'b')", "*takes one path, got 2*"),
        ("@pytest.mark.harbor(3)", "*the path is 3, not a string*"),
        ("@pytest.mark.harbor('a', agnet='x')", "*no argument 'agnet'*"),
        ("@pytest.mark.harbor('a', agent=3)", "*agent is 3, not a name*"),
        ("@pytest.mark.harbor('a', min_reward='x')", "*min_reward is 'x'*"),
        ("@pytest.mark.harbor('datasets/t', agent='noop')", "*unknown agent 'noop'*"),
        ("@pytest.mark.harbor('datasets/broken')", "*not valid TOML*"),
    ],
)
def test_bad_markers_are_errors_without_frames(
    project: Project, marker: str, message: str
) -> None:
    project.task("t")
    project.task("broken", "x = [")
    project.file(
        "test_mine.py",
        f"import pytest\n{marker}\ndef test_x(harbor_episode): pass\n",
    )
    result = project.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([message])
    assert "pytest_harbor/" not in str(result.stdout)


def test_python_tests_get_ids_only_for_several_agents(project: Project) -> None:
    project.task("t")
    project.file(
        "test_mine.py",
        """
import pytest
@pytest.mark.harbor("datasets/t")
def test_any(harbor_episode): pass
@pytest.mark.harbor("datasets/t", agent="nop")
def test_one(harbor_episode): pass
def test_plain(): pass
""",
    )
    plain = ["test_mine.py::test_any", "test_mine.py::test_one"]
    assert project.ids("test_mine.py") == [*plain, "test_mine.py::test_plain"]
    assert project.ids("test_mine.py", "--harbor-agent=oracle,nop") == [
        "test_mine.py::test_any[oracle]",
        "test_mine.py::test_any[nop]",
        "test_mine.py::test_one",
        "test_mine.py::test_plain",
    ]


def test_overriding_fixtures_apply_to_collected_items_below(project: Project) -> None:
    project.task("a/t", test=GRADE)
    project.graded("b/t", 0.4)
    project.task("c/t")
    project.file(
        "datasets/a/conftest.py",
        """
import pytest
class Mine:
    name = "mine"
    def run(self, turn):
        turn.sandbox.exec("touch /app/done")
@pytest.fixture
def harbor_agent():
    return Mine()
""",
    )
    project.file(
        "datasets/b/conftest.py",
        """
import pytest
@pytest.fixture(scope="session")
def harbor_settings(harbor_settings):
    return harbor_settings.with_changes(min_reward=0.3)
""",
    )
    project.file(
        "datasets/c/conftest.py",
        """
import pytest
@pytest.fixture(scope="session")
def harbor_provider():
    return "nowhere"
""",
    )
    result = project.run("datasets", "-rA")
    result.assert_outcomes(passed=2, errors=1)
    # An agent that replaces ours has no part in the ID: it is not known yet.
    result.stdout.fnmatch_lines(["PASSED datasets/a/t/task.toml::t"])
    result.stdout.fnmatch_lines(["PASSED datasets/b/t/task.toml::t[[]oracle[]]"])
    result.stdout.fnmatch_lines(["*unknown sandbox 'nowhere'*"])
    assert {row["agent"] for row in project.rows("rollouts.jsonl")} == {
        "mine",
        "oracle",
    }


def test_an_agent_fixture_that_wraps_ours_keeps_the_ids(project: Project) -> None:
    project.task("t")
    project.file(
        "conftest.py",
        "import pytest\n@pytest.fixture\n"
        "def harbor_agent(harbor_agent):\n    return harbor_agent\n",
    )
    assert project.ids("datasets", "--harbor-agent=oracle,nop") == [
        "datasets/t/task.toml::t[oracle]",
        "datasets/t/task.toml::t[nop]",
    ]


def test_hooks(project: Project) -> None:
    project.task("t")
    project.file(
        "conftest.py",
        """
import dataclasses
from pytest_harbor.sandboxes.local.provider import LocalProvider

class Mine:
    name = "mine"
    def run(self, turn):
        pass

def pytest_harbor_agents(config):
    return {"mine": lambda model=None: Mine()}

class Special(LocalProvider):
    name = "special"

def pytest_harbor_sandbox_providers(config):
    return {"special": Special}

def pytest_harbor_modify_task(task, config):
    return dataclasses.replace(task, instruction="Do something else.")

def pytest_harbor_event(event, item):
    if event.kind in ("episode_started", "episode_ended"):
        print("EVENT", event.kind, item.name)

def pytest_harbor_episode_finished(result, item):
    print("FINISHED", item.name, result.reward, (result.logs / "episode.json").is_file())
""",
    )
    result = project.run(
        "datasets", "-s", "--harbor-agent=mine", "--harbor-sandbox=special"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*EVENT episode_started t[[]mine[]]",
            "EVENT episode_ended t[[]mine[]]",
            "FINISHED t[[]mine[]] 1.0 True",
        ]
    )
    row = project.rows("rollouts.jsonl")[0]
    assert row["sandbox"] == "special"


def test_a_modify_hook_that_fails_breaks_its_task_only(project: Project) -> None:
    project.task("bad")
    project.task("good")
    project.file(
        "conftest.py",
        "def pytest_harbor_modify_task(task, config):\n    assert task.id != 'bad'\n",
    )
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*pytest_harbor_modify_task in *conftest.py failed: AssertionError*"]
    )


def test_fixtures_are_documented_and_none_is_autouse(project: Project) -> None:
    text = str(project.run("--fixtures").stdout)
    for name in ("settings", "provider", "agent", "task", "sandbox", "episode"):
        assert f"harbor_{name}" in text
    assert "no docstring available" not in text[text.index("harbor_settings") :][:2000]
    project.file(
        "test_mine.py",
        "def test_x(request):\n"
        "    assert not [n for n in request.fixturenames if 'harbor' in n]\n",
    )
    project.run("test_mine.py").assert_outcomes(passed=1)
