"""Datasets: settings, where tasks lie, whose they are (spec 1.4, 4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_harbor.errors import Problem, TaskLoadError
from pytest_harbor.tasks.folder.dataset import (
    duplicate_ids,
    duplicate_problem,
    find_dataset_root,
    find_tasks,
    load_dataset,
    override_problems,
)
from task_folders import write_task


def write_dataset(root: Path, toml: str) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "dataset.toml").write_text(toml)
    return root


def test_what_is_read(tmp_path: Path) -> None:
    write_dataset(
        tmp_path,
        """
        [dataset]
        name = "org/set"
        version = 3
        [[tasks]]
        name = "x"
        [[files]]
        path = "y"
        [metadata]
        anything = 1
        [gym]
        license = "MIT"
        type = "train"
        allowed_agents = []
        domain = "x"
        verified = true
        source = "hub"
        [gym.builds]
        force = true
        platform = "linux/arm64/v8"
        [gym.defaults]
        timeout_multiplier = 2
        resource_multiplier = 1.5
        [gym.tasks."my.task"]
        cpus = 4
        memory = "2G"
        [gym.tasks.other.environment]
        memory_mb = 100
        """,
    )
    (tmp_path / "verifier.py").write_text("")

    dataset = load_dataset(tmp_path)

    assert dataset == load_dataset(tmp_path / "dataset.toml")
    assert (dataset.root, dataset.path) == (tmp_path, tmp_path / "dataset.toml")
    assert (dataset.timeout_multiplier, dataset.resource_multiplier) == (2, 1.5)
    assert (dataset.force_build, dataset.platform) == (True, "linux/arm64/v8")
    assert dataset.overrides == {
        "my.task": {"cpus": 4, "memory_mb": 2048},
        "other": {"memory_mb": 100},
    }
    assert dataset.verifier_py == tmp_path / "verifier.py"
    assert dataset.warnings == (
        (
            'dataset.toml: [gym.tasks."my.task"].memory is deprecated,'
            " use memory_mb = 2048"
        ),
    )


@pytest.mark.parametrize(
    ("toml", "problem"),
    [
        (
            "[gym.builds]\nplatform = 'arm64'\n",
            "[gym.builds].platform: must be linux/ARCHITECTURE[/VARIANT], not 'arm64'",
        ),
        (
            "[gym.builds]\nplatform = '--x=linux/amd64'\n",
            (
                "[gym.builds].platform: must be linux/ARCHITECTURE[/VARIANT],"
                " not '--x=linux/amd64'"
            ),
        ),
        (
            "[gym.defaults]\nresource_multiplier = 0\n",
            "[gym.defaults].resource_multiplier: must be a positive number, not 0",
        ),
    ],
)
def test_values_that_cannot_be_used(tmp_path: Path, toml: str, problem: str) -> None:
    write_dataset(tmp_path, toml)
    with pytest.raises(TaskLoadError) as caught:
        load_dataset(tmp_path)
    assert str(caught.value) == f"dataset.toml: {problem}"


def test_unknown_override_keys_are_tolerated_and_named(tmp_path: Path) -> None:
    write_dataset(tmp_path, '[gym.tasks."a"]\nmemory_gb = 4\ncpus = 1\n')

    dataset = load_dataset(tmp_path)

    assert dataset.overrides == {"a": {"cpus": 1}}
    assert dataset.warnings == (
        (
            'dataset.toml: unknown key [gym.tasks."a"].memory_gb'
            ' (did you mean [gym.tasks."a"].memory_mb?)'
        ),
    )


@pytest.mark.parametrize(
    ("toml", "line"),
    [
        (
            "[gym.default]\ntimeout_multiplier = 2\n",
            "unknown key [gym.default] (did you mean [gym.defaults]?)",
        ),
        (
            "[gym.defaults]\ntimeout_multipler = 2\n",
            (
                "unknown key [gym.defaults].timeout_multipler"
                " (did you mean [gym.defaults].timeout_multiplier?)"
            ),
        ),
        ("[gym.defaults]\nrollouts = 2\n", "unknown key [gym.defaults].rollouts"),
        (
            "[gym.task.'a']\ncpus = 1\n",
            "unknown key [gym.task] (did you mean [gym.tasks]?)",
        ),
        (
            "[datasets]\nname = 'x'\n",
            "unknown key [datasets] (did you mean [dataset]?)",
        ),
        ("[bogus]\nx = 1\n", "unknown key [bogus]"),
        ("[gim]\nx = 1\n", "unknown key [gim]"),
        (
            "[gym]\nlicence = 'MIT'\n",
            "unknown key [gym].licence (did you mean [gym].license?)",
        ),
    ],
)
def test_an_unknown_key_is_named_and_strict_refuses_it(
    tmp_path: Path, toml: str, line: str
) -> None:
    write_dataset(tmp_path, toml)

    assert load_dataset(tmp_path).warnings == (f"dataset.toml: {line}",)
    with pytest.raises(TaskLoadError) as caught:
        load_dataset(tmp_path, strict=True)
    (problem,) = caught.value.problems
    assert str(problem) == f"dataset.toml: {line}"


def test_legacy_keys_of_an_override_are_no_error_in_strict(tmp_path: Path) -> None:
    write_dataset(tmp_path, '[gym.tasks."a"]\nmemory = "2G"\n')

    assert load_dataset(tmp_path, strict=True).overrides == {"a": {"memory_mb": 2048}}


def test_a_dataset_may_be_a_verifier_alone(tmp_path: Path) -> None:
    (tmp_path / "verifier.py").write_text("")

    dataset = load_dataset(tmp_path)

    assert dataset.verifier_py == tmp_path / "verifier.py"
    assert dataset.timeout_multiplier == 1


@pytest.mark.parametrize(
    ("toml", "text", "rule"),
    [
        ("[gym", "dataset.toml: is not valid TOML: ", "X01"),
        (
            "[gym.defaults]\ntimeout_multiplier = 0\n",
            "dataset.toml: [gym.defaults].timeout_multiplier: must be a positive",
            "X27",
        ),
        (
            "[gym.defaults]\ntimeout_multiplier = inf\n",
            "[gym.defaults].timeout_multiplier: must be a positive number, not inf",
            "X27",
        ),
        (
            "[gym.defaults]\ntimeout_multiplier = '2'\n",
            "[gym.defaults].timeout_multiplier: must be a number, not the string '2'",
            "X01",
        ),
        ("gym = 3\n", "dataset.toml: [gym]: must be a table, not the number 3", "X01"),
        (
            "[gym.tasks.\"a\"]\ncpus = 'two'\n",
            'dataset.toml: [gym.tasks."a"].cpus: must be a number, not the string',
            "X01",
        ),
        (
            '[gym.tasks."a"]\ninputs = []\n',
            'dataset.toml: [gym.tasks."a"].inputs: sidecar inputs are not supported',
            "X28",
        ),
        (
            "[gym.verifier]\ninputs = []\n",
            "dataset.toml: [gym.verifier].inputs: sidecar inputs are not supported",
            "X28",
        ),
    ],
)
def test_a_dataset_is_refused(tmp_path: Path, toml: str, text: str, rule: str) -> None:
    write_dataset(tmp_path, toml)

    with pytest.raises(TaskLoadError) as caught:
        load_dataset(tmp_path)

    (problem,) = caught.value.problems
    assert text in str(problem)
    assert problem.rule == rule


def test_an_override_of_no_task_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, '[gym.tasks."a"]\ncpus = 1\n[gym.tasks."b"]\ncpus = 1\n')
    write_task(tmp_path / "deep" / "a")
    dataset = load_dataset(tmp_path)

    expected = Problem(
        "dataset.toml",
        '[gym.tasks."b"] names no task folder; correct the name or remove the table',
        "X29",
    )
    assert override_problems(dataset) == (expected,)
    assert override_problems(dataset, [tmp_path / "deep" / "a"]) == (expected,)
    write_task(tmp_path / "b")
    assert override_problems(dataset) == ()


def test_tasks_are_found_six_levels_down_in_the_order_of_their_paths(
    tmp_path: Path,
) -> None:
    sixth = write_task(tmp_path / "1/2/3/4/5/six")
    write_task(tmp_path / "1/2/3/4/5/6/seven")
    write_task(tmp_path / ".hidden/a")
    write_task(tmp_path / "b", files={"environment/nested/task.toml": ""})
    write_task(tmp_path / "a")
    (tmp_path / "a.txt").write_text("")

    assert find_tasks(tmp_path) == [sixth, tmp_path / "a", tmp_path / "b"]
    assert find_tasks(tmp_path / "b") == [tmp_path / "b"]
    assert find_tasks(tmp_path / "1/2") == [tmp_path / "1/2/3/4/5/6/seven", sixth]


def test_links_are_not_followed_but_a_linked_task_is_listed(tmp_path: Path) -> None:
    outside = write_task(tmp_path / "outside/group/task")
    root = tmp_path / "root"
    root.mkdir()
    (root / "group").symlink_to(outside.parent)
    (root / "loop").symlink_to(root)
    (root / "task").symlink_to(outside)

    assert find_tasks(root) == [root / "task"]


def test_a_second_task_of_the_same_id_is_told(tmp_path: Path) -> None:
    first = write_task(tmp_path / "a/same")
    second = write_task(tmp_path / "b/same")
    write_task(tmp_path / "c/other")

    assert duplicate_ids(tmp_path) == {second: first}
    assert duplicate_ids([second, first]) == {first: second}
    assert duplicate_problem(second, first, tmp_path) == Problem(
        "", "task ID 'same' is also a/same; rename one", "X06"
    )


def test_the_root_is_the_nearest_dataset_toml_else_the_nearest_verifier(
    tmp_path: Path,
) -> None:
    task = tmp_path / "a/b/c/task"
    task.mkdir(parents=True)
    assert find_dataset_root(task, stop=tmp_path) is None

    (tmp_path / "a/verifier.py").write_text("")
    assert find_dataset_root(task, stop=tmp_path) == tmp_path / "a"
    assert find_dataset_root(task, stop=tmp_path / "a/b") is None

    write_dataset(tmp_path, "")
    assert find_dataset_root(task, stop=tmp_path) == tmp_path
    write_dataset(tmp_path / "a/b", "")
    assert find_dataset_root(task, stop=tmp_path) == tmp_path / "a/b"


def test_a_dataset_is_at_most_six_levels_up(tmp_path: Path) -> None:
    write_dataset(tmp_path, "")

    sixth = tmp_path / "1/2/3/4/5/task"
    assert find_dataset_root(sixth, stop=tmp_path.parent) == tmp_path
    assert find_dataset_root(sixth / "more", stop=tmp_path.parent) is None
