"""Extensions that do not keep to the hooks: told by name, and nobody else suffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scratch_project import Project

AGENTS = "pytest_harbor_agents"
PROVIDERS = "pytest_harbor_sandbox_providers"


@pytest.mark.parametrize(
    ("hook", "body", "message"),
    [
        (AGENTS, "raise ValueError('no')", "failed: ValueError: no"),
        (AGENTS, "return ['x']", "returned ['x']; expected a mapping of names*"),
        (AGENTS, "return {'x': 3}", "has 3 as 'x'; expected a mapping of names*"),
        (AGENTS, "return {3: dict}", "has <class 'dict'> as 3; expected*"),
        (PROVIDERS, "raise ValueError('no')", "failed: ValueError: no"),
        (PROVIDERS, "return 3", "returned 3; expected a mapping of names*"),
        (PROVIDERS, "return {'local': 3}", "has 3 as 'local'; expected*"),
    ],
)
def test_a_bad_offer_is_a_usage_error(
    project: Project, hook: str, body: str, message: str
) -> None:
    project.task("t")
    project.file("conftest.py", f"def {hook}(config):\n    {body}\n")
    result = project.run("datasets")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    pattern = message.replace("[", "[[]")
    result.stderr.fnmatch_lines([f"ERROR: {hook} in *conftest.py {pattern}"])
    assert "INTERNALERROR" not in str(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("hook", [AGENTS, PROVIDERS])
def test_a_bad_offer_is_a_usage_error_with_workers(project: Project, hook: str) -> None:
    project.task("t")
    project.file("conftest.py", f"def {hook}(config):\n    return 3\n")
    result = project.run("datasets", "-n1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {hook} in *conftest.py returned 3; *"])


def test_a_bad_offer_is_an_error_of_python_tests(project: Project) -> None:
    project.task("t")
    project.file("conftest.py", f"def {AGENTS}(config):\n    return 3\n")
    project.file(
        "test_mine.py",
        'import pytest\n@pytest.mark.harbor("datasets/t")\n'
        "def test_x(harbor_episode):\n    pass\n",
    )
    result = project.run("test_mine.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"{AGENTS} in *conftest.py returned 3; *"])


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("lambda: 1 / 0", "*provider 'mine' of *cannot be made: ZeroDivisionError*"),
        ("dict", "*provider 'mine' of *is {}; expected a pytest_harbor.Provider*"),
    ],
)
def test_a_factory_that_makes_no_provider(
    project: Project, factory: str, message: str
) -> None:
    project.task("t")
    project.file(
        "conftest.py", f"def {PROVIDERS}(config):\n    return {{'mine': {factory}}}\n"
    )
    result = project.run("datasets", "--harbor-sandbox=mine")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["harbor: sandbox mine: " + message, message])


def test_the_last_plugin_that_is_asked_first_wins(project: Project) -> None:
    one = "def {hook}(config):\n    return {{'x': {value}}}\n"
    for name, value in (("early", "str"), ("late", "__import__('late').Agent")):
        project.file(f"{name}.py", one.format(hook=AGENTS, value=value))
    with (project.path / "late.py").open("a") as file:
        file.write("class Agent:\n    name = 'x'\n    def run(self, turn): pass\n")
    project.task("t")
    options = ("-opythonpath=.", "-pearly", "-plate", "--harbor-agent=x")
    project.run("datasets", *options).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 3", "returned 3; expected a changed copy of the task, or None"),
        ("raise ValueError('no')", "failed: ValueError: no"),
    ],
)
def test_a_bad_modification_breaks_its_task(
    project: Project, body: str, message: str
) -> None:
    project.file(
        "conftest.py",
        f"def pytest_harbor_modify_task(task):\n    if task.id == 'a':\n        {body}\n",
    )
    project.task("a")
    project.task("b")
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [f"pytest_harbor_modify_task in *conftest.py {message}"]
    )
