"""Steps of a task as subtests: live, once each, and the same everywhere (design 4, 5.4)."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_junit import properties, rows, suite

from pytest_harbor.collection.live_steps import LiveSteps
from pytest_harbor.collection.step_reports import StepReport
from pytest_harbor.verdicts import StepVerdict
from task_folders import write_steps_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scratch_project import Project

# What a step is worth is in its tests/: reward.json is "written" by the verifier, and a
# "lost" file lets the sandbox die there, once. After it, first tries are worth 0.5.
CONFTEST = """
import json, sys
sys.path.insert(0, {tests!r})
import pytest
from scripted_sandbox import OK, ScriptedProvider
from pytest_harbor.errors import SandboxLost

LOST = []

def answer(command):
    files = command.sandbox.files
    if "/tests/test.sh" not in command.text:
        return OK
    if "/tests/lost" in files and len(LOST) < int(files["/tests/lost"]):
        LOST.append(1)
        return SandboxLost("the machine went away")
    if "/tests/reward.json" in files:
        name = "/tests/again.json" if LOST and "/tests/again.json" in files else "/tests/reward.json"
        files["/logs/verifier/reward.json"] = files[name]
    return OK

@pytest.fixture(scope="session")
def harbor_provider():
    return ScriptedProvider(answer=answer)
"""
TESTS = str(Path(__file__).resolve().parents[1])


@pytest.fixture
def scripted(project: Project) -> Project:
    """The project, with a provider that needs no machine."""
    project.file("conftest.py", CONFTEST.format(tests=TESTS))
    return project


def steps(
    project: Project,
    *rewards: Mapping[str, float] | None,
    gates: str = "",
    name: str = "multi",
    files: Mapping[str, str] | None = None,
) -> Path:
    """A task with a step per reward file; ``None`` is a verifier that writes none."""
    names = [f"{number:02}" for number in range(1, len(rewards) + 1)]
    toml = "".join(f'\n[[steps]]\nname = "{step}"\n{gates}\n' for step in names)
    content = {f"steps/{step}/instruction.md": "Do it." for step in names}
    content |= {f"steps/{step}/solution/solve.sh": "true" for step in names}
    for step, reward in zip(names, rewards, strict=True):
        if reward is not None:
            content[f"steps/{step}/tests/reward.json"] = json.dumps(reward)
    return write_steps_task(
        project.path / "datasets" / name, toml=toml, files=content | dict(files or {})
    )


def told(result: pytest.RunResult) -> list[str]:
    """The steps on the screen, in order; those that a retry took back, too."""
    return re.findall(r"SUB\w+\[\w+\](?: reward=[\d.]+)?", str(result.stdout))


FULL = {"reward": 1.0}
HALF = {"reward": 0.5}
NO_REWARD = (
    "no reward: test.sh ended with exit code 0 and wrote neither reward.json nor "
    "reward.txt"
)


# -- live -----------------------------------------------------------------------------

WAITS = """
from pathlib import Path
import time

class Waits:
    name = "waits"
    def run(self, turn):
        if turn.index == 0:
            return
        told = Path({seen!r}, f"0{{turn.index}}")
        until = time.monotonic() + 60
        while not told.exists():
            assert time.monotonic() < until, f"{{told.name}} was not told in its time"
            time.sleep(0.01)
