"""Envs, agents and judges for Python tests: a run of steps that a test does by hand.

The same step types do the work as for a JSON file, so what holds there holds here: the
context, the teardown, the masked record in the run folder. Methods block in a plain test and
are awaited in an async one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_harbor.errors import SettingsError, StepError

if TYPE_CHECKING:
    from pytest_harbor.graphs.context import (
        DeployedAgent,
        DeployedEnv,
        PromptResponse,
        RunContext,
    )
    from pytest_harbor.graphs.open_run import OpenRun
    from pytest_harbor.graphs.result import StepRunResult
    from pytest_harbor.protocols.mcp import ToolResult
    from pytest_harbor.sandboxes.output import Masker
    from pytest_harbor.tasks.steps.step import Step

# Whoever reads a failure of a test wants the line of the test.
__tracebackhide__ = True

Call = Callable[..., Any]
"""``call(async_function, *args)``: runs it and returns, or gives something to await."""


class StepRunHandle:
    """A run of steps: one of a task file that is over, or one that a test does by hand."""

    def __init__(
        self,
        call: Call,
        *,
        opened: OpenRun | None = None,
        result: StepRunResult | None = None,
        logs: Path | None = None,
    ) -> None:
        self._call = call
        self._opened = opened
        self._numbers: Counter[str] = Counter()
        self.result = result
        """What the task file came to; ``None`` for a run by hand."""
        self.logs = logs
        """The run's folder on the host."""

    @property
    def context(self) -> RunContext:
        """The records and metadata of the run (task-steps spec 3)."""
        if self.result is not None:
            return self.result.context
        assert self._opened is not None
        return self._opened.context

    @property
    def scores(self) -> Mapping[str, float]:
        """Each verifier's score."""
        from pytest_harbor.graphs.outcome import scores

        return scores(self.context.metadata)

    @property
    def reward(self) -> float | None:
        """The scalar reward; ``None`` when nothing was scored."""
        from pytest_harbor.graphs.outcome import reward

        return reward(self.context.metadata)

    def response(self, prompt_id: str) -> PromptResponse:
        """The reply of that name. Raises StepError."""
        return self.context.response(prompt_id)

    def step(self, type: str, **fields: Any) -> Any:  # noqa: A002 - the format's name
        """Run one step by hand, with the fields that it would have in a task file.

        Raises:
            SettingsError: the fields are no such step, or the run is a task file's.
            HarborError: the step failed.
        """
        return self._call(self.execute, type, fields)

    async def execute(self, type_name: str, fields: Mapping[str, Any]) -> Step:
        """As :meth:`step`, in the run's own event loop."""
        step = self._step(type_name, fields)
        await self.opened.execute(step)
        return step

    def _step(self, type_name: str, fields: Mapping[str, Any]) -> Step:
        from pytest_harbor.tasks.findings import Findings
        from pytest_harbor.tasks.steps.model import STEP_TYPES
        from pytest_harbor.tasks.steps.read_steps import place, read_steps

        parts = self.opened.parts
        self._numbers[type_name] += 1
        raw = {
            "id": f"{type_name}-{self._numbers[type_name]}",
            "type": type_name,
            "depends_on": [],
            **fields,
        }
        own = {name: one.model for name, one in parts.step_types.items()}
        found = Findings()
        types = {**STEP_TYPES, **own}
        steps = read_steps([raw], type_name, parts.bundle, types, found)
        found.make_strict()
        if found.problems:
            where = place(type_name, 1, raw["id"])  # there is no file with it
            lines = [str(one).replace(where, type_name, 1) for one in found.problems]
            raise SettingsError("\n".join(lines))
        return steps.steps[0]

    @property
    def opened(self) -> OpenRun:
        """The run under way. Raises SettingsError when it is over."""
        if self._opened is None:
            raise SettingsError("this run is over: its task file had all the steps")
        return self._opened


@dataclass(frozen=True)
class EnvHandle:
    """A deployed env."""

    record: DeployedEnv
    run: StepRunHandle
    _call: Call

    @property
    def mcp_url(self) -> str:
        """Its MCP endpoint, as this process reaches it."""
        return self.record.mcp_url

    def call_tool(self, name: str, **arguments: Any) -> Any:
        """Call one of its tools; gives the result as plain data, or its text.

        Raises StepError for a tool that answers an error.
        """
        return self._call(self._call_tool, name, arguments)

    def state(self) -> Any:
        """Its state as ``data/get`` gives it: the one part's data, else all parts.

        Raises:
            StepError: it has no data plane.
        """
        return self._call(self._state)

    def load(self, artifact_id: str, **fields: Any) -> Any:
        """Reset it and load an environment artifact (``load_artifact``)."""
        fields = {"env_id": self.record.env_id, "artifact_id": artifact_id, **fields}
        return self._call(self.run.execute, "load_artifact", fields)

    async def _call_tool(self, name: str, arguments: Mapping[str, Any]) -> Any:
        from pytest_harbor.protocols import mcp

        async with mcp.connect(self.mcp_url) as session:
            result: ToolResult = await session.call_tool(name, arguments)
        if result.is_error:
            raise StepError(f"tool {name}: {result.text}")
        return result.text if result.structured is None else result.structured

    async def _state(self) -> Any:
        from pytest_harbor.protocols.data_plane import DataPlane, parse_card

        card = self.record.environment_card
        if card is None:
            raise StepError(f"env '{self.record.env_id}' has no data plane")
        base = str(self.record.environment_card_url).split("/.well-known/")[0]
        url = parse_card(card, base).data_url
        async with DataPlane(url, token=self.run.opened.parts.data_token) as plane:
            parts = await plane.get()
        return _content(parts[0]) if len(parts) == 1 else list(parts)


