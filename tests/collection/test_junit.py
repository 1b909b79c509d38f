"""JUnit XML as strict parsers and dashboards see it (design 5.4)."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import pytest

from task_folders import write_steps_task

if TYPE_CHECKING:
    from scratch_project import Project

WITH_STEPS = """
TOOK = []
def pytest_runtest_logreport(report):
    TOOK.append(report.duration)
def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"TOOK {sum(TOOK)}")
"""


def suite(project: Project) -> ET.Element:
    found = ET.parse(project.path / "j.xml").getroot().find("testsuite")
    assert found is not None
    return found


def properties(element: ET.Element) -> list[tuple[str, str]]:
    return [
        (p.attrib["name"], p.attrib["value"]) for p in element.findall("properties/*")
    ]


@pytest.fixture
def three_steps(project: Project) -> Project:
    """A multi-step task: 1.0, then 0.25 which misses 0.5, then a step not run."""
    folder = project.path / "datasets/multi"
    toml = "".join(
        f'\n[[steps]]\nname = "{name}"\nmin_reward = 0.5\n'
        for name in ("01", "02", "03")
    )
    write_steps_task(
        folder,
        toml=toml,
        test=None,
        files={
            f"steps/{name}/{file}": text
            for name, reward in (("01", "1"), ("02", "0.25"), ("03", "1"))
            for file, text in (
                ("instruction.md", "Do it."),
                (
                    "tests/test.sh",
                    f"sleep 0.3; echo {reward} > /logs/verifier/reward.txt",
                ),
            )
        },
    )
    project.file("conftest.py", WITH_STEPS)
    return project


def test_properties_in_order(project: Project) -> None:
    project.task(
        "t",
        test='echo \'{"reward": 0.5, "style": 1, "core": 0.25}\''
        " > /logs/verifier/reward.json",
    )
    project.run(
        "datasets", "--junitxml=j.xml", "--harbor-model=m", "--harbor-min-reward=0.5"
    ).assert_outcomes(passed=1)
    (case,) = suite(project).findall("testcase")
    found = properties(case)
    assert [name for name, _ in found] == [
        "harbor.task",
        "harbor.agent",
        "harbor.model",
        "harbor.sandbox",
        "harbor.attempt",
        "harbor.reward",
        "harbor.reward.core",
        "harbor.reward.style",
        "harbor.min_reward",
        "harbor.verifier_mode",
        "harbor.digest",
        "harbor.logs",
        "harbor.seconds",
    ]
    values = dict(found)
    assert values["harbor.reward"] == "0.5"
    assert values["harbor.reward.core"] == "0.25"
    assert (project.path / values["harbor.logs"]).is_dir()
    assert (case.attrib["classname"], case.attrib["name"]) == (
        "datasets.t.task.toml",
        "t[oracle]",
    )
    assert properties(suite(project)) == [
        ("harbor.mean_reward", "0.5"),
        ("harbor.pass_rate", "1.0"),
        ("harbor.episodes", "1"),
        ("harbor.errors", "0"),
    ]


def test_failure_kind_and_message(project: Project) -> None:
    project.task("t", test="exit 1")
    project.run("datasets", "--junitxml=j.xml", "-ojunit_family=xunit1")
    (case,) = suite(project).findall("testcase")
    assert case.attrib["file"] == "datasets/t/task.toml"
    assert ("harbor.failure_kind", "harbor:no_reward_file") in properties(case)
    (failure,) = case.findall("failure")
    assert failure.attrib["message"].startswith("reward 0.00 < 1.00: no reward: ")


def test_odd_bytes_everywhere(project: Project) -> None:
    project.task(
        "t",
        "[metadata]\ncategory = 'a<b>\"&'\n",
        test="python3 -c 'import sys; sys.stdout.buffer.write(bytes(range(256)))'"
        " || printf '\\000\\001\\033[31m\\377'\n"
        "printf ']]>\\033[0m'\n"
        'printf \'{"reward": 0, "od\\\\u0000d\\\\u001b<key>": 1}\''
        " > /logs/verifier/reward.json",
    )
    result = project.run("datasets", "--junitxml=j.xml", "-ojunit_logging=all")
    result.assert_outcomes(failed=1)
    (case,) = suite(project).findall("testcase")
    names = [name for name, _ in properties(case)]
    assert "harbor.reward.od#x00d#x1B<key>" in names
    assert "]]>" in case.findall("failure")[0].text


def rows(project: Project) -> dict[str, ET.Element]:
    return {case.attrib["name"]: case for case in suite(project).findall("testcase")}


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.slow
def test_steps_are_rows_of_their_own(three_steps: Project, workers: str) -> None:
    project = three_steps
    result = project.run("datasets", "--junitxml=j.xml", "-n", workers, "-v")
    result.stdout.fnmatch_lines(
        [
            "*SUBPASSED[[]01[]] reward=1.00*",
            "*SUBFAILED[[]02[]] reward=0.25*",
            "*SUBSKIPPED[[]03[]]*",
        ]
    )
    found = rows(project)
    assert sorted(found) == [
        "01[oracle]",
        "02[oracle]",
        "03[oracle]",
        "multi[oracle]",
    ]
    # As pytest derives them from .../task.toml::multi::01[oracle].
    classes = {name: case.attrib["classname"] for name, case in found.items()}
    assert classes["01[oracle]"] == "datasets.multi.task.toml.multi"
    assert classes["multi[oracle]"] == "datasets.multi.task.toml"
    counts = suite(project).attrib
    assert [counts[key] for key in ("tests", "failures", "errors", "skipped")] == [
        "4",
        "2",
        "0",
        "1",
    ]
    assert not list(found["01[oracle]"].findall("failure"))
    (failure,) = found["02[oracle]"].findall("failure")
    assert failure.attrib["message"].startswith("reward 0.25 < min_reward 0.50")
    assert found["03[oracle]"].find("skipped") is not None
    (failure,) = found["multi[oracle]"].findall("failure")
    assert failure.attrib["message"].startswith("reward 0.62 < 1.00: step 02 missed")
    for step in ("01", "02"):
        assert float(found[f"{step}[oracle]"].attrib["time"]) >= 0.3
    values = dict(properties(found["multi[oracle]"]))
    total = sum(float(case.attrib["time"]) for case in found.values())
    measured = sum(
        float(line.split()[1]) for line in result.outlines if line.startswith("TOOK ")
    )
    assert total == pytest.approx(measured, abs=0.01)
    assert float(found["multi[oracle]"].attrib["time"]) < total - 0.6
    assert values["harbor.stopped_after_turn"] == "02"
    assert values["harbor.turn.01.reward"] == "1.0"
    assert "harbor.turn.03.reward" not in values


def test_step_rows_can_be_left_out(three_steps: Project) -> None:
    project = three_steps
    project.run("datasets", "--junitxml=j.xml", "-oharbor_junit_steps=false")
    assert list(rows(project)) == ["multi[oracle]"]
    assert float(rows(project)["multi[oracle]"].attrib["time"]) >= 0.6


def test_steps_count_once_for_maxfail_and_lines(three_steps: Project) -> None:
    project = three_steps
    result = project.run("datasets", "-x")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["step *reward*seconds*outcome", "01 *passed*", "02 *"])


@pytest.mark.slow
def test_same_xml_with_and_without_workers(project: Project) -> None:
    project.graded("a", 1)
    project.graded("b", 0.5)
    project.task("c", "x = [")

    def seen(workers: str) -> object:
        project.run("datasets", "--junitxml=j.xml", "-n", workers)
        volatile = {"harbor.logs", "harbor.seconds"}
        cases = {
            name: (
                [child.tag for child in case],
                [pair for pair in properties(case) if pair[0] not in volatile],
            )
            for name, case in sorted(rows(project).items())
        }
        counts = {
            key: value
            for key, value in suite(project).attrib.items()
            if key in {"tests", "failures", "errors", "skipped"}
        }
        return cases, counts, properties(suite(project))

    assert seen("0") == seen("2")
