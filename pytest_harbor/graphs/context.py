"""The context that the steps of a run share (spec 3): records, and how they are written.

Steps read :class:`RunContext` and write to it by *changes*, plain data that a
:class:`Journal` applies at once. A retry takes back what its span wrote by leaving
those changes out (spec 2.2), so a step never undoes anything itself.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pytest_harbor.errors import NotDeployed, StepError
from pytest_harbor.events import Json
from pytest_harbor.protocols.excerpts import MAX_LEVELS, is_too_deep

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from pytest_harbor.sandboxes.output import Masker


@dataclass(frozen=True)
class DeployedEnv:
    """One instance of an env (spec 3.1)."""

    env_id: str
    """As the step wrote it: an alias stays the alias."""
    env_version: int
    instance_id: str
    mcp_url: str
    """Streamable-HTTP MCP endpoint, as this process reaches it."""
    mcp_server_name: str
    """The card's ``name``; the env's own where there is no card."""
    environment_card: Mapping[str, Json] | None = None
    """As read at deploy; ``None`` for a plain MCP server, which has no data plane."""
    environment_card_url: str | None = None
    sandbox_id: str | None = None
    sandbox_type: str | None = None
    sandbox_ids: tuple[str, ...] = ()
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """``deploy_step_id``, and the step's own annotations."""
    created_at_utc: str = ""
    expires_at_utc: str = ""


@dataclass(frozen=True)
class DeployedAgent:
    """One agent under the name that it has in this run (spec 3.2)."""

    agent_name: str
    a2a_url: str
    """The agent's base URL, as this process reaches it."""
    instance_id: str
    sandbox_id: str | None = None
    sandbox_type: str | None = None
    a2a_card: Mapping[str, Json] | None = None
    role: str | None = None
    network_policy: Mapping[str, Json] | None = None
    api_url: str = ""
    """The same as ``a2a_url``."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """``deploy_step_id``, ``a2a_agent_id``, and the step's own annotations."""
    created_at_utc: str = ""
    expires_at_utc: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "api_url", self.a2a_url)


@dataclass(frozen=True)
class DeployedSandbox:
    """A bare sandbox, with neither env nor agent in it."""

    sandbox_name: str
    instance_id: str
    sandbox_id: str
    sandbox_type: str
    metadata: Mapping[str, Json] = field(default_factory=dict)
    created_at_utc: str = ""
    expires_at_utc: str = ""


@dataclass(frozen=True)
class PromptResponse:
    """What an agent answered to a prompt (spec 3.3)."""

    prompt_id: str
    response: str
    """The reply's text; of a conversation the last one."""
    prompt_text: str | None = None
    """After placeholders; ``None`` when the step used ``parts``."""
    agent_trajectory_object_url: str | None = None
    agent_trajectory_object_prefix: str | None = None
    target_agent_per_turn_trajectory_object_urls: tuple[str | None, ...] = ()
    source_agent_per_turn_prompt_parts: tuple[list[Json] | None, ...] = ()
    """Parts sent per turn; ``None`` means ``prompt_text``."""
    tool_call_count: int | None = None
    model: str | None = None
    error_type: str | None = None
    """``agent_error``, ``infra_error`` or ``timeout``."""
    error_code: str | None = None
    error_message: str | None = None
    agent_session_id: str | None = None
    """The last A2A task's ID."""
    a2a_context_id: str | None = None
    agent_name: str = ""
    step_id: str = ""
    structured_output: Json = None

    @property
    def has_error(self) -> bool:
        """True when the agent failed, however little it said about it (spec 8.6)."""
        return any((self.error_type, self.error_code, self.error_message))


@dataclass
class RunContext:
    """What the steps of one run know of each other (spec 3). JSON holds all of it."""

    instance_id: str
    """The run's ID."""
    deployed_envs: list[DeployedEnv] = field(default_factory=list)
    deployed_agents: list[DeployedAgent] = field(default_factory=list)
    deployed_sandboxes: list[DeployedSandbox] = field(default_factory=list)
    prompt_responses: list[PromptResponse] = field(default_factory=list)
    metadata: dict[str, Json] = field(default_factory=dict)
    """The keys of spec 3.4."""
    agent_model: str | None = None
    """The run's model, which beats a step's (spec 7.1)."""
    default_agent_model: str | None = None
    agent_harness: str | None = None
    agent_artifact_id: str | None = None

    def env(self, env_id: str) -> DeployedEnv:
        """The instance of that env. Raises NotDeployed."""
        for env in self.deployed_envs:
            if env.env_id == env_id:
                return env
        raise NotDeployed(f"Env '{env_id}' not found in context.deployed_envs")

    def agent(self, agent_name: str) -> DeployedAgent:
        """The agent of that name. Raises NotDeployed, in the words of spec 7."""
        for agent in self.deployed_agents:
            if agent.agent_name == agent_name:
                return agent
        raise NotDeployed(
            f"Agent with name '{agent_name}' not found in context.deployed_agents"
        )

    def sandbox(self, sandbox_name: str) -> DeployedSandbox:
        """The bare sandbox of that name. Raises NotDeployed."""
        for sandbox in self.deployed_sandboxes:
            if sandbox.sandbox_name == sandbox_name:
                return sandbox
        raise NotDeployed(
            f"Sandbox with name '{sandbox_name}' not found in context.deployed_sandboxes"
        )

    def response(self, prompt_id: str) -> PromptResponse:
        """The reply of that name. Raises StepError."""
        for response in self.prompt_responses:
            if response.prompt_id == prompt_id:
                return response
        raise StepError(
            f"Prompt response with id '{prompt_id}' not found in "
            "context.prompt_responses"
        )