def _content(part: Mapping[str, Any]) -> Any:
    if part.get("kind") == "data":
        return part["data"]
    if part.get("kind") == "text":
        try:
            return json.loads(part["text"])
        except ValueError:
            return part["text"]
    return dict(part)


@dataclass(frozen=True)
class AgentHandle:
    """A deployed agent."""

    record: DeployedAgent
    run: StepRunHandle
    _call: Call

    @property
    def name(self) -> str:
        """Its name in the run."""
        return self.record.agent_name

    def prompt(self, prompt: str, **fields: Any) -> Any:
        """Prompt it and wait for the reply (``prompt_agent``); gives a PromptResponse.

        Raises HarborError when the agent failed.
        """
        return self._call(self._prompt, {"prompt": prompt, **fields})

    def collect(self, *paths: str, **fields: Any) -> Any:
        """Take files out of its sandbox (``collect_artifacts``); all without ``paths``.

        Gives the content of each by its name.
        """
        return self._call(self._collect, {"artifact_paths": list(paths), **fields})

    def load(self, artifact_id: str, **fields: Any) -> Any:
        """Copy an artifact's files into its sandbox (``load_artifact``)."""
        fields = {"agent_name": self.name, "artifact_id": artifact_id, **fields}
        return self._call(self.run.execute, "load_artifact", fields)

    async def _prompt(self, fields: dict[str, Any]) -> PromptResponse:
        before = len(self.run.context.prompt_responses)
        fields.setdefault("prompt_id", f"prompt-{before + 1}")
        await self.run.execute("prompt_agent", {"agent_name": self.name, **fields})
        response = self.run.response(fields["prompt_id"])
        return _masked(response, self.run.opened.parts.masker)

    async def _collect(self, fields: dict[str, Any]) -> dict[str, bytes]:
        step = await self.run.execute(
            "collect_artifacts", {"agent_name": self.name, **fields}
        )
        collected: Any = self.run.context.metadata["collected_artifacts"]
        store = self.run.opened.parts.store
        return {
            name: await store.get(url)
            for name, url in collected[step.id]["artifacts"].items()
        }


def _masked(response: PromptResponse, masker: Masker) -> PromptResponse:
    """A reply as pytest may print it: assertions show what they compare."""
    from pytest_harbor.graphs.context import (
        RunContext,
        context_from_plain,
        context_to_plain,
    )

    alone = RunContext("", prompt_responses=[response])
    return context_from_plain(context_to_plain(alone, masker)).prompt_responses[0]


@dataclass(frozen=True)
class Grade:
    """What a judge decided. ``rows`` has one entry per criterion."""

    score: float
    rows: Sequence[Mapping[str, Any]]

    def __getitem__(self, criterion_id: str) -> Mapping[str, Any]:
        """The row of a criterion. Raises KeyError."""
        for row in self.rows:
            if row.get("id") == criterion_id:
                return row
        raise KeyError(criterion_id)


async def deploy_env(
    run: StepRunHandle, call: Call, env_id: str, artifact: str | None, **fields: Any
) -> EnvHandle:
    """Start an env, and load an environment artifact into it where one is named."""
    await run.execute("deploy_env", {"env_id": env_id, **fields})
    handle = EnvHandle(run.context.env(env_id), run, call)
    if artifact is not None:
        load = {"env_id": env_id, "artifact_id": artifact}
        await run.execute("load_artifact", load)
    return handle


async def deploy_agent(
    run: StepRunHandle,
    call: Call,
    agent_id: str | None,
    name: str | None,
    envs: Sequence[EnvHandle | str],
    **fields: Any,
) -> AgentHandle:
    """Start an agent and give it the tools of envs."""
    name = name or agent_id or "default-agent"
    given = {
        "agent_name": name,
        "env_ids": [env if isinstance(env, str) else env.record.env_id for env in envs],
    }
    if agent_id is not None:
        given["a2a_agent_id"] = agent_id
    await run.execute("deploy_agent", {**given, **fields})
    return AgentHandle(run.context.agent(name), run, call)


async def grade(
    run: StepRunHandle,
    reply: PromptResponse | str,
    criteria: Sequence[str | Mapping[str, Any]],
    **fields: Any,
) -> Grade:
    """Let a judge grade a reply of this run."""
    verifications: Any = run.context.metadata.get("verifications") or {}
    fields.setdefault("verifier_id", f"judge-{len(verifications) + 1}")
    given = {
        "prompt_id": reply if isinstance(reply, str) else reply.prompt_id,
        "criteria": [
            {"id": f"c{number}", "criterion": one}
            if isinstance(one, str)
            else dict(one)
            for number, one in enumerate(criteria, 1)
        ],
    }
    await run.execute("rubrics_verifier", {**given, **fields})
    written: Any = run.context.metadata["verifications"]
    entry = written[fields["verifier_id"]]
    return Grade(float(entry["score"]), tuple(entry["results"]))
