"""Step tasks as items: outcomes, subtests, records, JUnit (design 4, 5.4, 5.5)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from test_junit import properties, suite

if TYPE_CHECKING:
    from scratch_project import Project

CONFTEST = """
import collections
import anyio
import pytest
from pytest_harbor.errors import SandboxLost, StepError
from pytest_harbor.graphs.context import Put
from pytest_harbor.graphs.steps.api import StepType
from pytest_harbor.tasks.steps.step import Step

TRIES = []

class Do(Step):
    fails: str = ""
    times: int = 1000
    score: float | None = None
    warns: str = ""
    hangs: bool = False
    after: str = ""

ENDS = collections.defaultdict(anyio.Event)

async def do(step, run):
    if step.after:
        await ENDS[step.after].wait()
    try:
        await work(step, run)
    finally:
        ENDS[step.id].set()

async def work(step, run):
    TRIES.append(step.id)
    if step.warns:
        run.warn(step.warns)
    if step.hangs:
        await anyio.sleep_forever()
    if step.fails and TRIES.count(step.id) <= step.times:
        raise SandboxLost(step.fails) if "machine" in step.fails else StepError(step.fails)
    if step.score is not None:
        rows = [{"id": "c", "criterion": "is good", "result": step.score >= 1, "score": step.score}]
        run.write(Put("verifications", step.id, {"results": rows, "score": step.score}))

@pytest.hookimpl
def pytest_harbor_step_types():
    return {"do": StepType(Do, do)}