@dataclass(frozen=True, init=False)
class _AtKeys:
    """A change at one place of ``metadata``: its keys from outside in, and a value."""

    keys: tuple[str, ...]
    value: Json

    def __init__(self, *keys_and_value: Any) -> None:
        *keys, value = keys_and_value
        _refuse_depth(value, str(keys[0]))
        object.__setattr__(self, "keys", tuple(keys))
        object.__setattr__(self, "value", copy.deepcopy(value))

    def _place(self, context: RunContext) -> dict[str, Json]:
        """The object that holds the last key; those on the way are made."""
        place = context.metadata
        for key in self.keys[:-1]:
            place = cast("dict[str, Json]", place.setdefault(key, {}))
        return place


class Put(_AtKeys):
    """A change: set a value of ``metadata``.

    ``Put("verifications", "manners", entry)`` is ``metadata["verifications"]["manners"] =
    entry``.
    """

    def apply(self, context: RunContext) -> None:
        """Make the change."""
        self._place(context)[self.keys[-1]] = copy.deepcopy(self.value)


class Append(_AtKeys):
    """A change: add an entry to a list of ``metadata``, made when it is not there.

    ``Append("usersim_turn_outputs", "serve", entry)`` adds to the list of step ``serve``.
    """

    def apply(self, context: RunContext) -> None:
        """Make the change."""
        entries = self._place(context).setdefault(self.keys[-1], [])
        cast("list[Json]", entries).append(copy.deepcopy(self.value))


@dataclass(frozen=True)
class DefaultModel:
    """A change: the agents' default model, unless an earlier step set it (spec 6)."""

    model: str

    def apply(self, context: RunContext) -> None:
        """Make the change."""
        if context.default_agent_model is None:
            context.default_agent_model = self.model


@dataclass(frozen=True)
class MarkRetried:
    """A change: a step's failures were recovered by a retry (spec 2.2)."""

    step_id: str

    def apply(self, context: RunContext) -> None:
        """Make the change."""
        for entry in cast("list[Json]", context.metadata.get("failed_steps", [])):
            assert isinstance(entry, dict)
            if entry["step_id"] == self.step_id:
                entry["retried"] = True


Record: TypeAlias = DeployedEnv | DeployedAgent | DeployedSandbox | PromptResponse
Change: TypeAlias = Record | Put | Append | DefaultModel | MarkRetried
"""What a step may write: a record is added to its list, the others say what they do."""


class Journal:
    """All changes of a run in their order; ``context`` is what they come to.

    ``context`` stays one and the same object, whatever is taken back.
    """

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._initial = copy.deepcopy(context)
        self._changes: list[tuple[str | None, Change]] = []

    def write(self, step_id: str | None, *changes: Change) -> None:
        """Apply changes of a step, all or none. ``None`` is the engine itself.

        Nothing else of the event loop runs in between, so no reader sees a half of it.

        Raises:
            StepError: a value is nested too deeply to be saved.
        """
        before = len(self._changes)
        try:
            for change in changes:
                _apply(change, self.context)
                self._changes.append((step_id, change))
        except BaseException:
            del self._changes[before:]
            self._replay()
            raise

    def undo(self, step_ids: Collection[str]) -> None:
        """Take back everything that these steps wrote."""
        self._changes = [
            (step_id, change)
            for step_id, change in self._changes
            if step_id not in step_ids
        ]
        self._replay()

    def _replay(self) -> None:
        vars(self.context).update(vars(copy.deepcopy(self._initial)))
        for _, change in self._changes:
            _apply(change, self.context)


def _refuse_depth(value: object, where: str) -> None:
    """Raises StepError for what JSON cannot hold: agents and judges write some of it."""
    if is_too_deep(value):
        raise StepError(f"{where} is nested in more than {MAX_LEVELS} levels")


def _apply(change: Change, context: RunContext) -> None:
    if isinstance(change, Record):
        for name, value in vars(change).items():
            _refuse_depth(value, name)
    match change:
        case DeployedEnv():
            context.deployed_envs.append(change)
        case DeployedAgent():
            context.deployed_agents.append(change)
        case DeployedSandbox():
            context.deployed_sandboxes.append(change)
        case PromptResponse():
            context.prompt_responses.append(change)
        case _:
            change.apply(context)


def context_to_plain(
    context: RunContext, masker: Masker | None = None
) -> dict[str, Json]:
    """A copy of the whole context as what JSON can hold, secrets masked."""
    plain = _contexts().dump_python(context, mode="json")
    if masker is not None:
        plain = masker.data(plain)
    return cast("dict[str, Json]", plain)


def context_from_plain(data: Mapping[str, Any]) -> RunContext:
    """The context that :func:`context_to_plain` wrote.

    Raises:
        pydantic.ValidationError: it is something else.
    """
    return _contexts().validate_python(data)


@cache
def _contexts() -> TypeAdapter[RunContext]:
    from pydantic import TypeAdapter

    return TypeAdapter(RunContext)