"""
MARKS = """
def pytest_runtest_logreport(report):
    if report.when == "step" and {is_controller}:
        from pathlib import Path
        name = report.harbor["name"]
        Path({seen!r}, name).touch()
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.slow
def test_a_step_is_told_before_the_next_one_ends(
    scripted: Project, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """The agent of each turn goes on only when the report of the one before arrived."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of these tests' own
    project = scripted
    steps(project, FULL, FULL, FULL)
    seen = project.path / "seen"
    seen.mkdir()
    project.file("waits.py", WAITS.format(seen=str(seen)))
    marks = MARKS.format(
        seen=str(seen),
        is_controller="'PYTEST_XDIST_WORKER' not in __import__('os').environ",
    )
    project.file("conftest.py", CONFTEST.format(tests=TESTS) + marks)
    result = project.run_apart(
        "datasets",
        "-v",
        "-n",
        workers,
        "--harbor-agent=waits:Waits",
        "-opythonpath=.",
        "-oharbor_agent_outcome_policy=default = fail",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [f"*SUBPASSED[[]0{n}[]] reward=1.00*" for n in (1, 2, 3)]
    )
    result.stdout.fnmatch_lines(["*1 passed, 3 subtests passed*"])


# -- lines ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gate", "reward", "line"),
    [
        ("min_reward = 0.5", {"reward": 0.5}, "SUBPASSED[01] reward=0.50"),
        (
            "min_reward = 0.5",
            {"reward": 0.3},
            "SUBFAILED[01] reward=0.30 (reward 0.30 < min_reward 0.50)",
        ),
        (
            "min_reward = 0.5",
            {"reward": 0.4999},
            "SUBFAILED[01] reward=0.50 (reward 0.4999 < min_reward 0.5000)",
        ),
        (
            "min_reward = {core = 0.5, style = 0.1}",
            {"reward": 1.0, "core": 0.4, "style": 1.0},
            "SUBFAILED[01] reward=1.00 (core 0.40 < min_reward 0.50)",
        ),
        (
            "min_reward = {core = 0.5}",
            {"reward": 1.0},
            "SUBFAILED[01] reward=1.00 (no key 'core', min_reward 0.50)",
        ),
        (
            "",
            None,
            f"SUBFAILED[01] reward=0.00 ({NO_REWARD})",
        ),
    ],
)
def test_the_line_of_a_step_says_why(
    scripted: Project, gate: str, reward: Mapping[str, float] | None, line: str
) -> None:
    project = scripted
    steps(project, reward, FULL, gates=gate)
    result = project.run("datasets", "-v", "--harbor-min-reward=0.1")
    lines = [at[at.index("SUB") :] for at in result.outlines if " SUB" in at]
    assert re.sub(r" +\[ *\d+%\]$", "", lines[0]) == line
    if "FAILED" in line:
        result.assert_outcomes(failed=1)
        assert "SUBSKIPPED[02] (not run: stopped after 01)" in lines[1]
        result.stdout.fnmatch_lines(
            ["*1 failed, 1 subtests failed, 1 subtests skipped*"]
        )


def test_progress_speaks_of_phases_and_not_twice_of_rewards(scripted: Project) -> None:
    project = scripted
    steps(project, FULL)
    reward = {"tests/reward.json": json.dumps(FULL)}
    project.task("single", solve="true", files=reward)
    text = project.run("datasets", "-v").outlines
    ours = [line.strip() for line in text if re.match(r"  \w+\[oracle\]: ", line)]
    assert ours == [
        "multi[oracle]: sandbox scripted ready",
        "multi[oracle]: 01: prepare",
        "multi[oracle]: 01: agent",
        "multi[oracle]: 01: verify",
        "single[oracle]: sandbox scripted ready",
        "single[oracle]: agent",
        "single[oracle]: verify",
        "single[oracle]: reward 1.00",
    ]
    places = [i for i, line in enumerate(text) if "[oracle]" in line]
    assert places == list(range(places[0], places[-1] + 1)), "blank lines between"


@pytest.mark.parametrize("quiet", ["-q", "-qq", "--color=yes"])
def test_passed_steps_are_silent_without_verbosity(
    scripted: Project, quiet: str
) -> None:
    project = scripted
    steps(project, FULL, FULL)
    result = project.run("datasets", quiet)
    assert result.ret == 0
    text = str(result.stdout)
    assert "SUBPASSED" not in text
    assert "u" not in re.findall(r"^datasets\S+ (\w+)", text, re.MULTILINE)
    assert re.findall(r"^(\S+) +\[100%\]$", text, re.MULTILINE) in ([], ["."])


# -- once each ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_retried_episode_leaves_nothing_of_the_broken_try(
    scripted: Project, workers: str
) -> None:
    """The sandbox dies in turn 2; turn 1, worth 0.5 at first, is worth 1 in the retry."""
    project = scripted
    steps(
        project,
        HALF,
        FULL,
        files={
            "steps/01/tests/again.json": json.dumps(FULL),
            "steps/02/tests/lost": "1",
        },
    )
    result = project.run("datasets", "-v", "-n", workers, "--junitxml=j.xml")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*SUBPASSED[[]01[]] reward=0.50*",
            "*trying again: the machine went away",
            "*SUBPASSED[[]01[]] reward=1.00*",
            "*1 passed, 2 subtests passed*",
        ]
    )
    assert told(result) == [
        "SUBPASSED[01] reward=0.50",
        "SUBPASSED[01] reward=1.00",
        "SUBPASSED[02] reward=1.00",
    ]
    assert suite(project).attrib["tests"] == "3"
    found = rows(project)
    assert len(suite(project).findall("testcase")) == len(found) == 3
    (reward,) = found["01[oracle]"].iter("property")
    assert reward.attrib["value"] == "1.0"


def test_an_outage_after_all_retries_is_the_running_steps_error(
    scripted: Project,
) -> None:
    project = scripted
    steps(project, FULL, FULL, FULL, files={"steps/02/tests/lost": "2"})
    result = project.run("datasets", "-v", "--junitxml=j.xml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*trying again*",
            "*giving up*",
            "*SUBERROR[[]02[]] (harbor:sandbox_lost: the machine went away)*",
            "*SUBSKIPPED[[]03[]] (not run: stopped after 02)*",
            "*1 error, 1 subtests passed, 1 subtests failed, 1 subtests skipped*",
        ]
    )
    assert told(result) == [
        "SUBPASSED[01] reward=1.00",
        "SUBPASSED[01] reward=1.00",
        "SUBERROR[02]",
        "SUBSKIPPED[03]",
    ]
    found = rows(project)
    assert sorted(found) == ["01[oracle]", "02[oracle]", "03[oracle]", "multi[oracle]"]
    assert [
        found[f"{name}[oracle]"].find("error") is not None for name in ("01", "02")
    ] == [
        False,
        True,
    ]


def test_every_step_of_a_refused_task_is_skipped(scripted: Project) -> None:
    project = scripted
    folder = steps(project, FULL, FULL)
    toml = folder / "task.toml"
    toml.write_text('[solution.env]\nKEY = "${NOBODY_SETS_THIS}"\n' + toml.read_text())
    result = project.run("datasets", "-v")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            f"*SUBSKIPPED[[]{name}[]] (not run: *NOBODY_SETS_THIS*"
            for name in ("01", "02")
        ]
    )
    result.stdout.fnmatch_lines(["*1 error, 2 subtests skipped*"])


def test_a_rerun_item_tells_its_steps_anew(scripted: Project) -> None:
    """pytest-rerunfailures runs the item again; what its first run told does not count."""
    project = scripted
    steps(project, FULL, HALF)
    result = project.run("datasets", "-v", *project.reruns, "--junitxml=j.xml")
    result.stdout.fnmatch_lines(["*1 failed, 2 subtests passed, 1 rerun*"])
    names = [case.attrib["name"] for case in suite(project).findall("testcase")]
    # The item has a case for each run, as pytest-rerunfailures has it; a step has one.
    assert sorted(names) == ["01[oracle]", "02[oracle]", *["multi[oracle]"] * 2]


@pytest.mark.slow
def test_a_time_limit_of_the_item_is_the_running_steps_error(scripted: Project) -> None:
    project = scripted
    project.file(
        "slow.py",
        "import anyio\n"
        "class Slow:\n"
        "    name = 'slow'\n"
        "    async def run(self, turn):\n"
        "        if turn.index == 1:\n"
        "            await anyio.sleep_forever()\n",
    )
    steps(project, FULL, FULL, FULL)
    result = project.run_apart(
        "datasets", "-v", "--timeout=3", "--harbor-agent=slow:Slow", "-opythonpath=."
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        [
            "*SUBPASSED[[]01[]] reward=1.00*",
            "*SUBERROR[[]02[]] (cancelled: *Timeout*",
            "*SUBSKIPPED[[]03[]] (not run: stopped after 02)*",
        ]
    )


@pytest.mark.slow
def test_steps_of_a_killed_workers_item_keep_their_rows(
    scripted: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    project = scripted
    steps(project, FULL, FULL)
    seen = project.path / "seen"
    seen.mkdir()
    project.file(
        "dies.py",
        WAITS.format(seen=str(seen))
        + "class Dies(Waits):\n"  # once the first report is out
        "    def run(self, turn):\n"
        "        super().run(turn)\n"
        "        if turn.index == 1:\n"
        "            __import__('os').kill(__import__('os').getpid(), 9)\n",
    )
    marks = MARKS.format(
        seen=str(seen),
        is_controller="'PYTEST_XDIST_WORKER' not in __import__('os').environ",
    )
    project.file("conftest.py", CONFTEST.format(tests=TESTS) + marks)
    result = project.run_apart(
        "datasets",
        "-n1",
        "--harbor-agent=dies:Dies",
        "-opythonpath=.",
        "--junitxml=j.xml",
    )
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running*"])
    found = rows(project)
    assert sorted(found) == ["01[dies:Dies]", "multi[dies:Dies]"]
    assert float(found["multi[dies:Dies]"].attrib["time"]) == 0


class FakeItem:
    """Just enough of an item to send reports."""

    nodeid = "datasets/multi/task.toml::multi[oracle]"
    location = ("datasets/multi/task.toml", 0, "multi[oracle]")

    def __init__(self) -> None:
        self.sent: list[StepReport] = []
        self.config = self.pluginmanager = self.ihook = self

    def getplugin(self, name: str) -> None:
        return None

    def pytest_runtest_logreport(self, report: StepReport) -> None:
        self.sent.append(report)


def test_the_episodes_verdict_has_the_last_word() -> None:
    item: Any = FakeItem()
    live = LiveSteps(item, plan=None, must_miss=False)  # type: ignore[arg-type]
    passed = StepVerdict("01", 0, "passed", "reward 1.00", 1.0)
    live.settle([passed])
    live.settle([passed])
    assert [report.when for report in item.sent] == ["step"]
    failed = StepVerdict("01", 0, "failed", "reward 0.00 < min_reward 1.00", 0.0)
    live.settle([failed, StepVerdict("02", 1, "skipped", "not run")])
    assert [report.when for report in item.sent[1:]] == ["retracted", "step", "step"]
    assert item.sent[2].harbor["outcome"] == "failed"


# -- what people do with tests --------------------------------------------------------


@pytest.fixture
def mixed(scripted: Project) -> Project:
    """Tasks of several steps; the first and the third fail at their second step."""
    gate = "min_reward = 1.0"
    seconds = {"apple": HALF, "berry": FULL, "cherry": HALF, "date": FULL}
    for name, second in seconds.items():
        steps(scripted, FULL, second, FULL, gates=gate, name=name)
    return scripted


@pytest.mark.parametrize(
    ("args", "counts"),
    [
        # As with pytest's own subtests, passed and skipped ones count with -v only.
        ([], "2 failed, 2 passed, 2 subtests failed"),
        (["-q"], "2 failed, 2 passed, 2 subtests failed"),
        (
            ["-v"],
            "2 failed, 2 passed, 8 subtests passed, 2 subtests failed, 2 subtests skipped",
        ),
        (["-x"], "1 failed, 1 subtests failed"),
        (["--maxfail=2"], "2 failed, 1 passed, 2 subtests failed"),
        (
            ["-k", "berry or cherry"],
            "1 failed, 1 passed, 2 deselected, 1 subtests failed",
        ),
        (
            ["--deselect=datasets/apple"],
            "1 failed, 2 passed, 1 deselected, 1 subtests failed",
        ),
    ],
)
def test_an_item_counts_once(mixed: Project, args: list[str], counts: str) -> None:
    result = mixed.run("datasets", *args)
    assert result.ret == 1
    assert re.sub("^=+ | in .*", "", result.outlines[-1]) == counts


def test_last_failed_selects_the_item(mixed: Project) -> None:
    mixed.run("datasets")
    assert mixed.ids("datasets", "--lf") == [
        f"datasets/{name}/task.toml::{name}[oracle]" for name in ("apple", "cherry")
    ]


def test_everything_is_right_without_a_terminal(mixed: Project) -> None:
    result = mixed.run("datasets", "-p", "no:terminal", "--junitxml=j.xml")
    assert result.ret == 1
    counts = suite(mixed).attrib
    assert [counts[key] for key in ("tests", "failures", "errors", "skipped")] == [
        "16",
        "4",
        "0",
        "2",
    ]


@pytest.mark.slow
def test_the_same_xml_with_and_without_workers(mixed: Project) -> None:
    volatile = {"harbor.logs", "harbor.seconds"}

    def seen(workers: str) -> object:
        mixed.run_apart("datasets", "--junitxml=j.xml", "-n", workers)
        counts = {
            key: suite(mixed).attrib[key]
            for key in ("tests", "failures", "errors", "skipped")
        }
        cases = [
            (
                case.attrib["classname"],
                case.attrib["name"],
                [
                    (child.tag, child.get("message", "").split("\n")[0])
                    for child in case
                ],
                [
                    pair
                    for pair in properties(case)
                    if pair[0] not in volatile and not pair[0].endswith(".seconds")
                ],
            )
            for case in suite(mixed).findall("testcase")
        ]
        assert len(cases) == int(counts["tests"]) == 16
        return counts, sorted(cases)

    assert seen("0") == seen("2")


def test_steps_failing_as_validation_wants_are_passed(scripted: Project) -> None:
    project = scripted
    steps(project, {"reward": 0.0}, FULL, gates="min_reward = 1.0")
    (project.path / "datasets/multi/solution").mkdir()
    (project.path / "datasets/multi/solution/solve.sh").write_text("true\n")
    result = project.run("datasets", "--harbor-validate", "-v", "-k", "nop")
    result.assert_outcomes(passed=1, deselected=1)
    assert told(result) == ["SUBPASSED[01] reward=0.00", "SUBSKIPPED[02]"]


def test_the_failure_shows_a_table_of_turns(scripted: Project) -> None:
    project = scripted
    steps(project, FULL, {"reward": 0.3}, FULL, gates="min_reward = 0.5")
    result = project.run("datasets")
    table = result.outlines[result.outlines.index("step  reward  seconds  outcome") :]
    assert [re.sub(r"\d\.\d  (?=\w)", "T  ", line) for line in table[1:4]] == [
        "01      1.00      T  passed",
        "02      0.30      T  failed: reward 0.30 < min_reward 0.50",
        "03         -        -  skipped: not run: stopped after 02",
    ]


# The Docker client leaves its socket to the garbage collector when nobody answers.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("where", ["task", "step"])
def test_a_verifiers_image_makes_it_a_task_for_docker(
    project: Project, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    image = 'docker_image = "nobody/nothing:1"\n'
    task = f"[verifier.environment]\n{image}" if where == "task" else ""
    step = f"[steps.verifier.environment]\n{image}" if where == "step" else ""
    write_steps_task(
        project.path / "datasets/multi",
        toml=f'{task}[[steps]]\nname = "01"\n{step}',
        files={"steps/01/instruction.md": "Do it."},
    )
    result = project.run("datasets")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["harbor: sandbox docker is not available: *", "*sandbox_unavailable: *ocker*"]
    )
    gc.collect()


def test_turns_and_their_artifacts_in_python(project: Project) -> None:
    """A Python test sees every turn, and its own tests pass or fail as they like."""
    toml = "".join(
        f'\n[[steps]]\nname = "{name}"\nartifacts = ["/app/{name}.txt"]\n'
        for name in ("one", "two")
    )
    write_steps_task(
        project.path / "datasets/multi",
        toml=toml,
        files={
            f"steps/{name}/{file}": text
            for name in ("one", "two")
            for file, text in (
                ("instruction.md", "Do it."),
                ("solution/solve.sh", f"echo {name} > /app/{name}.txt"),
            )
        },
    )
    project.file(
        "test_multi.py",
        "import pytest\n"
        "@pytest.mark.harbor('datasets/multi')\n"
        "def test_multi(harbor_episode):\n"
        "    one, two = harbor_episode.turns\n"
        "    assert (one.name, two.name) == ('one', 'two')\n"
        "    assert one.artifact('app/one.txt').read_text() == 'one\\n'\n"
        "    assert two.artifact('app/two.txt').read_text() == 'two\\n'\n"
        "    assert not one.artifact('app/two.txt').exists()\n"
        "    assert harbor_episode.reward == 1.0\n",
    )
    result = project.run("test_multi.py", "-v", "--junitxml=j.xml")
    result.assert_outcomes(passed=1)
    assert "SUBPASSED" not in str(result.stdout)
    assert list(rows(project)) == ["test_multi"]