"""


@pytest.fixture
def doing(project: Project) -> Project:
    project.file("conftest.py", CONFTEST)
    return project


def task(project: Project, name: str, *steps: dict[str, Any]) -> None:
    whole = [
        {"id": f"s{number}", "type": "do", **step}
        for number, step in enumerate(steps, 1)
    ]
    project.file(f"{name}.task.json", json.dumps(whole))


@pytest.mark.parametrize(
    ("steps", "options", "outcome", "text"),
    [
        ([{}], [], "passed", ""),
        ([{"score": 1}], [], "passed", ""),
        ([{"score": 0.5}], [], "failed", "reward 0.50 < 1.00: s1 0.50"),
        ([{"score": 0.5}], ["--harbor-min-reward", "0.5"], "passed", ""),
        (
            [{"score": 0.5}, {"score": 1}],
            [],
            "failed",
            "reward 0.50 < 1.00: s1 0.50",
        ),
        (
            [{"fails": "no such door"}],
            [],
            "failed",
            "step 's1' (do) failed: no such door",
        ),
        (
            [{"score": 0.5}, {"fails": "no such door"}],
            [],
            "failed",
            "reward 0.50, but step 's2' (do) failed: no such door",
        ),
        (
            [{"fails": "the machine is gone"}],
            [],
            "errors",
            "step 's1' (do) failed: the machine is gone",
        ),
        (
            [{"fails": "a pity", "fail_task_on_error": False}],
            [],
            "failed",
            "step 's1' (do) failed: a pity (tolerated; --harbor-allow-tolerated)",
        ),
        (
            [{"fails": "a pity", "fail_task_on_error": False}, {"score": 1}],
            ["--harbor-allow-tolerated"],
            "passed",
            "",
        ),
    ],
)
def test_outcomes(doing: Project, steps, options, outcome, text):
    task(doing, "t", *steps)
    result = doing.run(*options)
    counts = result.parseoutcomes()
    assert counts.get(outcome) == 1, counts
    if text:
        result.stdout.fnmatch_lines([text.replace("[", "[[]")])
    assert "Traceback" not in str(result.stdout)


def test_the_first_failure_is_the_tasks_error(doing: Project):
    task(
        doing,
        "t",
        {"fails": "the machine is gone", "after": "s2", "depends_on": []},
        {"fails": "no such door", "depends_on": []},
        {},
    )
    result = doing.run("-v")
    result.stdout.fnmatch_lines(
        [
            "t.task.json::t SUBSKIPPED[[]s3] (not run: stopped after s2)*",
            "step 's2' (do) failed: no such door",
        ]
    )
    assert result.parseoutcomes()["failed"] == 1


def test_a_refusal_is_told_once(doing: Project):
    prompts = [
        {"type": "deploy_agent", "a2a_agent_id": name, "agent_name": name}
        for name in ("nobody", "no-one")
    ]
    task(doing, "t", *prompts, {})
    result = doing.run("-v")
    result.stdout.fnmatch_lines(
        [
            "t.task.json::t SUBSKIPPED[[]s3] (not run: *no agent 'nobody'* (and 1 more))*",
            "t.task.json: step 1 's1': a2a_agent_id: no agent 'nobody', *",
            "t.task.json: step 2 's2': a2a_agent_id: no agent 'no-one', *",
            "logs: *",
        ],
        consecutive=False,
    )
    result.stdout.no_fnmatch_line("*skipped: not run*")


def test_what_a_refused_file_warns_of_is_told_with_it(doing: Project):
    doing.file("t.task.json", '[{"id": "a", "type": "deploy_env", "envid": "mail"}]')
    doing.run().stdout.fnmatch_lines(
        [
            "t.task.json: step 1 'a': env_id: is missing",
            "warning: t.task.json: step 1 'a': unknown key 'envid' (did you mean 'env_id'?)",
        ],
        consecutive=True,
    )


def test_steps_are_subtests(doing: Project):
    task(doing, "t", {}, {"score": 0.5}, {"fails": "no such door"}, {})
    result = doing.run("-v")
    result.stdout.fnmatch_lines(
        [
            "t.task.json::t SUBPASSED[[]s1]*",
            "t.task.json::t SUBPASSED[[]s2] reward=0.50*",
            "t.task.json::t SUBFAILED[[]s3] (no such door)*",
            "t.task.json::t SUBSKIPPED[[]s4] (not run: stopped after s3)*",
            "t.task.json::t FAILED*",
        ]
    )


def test_the_text_has_verifier_rows_and_steps(doing: Project):
    task(doing, "t", {"score": 0.0})
    result = doing.run()
    result.stdout.fnmatch_lines(
        [
            "reward 0.00 < 1.00: s1 0.00",
            "step  type  seconds  outcome",
            "s1    do * passed",
            "verifier s1: 0.00",
            "  FAIL  c: is good",
            "logs: .pytest_harbor/*/t-1",
        ]
    )


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-W", "error"), ("-n", "1")])
def test_warnings_of_a_run_that_passed_are_pytests(doing: Project, options):
    task(doing, "odd", {"warns": "notes.md is not there"}, {})
    result = doing.run("-p", "xdist", *options)
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*PytestHarborWarning: odd: s1: notes.md is not there"]
    )


def test_records_and_summary(doing: Project):
    task(doing, "good", {"score": 1})
    task(doing, "lost", {"fails": "the machine is gone"})
    result = doing.run()
    (row,) = doing.rows("rollouts.jsonl")
    assert row["task_id"] == "good"
    assert row["format"] == "steps"
    assert row["outcome"] == "passed"
    assert row["verifier_rewards"] == {"s1": 1.0}
    assert row["steps"][0]["status"] == "passed"
    (failure,) = doing.rows("rollouts_failures.jsonl")
    assert failure["failure_kind"] == "harbor:sandbox_lost"
    assert failure["failed_steps"][0]["is_fatal"] is True
    result.stdout.fnmatch_lines(["2 episodes: 1 passed, 0 failed, 1 error; *"])
    context = json.loads((doing.latest / "good-1/context.json").read_text())
    assert context["metadata"]["verifications"]["s1"]["score"] == 1


@pytest.mark.parametrize("workers", [[], ["-n", "2"]])
@pytest.mark.slow
def test_junit(doing: Project, workers):
    task(doing, "t", {"score": 1}, {"score": 0.25})
    task(doing, "u", {})
    doing.run_apart("--junitxml", "j.xml", *workers)
    cases = {
        f"{case.attrib['classname']}.{case.attrib['name']}": case
        for case in suite(doing).findall("testcase")
    }
    assert sorted(cases) == [
        "t.task.json.t",
        "t.task.json.t.s1",
        "t.task.json.t.s2",
        "u.task.json.u",
        "u.task.json.u.s1",
    ]
    found = dict(properties(cases["t.task.json.t"]))
    assert list(found) == [
        "harbor.task",
        "harbor.attempt",
        "harbor.reward",
        "harbor.min_reward",
        "harbor.score.s1",
        "harbor.score.s1.c",
        "harbor.score.s2",
        "harbor.score.s2.c",
        "harbor.logs",
        "harbor.seconds",
    ]
    assert found["harbor.reward"] == "0.25"


def test_a_retry_leaves_one_report_per_step(doing: Project):
    task(
        doing,
        "t",
        {},
        {
            "fails": "not yet",
            "times": 1,
            "retry_config": {"retry_from_step_id": "s1"},
        },
    )
    result = doing.run("-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*1 passed, 2 subtests passed*"])


@pytest.mark.slow
def test_a_time_limit_of_the_item(doing: Project):
    task(doing, "t", {}, {"hangs": True}, {})
    result = doing.run_apart("-v", "--timeout", "4")
    result.stdout.fnmatch_lines(
        [
            "t.task.json::t SUBPASSED[[]s1]*",
            "t.task.json::t SUBERROR[[]s2]*",
            "t.task.json::t SUBSKIPPED[[]s3]*",
            "t.task.json::t ERROR*",
            "interrupted: Timeout (>4.0s) from pytest-timeout.",
            "step  type  seconds  outcome",
            "s1    do * passed",
            "s2    do * error: cancelled",
            "logs: *",
        ]
    )
    result.stdout.no_fnmatch_line("*/pytest_harbor/collection/*")
    (row,) = doing.rows("rollouts_failures.jsonl")
    assert row["failure_kind"] == "cancelled"


def test_a_project_may_override_and_mark(doing: Project):
    task(doing, "t", {"score": 0.5})
    doing.file(
        "test_it.py",
        """
