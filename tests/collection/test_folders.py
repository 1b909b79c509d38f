"""Which items a task folder becomes, and what of it is left alone."""

from __future__ import annotations

import os
import random
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from task_folders import write_task

if TYPE_CHECKING:
    from scratch_project import Project

ORACLE = "datasets/my-task/task.toml::my-task[oracle]"


@pytest.mark.parametrize(
    "argument",
    [
        "datasets",
        "datasets/my-task",
        "datasets/my-task/",
        "datasets/my-task/task.toml",
        ORACLE,
        "datasets/my-task/task.toml::my-task",
    ],
)
def test_every_way_to_name_a_task(project: Project, argument: str) -> None:
    project.task()
    assert project.ids(argument) == [ORACLE]


def test_agents_and_attempts_are_items(project: Project) -> None:
    project.task()
    assert project.ids("--harbor-agent=oracle,nop", "--harbor-attempts=2") == [
        f"datasets/my-task/task.toml::my-task[{agent}-{attempt}]"
        for agent in ("oracle", "nop")
        for attempt in (1, 2)
    ]


def test_python_inside_a_task_is_never_imported(project: Project) -> None:
    planted = "raise RuntimeError('imported')"
    names = (
        "conftest.py",
        "test_root.py",
        "__init__.py",
        "tests/conftest.py",
        "tests/test_outputs.py",
        "environment/test_app.py",
    )
    project.task(files=dict.fromkeys(names, planted))
    for argument in ("datasets", "datasets/my-task", "datasets/my-task/task.toml"):
        assert project.ids(argument) == [ORACLE], argument


@pytest.mark.parametrize(
    ("args", "testpaths"),
    [
        (["datasets"], ""),
        (["datasets/my-task", "datasets/test-it"], ""),
        (["."], ""),
        ([], "data*"),
        ([], ""),
    ],
)
def test_a_task_called_test_is_a_task(
    project: Project, args: list[str], testpaths: str
) -> None:
    """pytest imports ``test*/conftest.py`` of what is named before it collects."""
    project.file("tox.ini", f"[pytest]\ntestpaths = {testpaths}\n")
    project.task()
    project.task("test-it", files={"conftest.py": "raise RuntimeError('imported')"})
    project.file("datasets/conftest.py", "def pytest_configure(): print('above')")
    expected = [ORACLE, "datasets/test-it/task.toml::test-it[oracle]"]
    assert project.ids(*args) == expected
    project.run("datasets/test-it").assert_outcomes(passed=1)


def test_working_directory_in_a_task(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project.task(files={"conftest.py": "raise RuntimeError('imported')"})
    monkeypatch.chdir(folder)
    assert project.ids() == [ORACLE]


def test_a_path_inside_a_task_is_a_usage_error(project: Project) -> None:
    project.task(files={"tests/test_outputs.py": "raise RuntimeError"})
    result = project.run("datasets/my-task/tests/test_outputs.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*lies inside the task folder*my-task*"])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\naddopts = -v\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\naddopts = '-v'\n"),
    ],
)
def test_configuration_inside_a_task_is_refused(
    project: Project, name: str, text: str
) -> None:
    (project.path / "tox.ini").unlink()
    folder = project.task(files={name: text})
    result = project.run("datasets/my-task")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{folder / name}*lies inside the task folder*"])


def test_pyproject_without_a_pytest_table_is_harmless(project: Project) -> None:
    (project.path / "tox.ini").unlink()
    project.task(files={"pyproject.toml": "[project]\nname = 'x'\n"})
    assert project.ids("datasets/my-task") == ["task.toml::my-task[oracle]"]


def test_testpaths_still_count(project: Project) -> None:
    project.file("tox.ini", "[pytest]\ntestpaths = datasets\n")
    project.file("elsewhere/test_x.py", "def test_x(): pass")
    project.task()
    assert project.ids() == [ORACLE]


def test_a_task_inside_a_task_is_data(project: Project) -> None:
    project.task(files={"environment/inner/task.toml": ""})
    assert project.ids("datasets") == [ORACLE]


def test_nested_datasets(project: Project) -> None:
    project.task("a/b/c/leaf")
    assert project.ids("datasets") == ["datasets/a/b/c/leaf/task.toml::leaf[oracle]"]


