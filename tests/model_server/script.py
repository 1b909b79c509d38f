"""What the model does: scenes, each begun by words in a user's message."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from model_server.conversation import Message, Request, Tool

SHELL_TOOLS = (
    "bash",
    "shell",
    "exec_command",
    "shell_command",
    "run_shell_command",
    "local_shell",
    "execute_command",
    "run_command",
    "developer__shell",
)
WRITE_TOOLS = ("write", "write_file", "create_file")
COMMAND_ARGUMENTS = ("command", "cmd", "script")


@dataclass(frozen=True)
class Say:
    """Answer with text; the last act of a scene."""

    text: str


@dataclass(frozen=True)
class Run:
    """Call the client's shell tool, whatever its name and arguments are."""

    command: str
    say: str = ""


@dataclass(frozen=True)
class Write:
    """Call the client's tool that writes a file; the shell where it has none."""

    path: str
    content: str


@dataclass(frozen=True)
class Call:
    """Call a tool by its name, or by the end of it (``mcp__server__name``)."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Together:
    """Several tool calls in one answer."""

    calls: tuple[Run | Write | Call, ...]


@dataclass(frozen=True)
class Fault:
    """Fail instead of answering, ``times`` times, or always.

    ``hang`` sends nothing until the client leaves; ``cut`` breaks the connection in the
    middle of the answer.
    """

    kind: Literal[
        "rate_limit", "auth", "server_error", "overloaded", "too_long", "hang", "cut"
    ]
    times: int | None = None
    retry_after: str | None = "0"


Act: TypeAlias = Say | Run | Write | Call | Together | Fault


@dataclass(frozen=True)
class Scene:
    """What follows a user's message that contains ``when``, answer by answer."""

    when: str
    acts: tuple[Act, ...]

    def __init__(self, when: str, *acts: Act) -> None:
        object.__setattr__(self, "when", when)
        object.__setattr__(self, "acts", acts)


@dataclass(frozen=True)
class ToolCall:
    """A call on its way to the client."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    free_text: str | None = None
    """The whole input of a tool without a schema."""
    namespace: str = ""


@dataclass(frozen=True)
class Answer:
    """What the model says, before a wire format dresses it."""

    text: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Cue:
    """Where in the script a request stands."""

    scene: Scene
    position: int
    """Answers of the model since the scene began."""

    @property
    def act(self) -> Act:
        """The next act that is no fault; past the end, the last one again."""
        acts = [act for act in self.scene.acts if not isinstance(act, Fault)]
        return acts[min(self.position, len(acts) - 1)]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that come before it."""
        found: list[Fault] = []
        passed = 0
        for act in self.scene.acts:
            if isinstance(act, Fault):
                if passed == self.position:
                    found.append(act)
            else:
                passed += 1
        return tuple(found)


def find_cue(scenes: Sequence[Scene], request: Request) -> Cue | None:
    """The scene of the latest user's message that begins one."""
    conversation = request.conversation
    for place in reversed(range(len(conversation))):
        entry = conversation[place]
        if entry.role != "user":
            continue
        for scene in scenes:
            if scene.when in entry.text:
                return Cue(scene, _answers(conversation[place + 1 :]))
    return None


def _answers(entries: Sequence[Message]) -> int:
    """Answers of the model among these; one may come back in several entries."""
    answers: set[str] = set()
    for place, entry in enumerate(entries):
        if entry.role != "assistant":
            continue
        if entry.call_ids:
            answers.update(call_id.rpartition("_")[0] for call_id in entry.call_ids)
        elif not (place + 1 < len(entries) and entries[place + 1].call_ids):
            answers.add(f"text {place}")
    return len(answers)


def perform(act: Act, tools: Sequence[Tool], answer_id: str) -> Answer:
    """Turn an act into an answer, with the tools that this client offers.

    Raises:
        LookupError: the client offers no such tool.
    """
    if isinstance(act, Say):
        return Answer(act.text)
    if isinstance(act, Together):
        calls = tuple(
            _call(one, tools, f"{answer_id}_{number}")
            for number, one in enumerate(act.calls)
        )
        return Answer("", calls)
    assert not isinstance(act, Fault)
    text = act.say if isinstance(act, Run) else ""
    return Answer(text, (_call(act, tools, f"{answer_id}_0"),))


def _call(act: Run | Write | Call, tools: Sequence[Tool], call_id: str) -> ToolCall:
    if isinstance(act, Call):
        tool = next((tool for tool in tools if tool.name.endswith(act.tool)), None)
        if tool is None:
            raise LookupError(f"no tool {act.tool!r} among {_names(tools)}")
        return ToolCall(call_id, tool.name, act.arguments, namespace=tool.namespace)
    if isinstance(act, Write):
        tool = _find(tools, WRITE_TOOLS)
        if tool is not None:
            return ToolCall(call_id, tool.name, _written(tool, act))
        act = Run(f"printf %s {shlex.quote(act.content)} > {shlex.quote(act.path)}")
    tool = _find(tools, SHELL_TOOLS)
    if tool is None:
        raise LookupError(f"no shell tool among {_names(tools)}")
    if not tool.schema:
        return ToolCall(call_id, tool.name, {}, free_text=act.command)
    return ToolCall(call_id, tool.name, _commanded(tool, act.command))


def _find(tools: Sequence[Tool], names: Sequence[str]) -> Tool | None:
    by_name = {tool.name.lower(): tool for tool in tools}
    return next((by_name[name] for name in names if name in by_name), None)


def _names(tools: Sequence[Tool]) -> str:
    return ", ".join(tool.name for tool in tools) or "none"


def _commanded(tool: Tool, command: str) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name in COMMAND_ARGUMENTS:
        if name in tool.properties:
            is_list = tool.properties[name].get("type") == "array"
            arguments[name] = ["bash", "-lc", command] if is_list else command
            break
    return _filled(tool, arguments)


def _written(tool: Tool, act: Write) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, schema in tool.properties.items():
        if "path" in name.lower():
            arguments[name] = act.path
        elif name in ("content", "contents", "file_text") and schema:
            arguments[name] = act.content
    return _filled(tool, arguments)


def _filled(tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    """Give every other required argument a value of its type."""
    defaults = {"boolean": False, "integer": 0, "number": 0, "array": [], "object": {}}
    for name in tool.required:
        kind = tool.properties.get(name, {}).get("type", "string")
        arguments.setdefault(name, defaults.get(kind, "scripted"))
    return arguments
