"""The engine: steps of a project's own types, no sandbox; what is written, told and kept."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from pytest_harbor.errors import (
    AgentError,
    AlreadyDeployed,
    NotDeployed,
    SandboxError,
    ServerUnreachable,
    StepError,
)
from pytest_harbor.events import Event
from pytest_harbor.graphs.context import (
    Append,
    DeployedAgent,
    DeployedEnv,
    PromptResponse,
    Put,
    RunContext,
)
from pytest_harbor.graphs.instances import Instance
from pytest_harbor.graphs.objects import FolderStore
from pytest_harbor.graphs.open_run import RunParts, open_run
from pytest_harbor.graphs.result import StepRunResult, run_from_plain, run_to_plain
from pytest_harbor.graphs.run import run
from pytest_harbor.graphs.steps.api import RunSettings, StepRun, StepType
from pytest_harbor.reporter import Reporter
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.load import load_step_task
from pytest_harbor.tasks.steps.step import Step

pytestmark = pytest.mark.anyio

Act = Callable[["Say", StepRun], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Say(Step):
    """A step that does what the test gave to its ID."""

    text: str = ""


@dataclass
class Project:
    """A bundle folder with one task, whose steps do what the test says."""

    root: Path
    acts: dict[str, Act] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def does(self, step_id: str) -> Callable[[Act], Act]:
        def keep(act: Act) -> Act:
            self.acts[step_id] = act
            return act

        return keep

    async def _say(self, step: Say, step_run: StepRun) -> None:
        if step.id in self.acts:
            await self.acts[step.id](step, step_run)

    async def run(self, *steps: Any, **options: Any) -> StepRunResult:
        made = [
            {"id": step, "type": "say"} if isinstance(step, str) else step
            for step in steps
        ]
        file = self.root / "tasks" / "talk.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(made))
        seed = options.pop("seed", None)
        task = load_step_task(file, step_types={"say": Say}, seed=seed)
        return await run(
            task,
            options.pop("providers", {}),
            self.events.append,
            logs=self.root / "logs",
            step_types={"say": StepType(Say, self._say)},
            **options,
        )

    def saved(self) -> Any:
        return json.loads((self.root / "logs" / "context.json").read_text())

    def told(self) -> list[str]:
        return [
            f"{event.kind} {event.step}" if event.step else event.kind
            for event in self.events
        ]


def step(step_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": step_id, "type": "say", **fields}


def fails(error: Exception, times: int = 99) -> Act:
    left = [times]

    async def act(_: Say, __: StepRun) -> None:
        if left[0] > 0:
            left[0] -= 1
            raise error

    return act


class Thing(Instance):
    """Something deployed that only knows whether it was stopped."""

    sandbox = None
    url = "http://127.0.0.1:9"
    created_at_utc = expires_at_utc = ""

    def __init__(self, name: str, problem: Exception | None = None) -> None:
        self.instance_id = f"{name}-1"
        self.what = f"agent '{name}'"
        self.problem = problem
        self.stops = 0
        self.dies_with: str | None = None
        self.hangs = False

    @property
    def death(self) -> str | None:
        return self.dies_with

    async def url_from(self, sandbox: Any) -> str:
        return self.url

    async def log_tail(self, lines: int = 30) -> str:
        return ""

    async def stop(self) -> None:
        self.stops += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.problem is not None:
            raise self.problem


def register(step_run: StepRun, thing: Instance) -> None:
    step_run._starter.register(thing)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


async def test_a_run_tells_keeps_and_sums_up(project):
    @project.does("grade")
    async def grade(_: Say, step_run: StepRun) -> None:
        step_run.write(Put("verifications", "manners", {"results": [], "score": 0.5}))
        step_run.warn("the judge was in a hurry")

    result = await project.run("greet", "grade", run_id="run-7", seed={"who": "Ada"})
    assert project.told() == [
        "run_started",
        "step_started greet",
        "step_ended greet",
        "step_started grade",
        "warning grade",
        "step_ended grade",
        "run_ended",
    ]
    assert result.outcome == "scored_below"
    assert (result.reward, result.scores) == (0.5, {"manners": 0.5})
    assert result.instance_id == "run-7"
    assert result.step("grade").scores == {"manners": 0.5}
    assert result.step("grade").warnings == ("the judge was in a hurry",)
    assert [one.status for one in result.steps] == ["passed", "passed"]
    assert [one.executions for one in result.steps] == [1, 1]
    assert 0 < result.steps[0].started_at <= result.steps[1].started_at
    saved = project.saved()
    assert saved["instance_id"] == "run-7"
    assert saved["metadata"]["task_id"] == "talk"
    assert saved["metadata"]["seed"] == {"who": "Ada"}
    assert saved["metadata"]["run_group_id"] == "run-7"
    assert run_from_plain(json.loads(json.dumps(run_to_plain(result)))) == result
    last = project.events[-1].data
    assert run_from_plain(json.loads(json.dumps(last))) == result


async def test_events_have_a_json_round_trip(project):
    await project.run("a")
    for event in project.events:
        assert json.loads(json.dumps(event.data)) == event.data
        assert event.episode.startswith("talk-")


async def test_a_fatal_failure_is_the_runs_and_named_with_its_step(project):
    project.acts["b"] = fails(StepError("the shelf is empty"))
    result = await project.run(step("a"), step("b"), step("c"))
    assert result.outcome == "failed"
    assert result.failure_kind == "harbor:step_failed"
    assert result.failure_reason == "step b (say): the shelf is empty"
    assert not result.is_infrastructure
    assert [one.status for one in result.steps] == ["passed", "failed", "not_run"]
    assert result.reward is None
    (entry,) = result.context.metadata["failed_steps"]
    assert set(entry) == {
        "step_id",
        "step_type",
        "error",
        "error_type",
        "started_at_utc",
        "duration_seconds",
        "is_fatal",
    }
    assert entry["error"] == "the shelf is empty"
    assert (entry["error_type"], entry["is_fatal"]) == ("StepError", True)


async def test_a_tolerated_failure_fails_the_run_but_not_what_follows(project):
    project.acts["a"] = fails(AgentError("it gave up"))
    result = await project.run(step("a", fail_task_on_error=False), "b")
    assert result.outcome == "failed"
    assert [one.status for one in result.steps] == ["tolerated", "passed"]
    assert result.failure_reason == "step a (say): it gave up"
    assert [one.id for one in result.failed_steps] == ["a"]
    assert result.context.metadata["failed_steps"][0]["is_fatal"] is False


async def test_the_first_fatal_error_counts_though_an_earlier_step_was_tolerated(
    project,
):
    project.acts["a"] = fails(AgentError("tolerated"))
    project.acts["b"] = fails(StepError("fatal"))
    result = await project.run(step("a", fail_task_on_error=False), "b")
    assert result.failure_reason == "step b (say): fatal"


async def test_a_bug_of_a_step_type_is_told_with_its_type(project):
    project.acts["a"] = fails(KeyError("shelf"))
    result = await project.run("a")
    assert result.failure_reason == "step a (say): KeyError: 'shelf'"
    assert result.failure_kind == "harbor:internal_error"
    assert result.is_infrastructure
    assert result.step("a").error_type == "KeyError"


async def test_a_retry_that_succeeds_recovers(project):
    project.acts["b"] = fails(StepError("once"), times=1)
    retry = {"retry_from_step_id": "a", "max_retries": 2}
    written = []

    @project.does("a")
    async def write(_: Say, step_run: StepRun) -> None:
        written.append(step_run.execution)
        step_run.write(
            PromptResponse("p", f"answer {step_run.execution}"),
            Append("loaded_urls", {"n": step_run.execution}),
        )

    result = await project.run("a", step("b", retry_config=retry))
    assert result.outcome == "unscored"
    assert written == [1, 2]
    assert [one.executions for one in result.steps] == [2, 2]
    assert [one.response for one in result.context.prompt_responses] == ["answer 2"]
    assert result.context.metadata["loaded_urls"] == [{"n": 2}]
    (entry,) = result.context.metadata["failed_steps"]
    assert entry["retried"] is True
    assert entry["is_fatal"] is False


async def test_a_retry_tears_down_what_its_span_deployed(project):
    things = [Thing("a"), Thing("a"), Thing("keep")]

    @project.does("keep")
    async def keep(_: Say, step_run: StepRun) -> None:
        register(step_run, things[2])

    @project.does("up")
    async def up(_: Say, step_run: StepRun) -> None:
        thing = things[step_run.execution - 1]
        with step_run.reserve("agent", "a"):
            register(step_run, thing)
            step_run.write(DeployedAgent("a", thing.url, thing.instance_id))

    @project.does("ask")
    async def ask(_: Say, step_run: StepRun) -> None:
        assert things[0].stops == step_run.execution - 1
        assert things[2].stops == 0, "it is of another span"
        if step_run.execution == 1:
            raise StepError("no")

    retry = {"retry_from_step_id": "up"}
    result = await project.run("keep", "up", step("ask", retry_config=retry))
    assert result.outcome == "unscored", result.failure_reason
    assert [thing.stops for thing in things] == [1, 1, 1]
    assert len(result.context.deployed_agents) == 1


async def test_everything_is_stopped_at_once_and_trouble_is_told_not_raised(project):
    things = [Thing("a", SandboxError("daemon gone")), Thing("b"), Thing("c")]
    everybody = anyio.Event()
    stopping = []

    async def stop_together(self: Thing) -> None:
        stopping.append(self)
        if len(stopping) == len(things):
            everybody.set()
        await everybody.wait()
        if self.problem:
            raise self.problem

    for thing in things:
        thing.stop = stop_together.__get__(thing)

    @project.does("up")
    async def up(_: Say, step_run: StepRun) -> None:
        for thing in things:
            thing.instance_id = f"{thing.what}"
            register(step_run, thing)

    result = await project.run("up")
    assert result.outcome == "unscored"
    assert result.warnings == ("agent 'a' was not removed: daemon gone",)


async def test_each_teardown_has_a_limit(project, monkeypatch):
    monkeypatch.setattr(
        "pytest_harbor.graphs.deployments.Deployments.limit_seconds", 0.05
    )
    thing, other = Thing("slow"), Thing("fast")
    thing.hangs = True

    @project.does("up")
    async def up(_: Say, step_run: StepRun) -> None:
        register(step_run, thing)
        register(step_run, other)

    result = await project.run("up")
    assert result.warnings == (
        "agent 'slow' was not removed: it took more than 0.05 s",
    )
    assert other.stops == 1


async def test_cancelling_tears_down_saves_and_goes_on(project):
    thing = Thing("a")
    is_running = anyio.Event()

    @project.does("up")
    async def up(_: Say, step_run: StepRun) -> None:
        register(step_run, thing)
        step_run.write(Put("artifacts", {"kept": 1}))

    @project.does("wait")
    async def wait(_: Say, __: StepRun) -> None:
        is_running.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(project.run, "up", "wait", "never")
        await is_running.wait()
        group.cancel_scope.cancel()
    assert thing.stops == 1
    assert project.saved()["metadata"]["artifacts"] == {"kept": 1}
    ended = run_from_plain(project.events[-1].data)
    assert project.events[-1].kind == "run_ended"
    assert ended.outcome == "cancelled"
    assert [one.status for one in ended.steps] == ["passed", "cancelled", "not_run"]


async def test_one_name_is_deployed_once_in_the_formats_words(project):
    errors = {}
    broken = StepError("deploying failed")

    async def deploy(act: Say, step_run: StepRun) -> None:
        kind, name = act.text.split()
        try:
            with step_run.reserve(kind, name):
                await anyio.lowlevel.checkpoint()
                raise broken
        except AlreadyDeployed as error:
            errors[act.id] = str(error)
        except StepError:
            pass

    for name in ("a", "b", "c", "d"):
        project.acts[name] = deploy
    texts = ["agent assistant", "agent assistant", "env email", "env email"]
    ids = ["a", "b", "c", "d"]
    steps = [
        step(one, text=text, depends_on=[])
        for one, text in zip(ids, texts, strict=True)
    ]
    await project.run(*steps, step("e", text="agent assistant"))
    assert errors == {
        "b": "Agent with name 'assistant' is already deployed",
        "d": "Env 'email' is already deployed",
    }


async def test_a_name_of_the_context_is_taken(project):
    @project.does("a")
    async def deploy(_: Say, step_run: StepRun) -> None:
        step_run.write(DeployedEnv("email", 1, "x", "http://x", "email"))
        taken = r"^Env 'email' is already deployed$"
        with (
            pytest.raises(AlreadyDeployed, match=taken),
            step_run.reserve("env", "email"),
        ):
            raise AssertionError
        with step_run.reserve("agent", "email"):  # a namespace of its own
            pass

    assert (await project.run("a")).outcome == "unscored"


async def test_a_step_that_fails_says_what_died(project):
    thing = Thing("clerk")

    class Ask(Say):
        def reads(self):
            from pytest_harbor.tasks.steps.step import Name

            yield Name("agent", "clerk")

    @project.does("up")
    async def up(_: Say, step_run: StepRun) -> None:
        register(step_run, thing)
        step_run.write(DeployedAgent("clerk", thing.url, thing.instance_id))

    @project.does("ask")
    async def ask(asked: Say, step_run: StepRun) -> None:
        object.__setattr__(asked, "__class__", Ask)
        thing.dies_with = "ended by itself (exit code 3)\nThe end of its log:\nboom"
        raise ServerUnreachable("no answer")

    result = await project.run("up", "ask")
    assert result.step("ask").error == (
        "no answer\nagent 'clerk' ended by itself (exit code 3)\n"
        "The end of its log:\nboom"
    )


async def test_secrets_are_masked_in_everything_that_is_kept(project):
    secret = "k3y-0f-the-library"

    @project.does("a")
    async def leak(_: Say, step_run: StepRun) -> None:
        step_run.write(Put("artifacts", {"key": secret}))
        step_run.warn(f"warned of {secret}")
        raise StepError(f"failed with {secret}")

    result = await project.run("a", environ={"LITELLM_API_KEY": secret})
    assert result.context.metadata["artifacts"] == {"key": "***"}
    texts = [
        repr(result),
        json.dumps(project.saved()),
        *(json.dumps(dict(event.data)) + event.message for event in project.events),
    ]
    assert not [text for text in texts if secret in text]
    assert "failed with ***" in result.failure_reason


async def test_the_context_is_saved_at_each_steps_end(project):
    seen = []

    @project.does("a")
    async def write(_: Say, step_run: StepRun) -> None:
        step_run.write(Put("artifacts", {"n": 1}))

    @project.does("b")
    async def look(_: Say, __: StepRun) -> None:
        seen.append(project.saved()["metadata"]["artifacts"])

    await project.run("a", "b")
    assert seen == [{"n": 1}]
    assert [file.name for file in (project.root / "logs").iterdir()] == ["context.json"]


async def test_the_cap_holds(project):
    running = []

    async def work(act: Say, _: StepRun) -> None:
        running.append(act.id)
        assert len(running) <= 2
        await anyio.lowlevel.checkpoint()
        running.remove(act.id)

    ids = "abcdef"
    for name in ids:
        project.acts[name] = work
    result = await project.run(
        *(step(name, depends_on=[]) for name in ids),
        settings=RunSettings(max_concurrent_steps=2),
    )
    assert result.outcome == "unscored", result.failure_reason


async def test_what_a_run_lacks_is_told_before_its_first_step(project):
    missing = {"KEY": "${NOT_SET_ANYWHERE}"}
    deploy = {
        "id": "up",
        "type": "deploy_agent",
        "a2a_agent_id": "nobody",
        "env_vars": missing,
    }
    result = await project.run(deploy, environ={})
    assert result.outcome == "failed"
    assert result.failure_kind == "harbor:refused"
    assert result.is_infrastructure
    assert "no agent 'nobody'" in result.failure_reason
    assert "needs the variable NOT_SET_ANYWHERE, which is not set" in (
        result.failure_reason
    )
    assert [one.status for one in result.steps] == ["not_run"]
    assert "step_started up" not in project.told()


async def test_a_run_folder_that_cannot_be_written_is_infrastructure(project):
    (project.root / "logs").write_text("in the way")
    result = await project.run("a", "b")
    assert result.outcome == "failed"
    assert result.is_infrastructure
    assert result.failure_reason.startswith("on the host: FileExistsError")


async def test_what_a_block_raises_comes_out_as_it_is(project):
    """A Python test works in an open run; its assertion is no group of errors."""
    parts = RunParts(
        task_id="by hand",
        bundle=Bundle(project.root),
        providers={},
        logs=project.root / "logs",
        store=FolderStore(project.root / "objects"),
        step_types={"say": StepType(Say, project._say)},
    )
    thing = Thing("clerk")

    @project.does("up")
    async def up(_: Say, step_run: StepRun) -> None:
        register(step_run, thing)

    async def work() -> None:
        report = Reporter(project.events.append, "r")
        async with open_run(parts, RunContext("r"), report) as opened:
            await opened.execute(Say(id="up", type="say"))
            raise AssertionError("by hand")

    with pytest.raises(AssertionError, match="by hand"):
        await work()
    assert thing.stops == 1
    assert project.told() == ["step_started up"]


async def test_not_deployed_is_a_lookup_error():
    assert issubclass(NotDeployed, LookupError)