def test_hooks_and_fixtures_of_conftest_above_apply(project: Project) -> None:
    project.task()
    project.file(
        "datasets/conftest.py",
        """
import pytest

def pytest_generate_tests(metafunc):
    if "harbor_agent" in metafunc.fixturenames:
        metafunc.parametrize("harbor_agent", ["nop", "oracle"], indirect=True)

def pytest_runtest_setup(item):
    print("SETUP", item.name)

@pytest.fixture(scope="module", autouse=True)
def once():
    print("ONCE")
""",
    )
    result = project.run("datasets", "-s", "--harbor-attempts=2")
    result.assert_outcomes(passed=4)
    assert result.outlines.count("ONCE") == 1 or str(result.stdout).count("ONCE") == 1
    assert str(result.stdout).count("SETUP my-task[") == 4
    result.stdout.fnmatch_lines(["*SETUP my-task[[]nop-1[]]*"])


@pytest.mark.parametrize(
    "args",
    [
        ["-o", "python_functions=check_*"],
        ["-o", "norecursedirs=x"],
        ["--noconftest"],
        ["--import-mode=importlib"],
        ["-p", "no:xdist"],
        ["-p", "no:cacheprovider"],
    ],
)
def test_settings_of_python_tests_do_not_matter(
    project: Project, args: list[str]
) -> None:
    project.task()
    assert project.ids("datasets", *args) == [ORACLE]


def test_keywords_and_marker(project: Project) -> None:
    project.task(
        "sweet",
        '[task]\nname = "bakery/cake"\n[metadata]\n'
        'difficulty = "hard"\ncategory = "baking"\ntags = ["c++", "sugar"]\n',
    )
    project.task("plain", '[metadata]\ndifficulty = "easy"\n')
    sweet = ["datasets/sweet/task.toml::sweet[oracle]"]
    for expression in ("c++", "sugar", "baking", "cake", "sweet"):
        assert project.ids("datasets", "-k", expression) == sweet, expression
    for expression in (
        'harbor(difficulty="hard")',
        'harbor(category="baking")',
        'harbor(task="sweet")',
    ):
        assert project.ids("datasets", "-m", expression) == sweet, expression
    assert len(project.ids("datasets", "-m", "harbor", "--strict-markers")) == 2