import pytest
@pytest.mark.harbor("t.task.json")
def test_it(harbor_run):
    assert harbor_run.reward == 0.5
    assert harbor_run.scores == {"s1": 0.5}
    assert harbor_run.context.metadata["task_id"] == "t"
""",
    )
    doing.run("test_it.py").assert_outcomes(passed=1)
    doing.run(
        "t.task.json", "--harbor-override", "s1.score=1", "--harbor-seed", "x=y"
    ).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "given",
    ["judge_modle=m", "prompt=x", "step_params=3", 'step_params={"s": 3}', ".x=1"],
)
def test_an_override_that_nothing_reads_is_a_usage_error(doing: Project, given: str):
    task(doing, "t", {})
    result = doing.run("--harbor-override", given)
    result.stderr.fnmatch_lines(
        ["*--harbor-override: expected STEP.FIELD=VALUE or KEY=VALUE (KEY is one of *"]
    )
    result.stderr.fnmatch_lines(["*judge_model, ttl_seconds, *"])


def test_step_params_as_json(doing: Project):
    task(doing, "t", {"score": 0.25}, {"score": 0.25})
    params = 'step_params={"s1": {"score": 1}}'
    options = ("--harbor-override", params, "--harbor-override", "s2.score=1")
    doing.run(*options).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        (
            ("--harbor-override", "ss1.warns=x"),
            (
                "--harbor-override ss1.warns: no collected step task has a step 'ss1' "
                "(did you mean 's1'[?])"
            ),
        ),
        (
            ("--harbor-seed", "whoo=Ann"),
            "--harbor-seed whoo: no collected step task has <whoo> in it",
        ),
        (("--harbor-override", "s1.warns=x", "--harbor-seed", "who=Ann"), None),
        (("--harbor-override", "s1.warns=<what>", "--harbor-seed", "what=x"), None),
    ],
)
def test_a_choice_that_changes_nothing_is_a_warning(
    doing: Project, options: tuple[str, ...], warning: str | None
):
    task(doing, "t", {"metadata": "for <who>"})
    result = doing.run("--co", *options)
    if warning is None:
        result.stdout.no_fnmatch_line("*no collected step task has*")
    else:
        result.stdout.fnmatch_lines([f"*PytestHarborWarning: {warning}"])
    doing.file("broken.task.json", "[]")  # it might be the one
    doing.run("--co", *options).stdout.no_fnmatch_line("*no collected step task has*")


def test_the_marker_names_no_file(doing: Project):
    doing.file(
        "test_it.py",
        """
