"""``rubrics_verifier``: a judge grades a reply against criteria (spec 8)."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, cast
from weakref import WeakValueDictionary

import anyio

from pytest_harbor.agents.trajectory import AgentInfo, Source, Step, Trajectory
from pytest_harbor.errors import (
    REFUSED,
    HarborError,
    JudgeError,
    StepError,
)
from pytest_harbor.graphs.agent_judge import AgentJudge
from pytest_harbor.graphs.context import PromptResponse, Put
from pytest_harbor.graphs.conversations import key_part, put_json
from pytest_harbor.graphs.instances import AgentLaunch, Instance
from pytest_harbor.graphs.judge_evidence import (
    Trajectories,
    evidence_of,
    fetch_trajectories,
)
from pytest_harbor.graphs.turns import connect
from pytest_harbor.tasks.steps.model import RubricsVerifier
from pytest_harbor.verification.judges.grading import Exchange, Grading, grade
from pytest_harbor.verification.judges.prompt import TrajectoryText
from pytest_harbor.verification.judges.scores import prompt_error_entry

if TYPE_CHECKING:
    from pytest_harbor.events import Json
    from pytest_harbor.graphs.steps.api import StepRun
    from pytest_harbor.verification.judges.api import Judge
    from pytest_harbor.verification.judges.prompt import TrajectoryPlace

# A named judge is configured before it is asked, and its files have fixed names: of two
# verifiers that share one, the second waits.
_IN_USE: Final[WeakValueDictionary[str, anyio.Lock]] = WeakValueDictionary()


async def rubrics_verifier(step: RubricsVerifier, run: StepRun) -> None:
    """Have a reply graded and write the verifier's entry.

    Raises:
        NotDeployed: no agent has the judge's name.
        StepError: no such reply, no judge, a judge that does not start.
        JudgeError: the judge failed, or gave no grades in three attempts.
        ProtocolError, SandboxError: the judge cannot be reached, or its sandbox.
    """
    response = run.context.response(step.prompt_id)
    verifier_id = step.verifier_id or uuid.uuid4().hex
    if response.has_error:
        entry = prompt_error_entry(_error_of(response), step.output_format)
        run.write(Put("verifications", verifier_id, entry))
        return
    grader = _Grader(step, run, response, verifier_id)
    entry = await grader.entry()
    run.write(
        Put("verifications", verifier_id, entry),
        Put("models", "judge", step.id, grader.model),
    )


def _error_of(response: PromptResponse) -> str:
    facts = (response.error_type, response.error_code, response.error_message)
    return ": ".join(fact for fact in facts if fact)


class _Grader:
    """One execution of the step."""

    def __init__(
        self,
        step: RubricsVerifier,
        run: StepRun,
        response: PromptResponse,
        verifier_id: str,
    ) -> None:
        self._step = step
        self._run = run
        self._response = response
        self._verifier_id = verifier_id
        run_id = run.context.instance_id
        self._prefix = f"runs/{run_id}/verifications/{key_part(verifier_id)}/"
        self._cut: str | None = None
        models = run.settings.models
        self.model = step.default_model or models.of_judges
        """The judge's model as it is asked for; ``None`` is an agent's own."""

    async def entry(self) -> dict[str, Json]:
        """Grade; the verifier's entry. Raises as :func:`rubrics_verifier`."""
        trajectories = Trajectories()
        if self._step.use_trajectory:
            trajectories = await fetch_trajectories(self._run.store, self._response)
        if own := self._own_judge():
            grading, url = await self._by(own, trajectories.as_text)
        elif not self._step.use_agent_judge:
            grading, url = await self._by(self._model_judge(), trajectories.as_text)
        else:
            async with self._agent() as (name, place, instance):
                grading, url = await self._by_agent(name, place, instance, trajectories)
        entry: dict[str, Json] = {
            "format": self._step.output_format,
            "results": cast("Json", list(grading.rows)),
            "score": grading.score,
            "judge_trajectory_object_url": url,
        }
        if grading.retries:
            entry["judge_output_retries"] = grading.retries
        if self._step.use_trajectory and (gap := trajectories.gap or self._cut):
            entry["trajectory"] = gap
        return entry

    def _own_judge(self) -> Judge | None:
        """The project's own judge, where the step names one (``pytest_harbor_judges``)."""
        step = self._step
        if step.agent_name is not None and step.use_agent_judge:
            return None
        name = step.judge_a2a_agent_id if step.use_agent_judge else self.model
        factory = self._run.settings.judges.get(name or "")
        if factory is None:
            return None
        try:
            return factory(model=self.model)
        except Exception as error:
            raise JudgeError(
                f"judge {name!r}: making it failed: {type(error).__name__}: {error}"
            ) from error

    def _model_judge(self) -> Judge:
        from pytest_harbor.verification.judges.model_judge import ModelJudge

        step, models = self._step, self._run.settings.models
        if self.model is None:
            raise StepError(
                "use_agent_judge is false and no model is named: give default_model, or "
                "set harbor_judge_model",
                kind=REFUSED,
            )
        if step.max_thinking_tokens is not None:
            self._run.warn("max_thinking_tokens is for agents; a model judge has none")
        return ModelJudge(
            self.model,
            api_base=step.default_model_api_base or models.api_base,
            params={"reasoning_effort": step.effort} if step.effort else {},
        )

    async def _by(
        self, judge: Judge, trajectory: TrajectoryText | TrajectoryPlace | None
    ) -> tuple[Grading, str | None]:
        """Grade, and keep what the judge said whatever came of it."""
        step, said = self._step, list[Exchange]()
        if isinstance(trajectory, TrajectoryText) and trajectory.is_shortened:
            self._cut = "shortened"
        judge_name = step.agent_name if isinstance(judge, AgentJudge) else None
        evidence = evidence_of(
            step, self._response, self._run, trajectory, judge_name=judge_name
        )
        try:
            grading = await grade(
                judge,
                evidence,
                step.criteria,
                output_format=step.output_format,
                score_aggregator=step.score_aggregator,
                timeout_seconds=step.judge_timeout_seconds,
                said=said,
            )
        except HarborError as error:
            url = await self._keep(judge, said)
            raise self._told(error, url) from error
        finally:
            with anyio.CancelScope(shield=True):
                await judge.aclose()
        return grading, await self._keep(judge, said)

    async def _by_agent(
        self, name: str, url: str, instance: Instance | None, trajectories: Trajectories
    ) -> tuple[Grading, str | None]:
        sandbox = instance.sandbox if instance is not None else None
        place: TrajectoryText | TrajectoryPlace | None
        if sandbox is None:
            place = trajectories.as_text
        else:
            place = await trajectories.put_into(sandbox)
        async with await connect(url, instance) as connection:
            judge = AgentJudge(
                self._run,
                connection,
                instance,
                name=name,
                settings={
                    "model": self.model,
                    "effort": self._step.effort,
                    "max_thinking_tokens": self._step.max_thinking_tokens,
                    "timeout_seconds": self._step.judge_timeout_seconds,
                },
                prefix=self._prefix,
            )
            result = await self._by(judge, place)
            if "model" not in (judge.configured or ()):
                self.model = None
            return result

    @asynccontextmanager
    async def _agent(self) -> AsyncIterator[tuple[str, str, Instance | None]]:
        """The judge's name, address and instance; one of our own is stopped after it."""
        step, run = self._step, self._run
        if step.agent_name is not None:
            agent = run.context.agent(step.agent_name)
            instance = run.instance(agent.instance_id)
            async with _IN_USE.setdefault(agent.instance_id, anyio.Lock()):
                yield agent.agent_name, agent.a2a_url, instance
            return
        agent_id = step.judge_a2a_agent_id or run.settings.default_agent
        if agent_id is None:
            raise StepError(
                "no judge: name a deployed agent (agent_name) or one to deploy "
                "(judge_a2a_agent_id), set harbor_default_agent, or have a model judge "
                "(use_agent_judge: false)",
                kind=REFUSED,
            )
        name = f"judge of {self._verifier_id}"
        launch = AgentLaunch(agent_id, name, model=self.model)
        instance = await run.start_agent(launch)
        try:
            yield name, instance.url, instance
        finally:
            await run.dispose(instance)

    async def _keep(self, judge: Judge, said: Sequence[Exchange]) -> str | None:
        """Where what the judge did is stored: its own trajectory, else what it said."""
        if isinstance(judge, AgentJudge) and judge.trajectory_url is not None:
            return judge.trajectory_url
        if not said:
            return None
        document = _dialogue(said, f"judge of {self._verifier_id}", self.model)
        key = f"{self._prefix}trajectory-{uuid.uuid4().hex}.json"
        return await put_json(self._run.store, self._run.masker, key, document)

    def _told(self, error: HarborError, url: str | None) -> HarborError:
        """The error, with where the judge's own words are."""
        where = f"\nwhat the judge did: {url}" if url else ""
        text = self._run.masker.text(f"{error}{where}")
        answers = error.answers if isinstance(error, JudgeError) else ()
        return JudgeError(text, answers)


def _dialogue(
    said: Sequence[Exchange], name: str, model: str | None
) -> dict[str, Json]:
    """What was said to and by a judge that gives no trajectory, in ATIF."""
    spoken: list[tuple[Source, str]] = []
    for exchange in said:
        spoken += [("user", exchange.question), ("agent", exchange.answer)]
    document = Trajectory(
        agent=AgentInfo(name=name, version="unknown", model_name=model),
        steps=[
            Step(step_id=number, source=source, message=text)
            for number, (source, text) in enumerate(spoken, 1)
        ],
    )
    return document.to_json()