def test_metadata_skip_xfail_markers_and_timeout(project: Project) -> None:
    project.file("tox.ini", "[pytest]\nmarkers = nightly: slow ones\n")
    ours = "[metadata.pytest_harbor]\n"
    project.task("skipped", ours + 'skip = "not today"\n')
    project.graded("expected", 0, ours + 'xfail = "known"\n')
    project.task("marked", ours + 'markers = ["nightly"]\ntimeout = 77\n')
    project.file(
        "conftest.py",
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items:\n"
        "        mark = item.get_closest_marker('timeout')\n"
        "        print(item.name, 'timeout', mark and mark.args)\n",
    )
    result = project.run("datasets", "-rsx", "--strict-markers")
    result.assert_outcomes(passed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*marked*timeout (77*"])
    result.stdout.fnmatch_lines(["SKIPPED*datasets/skipped/task.toml*not today"])
    result.stdout.fnmatch_lines(["XFAIL*expected*known*"])
    assert project.ids("datasets", "-m", "nightly") == [
        "datasets/marked/task.toml::marked[oracle]"
    ]


def test_xfail_does_not_hide_broken_infrastructure(project: Project) -> None:
    project.task(
        "refused",
        '[metadata.pytest_harbor]\nxfail = "known"\n'
        '[verifier.env]\nKEY = "${HARBOR_TEST_UNSET}"\n',
    )
    result = project.run("datasets")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*HARBOR_TEST_UNSET*"])


def test_unregistered_marker_breaks_the_task_only(project: Project) -> None:
    project.task("odd", '[metadata.pytest_harbor]\nmarkers = ["nightly"]\n')
    project.task()
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*'nightly' is not registered*"])


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.slow
def test_a_broken_task_does_not_stop_the_others(project: Project, workers: str) -> None:
    project.task("a-broken", "x = [")
    project.task("b-empty", test=None, instruction=None)
    project.task("c-good")
    result = project.run("datasets", "-n", workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines_random(
        ["*task.toml*not valid TOML*", "*instruction.md*is missing*"]
    )
    result.stdout.fnmatch_lines(["ERROR datasets/a-broken/task.toml::a-broken - *"])
    assert "Traceback" not in str(result.stdout)


def test_a_broken_task_tells_its_warnings_too(project: Project) -> None:
    """A misspelt key may be why another one is missing."""
    project.task("a", "[environment]\ncpus = 'many'\nmemory_md = 3\n")
    result = project.run("datasets")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "task.toml: [[]environment].cpus: must be a number*",
            "warning: task.toml: unknown key [[]environment].memory_md (did you mean *",
        ]
    )


def test_a_broken_dataset_is_an_item_and_breaks_its_tasks(project: Project) -> None:
    project.task()
    project.task("../other/fine")
    project.file("datasets/dataset.toml", "[gym.defaults]\ntimeout_multiplier = 0\n")
    result = project.run("datasets", "other")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(["ERROR datasets/dataset.toml::dataset.toml*"])


def test_a_dataset_table_without_a_task_is_an_item(project: Project) -> None:
    project.task()
    project.file("datasets/dataset.toml", '[gym.tasks."nobody"]\ncpus = 2\n')
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*nobody*names no task folder*"])


def test_a_dataset_toml_of_somebody_else_is_left_alone(project: Project) -> None:
    project.file("data/dataset.toml", "not = [ toml")
    project.file("data/test_x.py", "def test_x(): pass")
    project.run("data").assert_outcomes(passed=1)


def test_ids_are_unique_in_a_dataset(project: Project) -> None:
    project.task("easy/cake")
    project.task("hard/cake")
    assert len(project.ids("datasets")) == 2
    project.run("datasets", "-k", "cake").assert_outcomes(passed=2)
    project.file("datasets/dataset.toml", "")
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*task ID 'cake' is also easy/cake*"])
    project.run("datasets/hard").assert_outcomes(errors=1)


def test_symbolic_links(project: Project) -> None:
    project.task()
    (project.path / "datasets/again").symlink_to(project.path / "datasets")
    (project.path / "datasets/deep").mkdir()
    (project.path / "datasets/deep/root").symlink_to(project.path)
    (project.path / "datasets/linked").symlink_to(project.path / "datasets/my-task")
    assert project.ids("datasets") == [
        "datasets/linked/task.toml::linked",
        ORACLE,
    ]
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*is a symbolic link*"])


@pytest.mark.parametrize("name", ["a[b", "a]b", "a::b", "x[oracle]"])
def test_names_that_node_ids_cannot_hold(project: Project, name: str) -> None:
    project.task(name)
    project.task()
    result = project.run("datasets")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*folder name*rename the folder*"])


ODD_NAMES = {
    b"bytes\xff": "bytes#xDCFF",
    b"esc\x1b[31m": "esc#x1B[31m",
    b"two\nlines": "two#x0Alines",
    b"above\xfe/inner": "above#xDCFE/inner",
    "turned\u202e".encode(): "turned#x202E",
}


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
@pytest.mark.slow
def test_names_that_reports_cannot_hold(project: Project, workers: str) -> None:
    """One such folder ended the whole run, or left XML that no parser reads."""
    project.task()
    for name in ODD_NAMES:
        write_task(project.path / "datasets" / os.fsdecode(name))
    result = project.run_apart(
        "datasets", workers, "-rA", "-v", "--junitxml=j.xml", "-ojunit_family=xunit1"
    )
    result.assert_outcomes(passed=1, errors=len(ODD_NAMES))
    text = "\n".join((*result.outlines, *result.errlines))
    assert all(line.isprintable() for line in text.splitlines())
    assert text.count("rename the folder") == len(ODD_NAMES)
    cases = ET.parse(project.path / "j.xml").getroot().iter("testcase")
    assert {case.get("file") for case in cases} == {
        "datasets/my-task/task.toml",
        *(f"datasets/{shown}/task.toml" for shown in ODD_NAMES.values()),
    }
    assert len(project.rows("rollouts_failures.jsonl")) == len(ODD_NAMES)


def test_a_task_hidden_by_norecursedirs_is_named_once(project: Project) -> None:
    project.task("build")
    project.task(solve="")
    project.file("build/notes.txt", "no task")
    result = project.run(".")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*'build' is not collected*norecursedirs*"])


def test_lookalikes_and_empty_paths_are_reported(project: Project) -> None:
    write_task(project.path / "datasets/forgot", files={"x": ""})
    (project.path / "datasets/forgot/task.toml").unlink()
    project.task(solve="")
    (project.path / "empty").mkdir()
    result = project.run("datasets", "empty")
    result.assert_outcomes(passed=1, warnings=2)
    result.stdout.fnmatch_lines_random(
        [
            "*'forgot' has instruction.md and tests/ but no task.toml*",
            "*no task and no test in */empty*",
        ]
    )


def test_old_format_gets_a_hint(project: Project) -> None:
    project.file("old/one/task.yaml", "instruction: x")
    result = project.run("old")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.stdout.fnmatch_lines(["*one/task.yaml is the format before task.toml*"])


def test_an_empty_folder_is_named(project: Project) -> None:
    (project.path / "empty").mkdir()
    result = project.run("empty")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes(warnings=1)
    result.stdout.fnmatch_lines(["*no task and no test in */empty"])


def test_python_without_tests_is_no_concern_of_ours(project: Project) -> None:
    project.file("lib/inner/code.py", "")
    result = project.run("lib")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    result.assert_outcomes()


def test_siblings_of_what_was_named_are_not_reported(project: Project) -> None:
    write_task(project.path / "datasets/forgot")
    (project.path / "datasets/forgot/task.toml").unlink()
    project.task(solve="")
    project.run("datasets/my-task").assert_outcomes(passed=1)
    project.run("datasets/forgot", "datasets/my-task").assert_outcomes(
        passed=1, warnings=2
    )


def test_loader_warnings_are_shown_once_and_never_as_errors(project: Project) -> None:
    project.task("a", "colour = 1\n[agent]\ntimeout_sec = 9\n", solve="")
    project.task("b", "colour = 1\n[agent]\ntimeout_sec = 9\n", solve="")
    result = project.run("datasets", "-W", "error")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(["*datasets/a/task.toml:1*", "*colour*"])
    project.run("datasets", "--harbor-strict").assert_outcomes(errors=2)
    ignored = "ignore::pytest_harbor.collection.warnings.PytestHarborWarning"
    project.run("datasets", "-W", ignored).assert_outcomes(passed=2)


@pytest.mark.slow
def test_warnings_are_told_by_one_worker(project: Project) -> None:
    project.task("a", "colour = 1\n[agent]\ntimeout_sec = 9\n", solve="")
    result = project.run("datasets", "-n", "2")
    result.assert_outcomes(passed=1, warnings=1)


def test_results_of_earlier_runs_are_not_collected(project: Project) -> None:
    project.task("x")
    project.file("results/old/test_planted.py", "raise RuntimeError")
    write_task(project.path / "results/old/planted")
    assert project.ids("--harbor-results=results") == [
        "datasets/x/task.toml::x[oracle]"
    ]


def test_runs_beside_other_things_are_not_collected(project: Project) -> None:
    project.task("x")
    write_task(project.path / "20260101-000000-abcdef/planted")
    assert project.ids("--harbor-results=datasets/..") == [
        "datasets/x/task.toml::x[oracle]"
    ]


@pytest.mark.slow
def test_naming_one_of_many_reads_only_that_one(project: Project) -> None:
    for number in range(300):
        project.task(f"t{number:03}")
    project.file(
        "conftest.py",
        """
import sys
READ = set()
def hook(event, args):
    if event == "open" and "/datasets/t" in str(args[0]):
        READ.add(str(args[0]))
sys.addaudithook(hook)
def pytest_collection_finish(session):
    print("READ", len(READ), any("/t123" not in name for name in READ))
""",
    )
    result = project.run_apart("datasets/t123", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["READ * False"])
    counted = next(line for line in result.outlines if line.startswith("READ"))
    assert int(counted.split()[1]) < 10


@pytest.mark.slow
def test_same_ids_whatever_the_hash_seed_and_disk_order(project: Project) -> None:
    names = [f"task-{number:02}" for number in range(12)]
    random.Random(7).shuffle(names)
    for name in names:
        project.task(name, '[metadata]\ntags = ["a", "b", "c"]\n')
    seen = set()
    for seed in ("1", "2"):
        os.environ["PYTHONHASHSEED"] = seed
        result = project.run_apart("datasets", "--collect-only", "-q")
        seen.add(tuple(line for line in result.outlines if "::" in line))
    del os.environ["PYTHONHASHSEED"]
    assert seen == {
        tuple(f"datasets/{n}/task.toml::{n}[oracle]" for n in sorted(names))
    }


def test_collect_only_shows_the_tree_and_starts_nothing(project: Project) -> None:
    project.task()
    result = project.run("datasets", "--collect-only")
    result.stdout.fnmatch_lines(
        [
            "harbor: run *, agent oracle",
            "*<TaskFolder my-task>",
            "*<TaskModule task.toml>",
            "*<Episode my-task[[]oracle[]]>",
        ]
    )
    assert "harbor: sandbox" not in str(result.stdout)
    assert not (project.path / ".pytest_harbor").exists()