import pytest
@pytest.mark.harbor("nowhere.task.json")
def test_it(harbor_run):
    pass
""",
    )
    result = doing.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*no step task file and no bundle 'nowhere.task.json'*"]
    )


def test_steps_by_hand(doing: Project):
    doing.file(
        "test_it.py",
        """
import pytest
from pytest_harbor import HarborError

def test_servers_listen_for_this_machine_only(harbor_run):
    assert not harbor_run.opened.parts.is_exposed

def test_it(harbor_run):
    harbor_run.step("do", score=0.75)
    assert harbor_run.reward == 0.75
    with pytest.raises(HarborError, match="no such door"):
        harbor_run.step("do", fails="no such door")
    with pytest.raises(HarborError, match="scoer"):
        harbor_run.step("do", scoer=1)

@pytest.mark.anyio
async def test_async(harbor_run):
    await harbor_run.step("do", score=0.25)
    assert harbor_run.reward == 0.25
""",
    )
    doing.run("-p", "anyio", "-k", "not trio").assert_outcomes(passed=3)


@pytest.mark.parametrize("call", ["harbor_run.step", "await harbor_run.step"])
def test_a_failure_by_hand_shows_the_line_of_the_test(doing: Project, call: str):
    is_async = call.startswith("await")
    marker = "@pytest.mark.anyio\nasync " if is_async else ""
    lines = (
        f"{marker}def test_it(harbor_run):\n    {call}('do', fails='no such door')\n"
    )
    doing.file("test_it.py", f"import pytest\n{lines}")
    options = ("-p", "anyio", "-k", "not trio")
    result = doing.run(*options)
    result.stdout.fnmatch_lines(
        [
            f">       {call}('do', fails='no such door')",
            "E       pytest_harbor.errors.StepError: no such door",
            "",
            "test_it.py:*: StepError",
        ],
        consecutive=True,
    )
    result.stdout.no_fnmatch_line("*/pytest_harbor/*")
    debugged = doing.run(*options, "--harbor-debug")
    debugged.stdout.fnmatch_lines(["*/pytest_harbor/graphs/open_run.py:*"])


def test_bad_fields_by_hand_are_named(doing: Project):
    doing.file(
        "test_it.py",
        "def test_it(harbor_run):\n    harbor_run.step('do', scoer=1, times='x')\n",
    )
    doing.run().stdout.fnmatch_lines(
        [
            "E       pytest_harbor.errors.SettingsError: do: times: must be an integer*",
            "E       do: unknown key 'scoer' (did you mean 'score'[?])",
        ],
        consecutive=True,
    )


def test_a_judge_of_the_project(doing: Project):
    doing.file(
        "conftest.py",
        CONFTEST
        + """
from pytest_harbor.graphs.context import PromptResponse

class Strict:
    def __init__(self, *, model=None):
        pass
    async def ask(self, text, schema, *, timeout_seconds):
        score = int("forty-two" in text)
        return {"results": [{"id": "c1", "score": score, "justification": "looked"}]}
    async def aclose(self):
        pass

class Say(Step):
    text: str

async def say(step, run):
    run.write(PromptResponse(prompt_id=step.id, response=step.text, prompt_text="?"))

def pytest_harbor_judges():
    return {"strict": Strict}

def pytest_harbor_step_types():
    return {"say": StepType(Say, say)}
""",
    )
    doing.file(
        "test_it.py",
        """
def test_it(harbor_run, harbor_judge):
    harbor_run.step("say", id="good", text="forty-two")
    harbor_run.step("say", id="bad", text="no idea")
    good = harbor_judge("good", ["It gives the number."], judge_a2a_agent_id="strict")
    assert good.score == 1
    assert good["c1"]["justification"] == "looked"
    bad = harbor_judge("bad", ["It gives the number."], judge_a2a_agent_id="strict")
    assert (bad.score, bad["c1"]["result"]) == (0, False)
""",
    )
    doing.run("test_it.py").assert_outcomes(passed=1)
