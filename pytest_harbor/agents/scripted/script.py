"""The script of a scripted agent: which answer a prompt gets, and what is done before.

Pure. A script is a JSON list of answers, or an object with ``answers`` and ``name``::

    {"answers": [
      {"when": "offsite",
       "do": [{"call": "email_search", "arguments": {"query": "offsite"}, "save": "found"}],
       "answer": "The offsite is on {{found.0.date}}."},
      {"answer": {"message": "Thank you.", "done": true}}
    ]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from pytest_harbor.errors import SettingsError

DEFAULT_NAME: Final = "scripted"

_VERBS: Final[Mapping[str, frozenset[str]]] = {
    "call": frozenset({"arguments", "server", "save"}),
    "write": frozenset({"text", "base64"}),
    "run": frozenset({"save"}),
    "wait": frozenset(),
    "hang": frozenset(),
    "exit": frozenset(),
}
_PLACE: Final = re.compile(r"\{\{\s*([\w.-]+)\s*\}\}")


class _Part(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True
    )


class Action(_Part):
    """One thing that is done before an answer: exactly one verb, and what belongs to it."""

    call: str | None = None
    """A tool of the agent's MCP servers."""
    arguments: dict[str, Any] = {}
    """What the tool is called with."""
    server: str | None = None
    """The server's name, where several have that tool."""
    save: str | None = None
    """Name of the result for ``{{name}}`` in what follows, until the agent ends."""
    write: str | None = None
    """A file to write; its folders are made."""
    text: str | None = None
    """Its content."""
    base64: str | None = None
    """Its content, for bytes."""
    run: list[str] | None = None
    """A command to run in the agent's sandbox."""
    wait: float | None = None
    """Seconds to wait."""
    hang: Literal[True] | None = None
    """Never answer."""
    exit: int | None = None
    """End the agent's process with this exit code."""

    @property
    def verb(self) -> str:
        """Which of the verbs it is."""
        return next(verb for verb in _VERBS if getattr(self, verb) is not None)

    @model_validator(mode="after")
    def _one_verb(self) -> Self:
        verbs = [verb for verb in _VERBS if getattr(self, verb) is not None]
        if len(verbs) != 1:
            raise ValueError(f"needs exactly one of {', '.join(_VERBS)}")
        stray = sorted(self.model_fields_set - _VERBS[verbs[0]] - set(verbs))
        if stray:
            raise ValueError(f"{stray[0]!r} does not belong to {verbs[0]!r}")
        if verbs == ["write"] and (self.text is None) == (self.base64 is None):
            raise ValueError("write needs either text or base64")
        return self


class ScriptedError(_Part):
    """What a failing agent says of its failure."""

    type: str | None = None
    """``agent_error`` or ``infra_error``."""
    code: str | None = None
    """A code of the agent's own."""
    message: str | None = None
    """A text for people."""


class ScriptedAnswer(_Part):
    """One answer, when it is given, and what is done before."""

    when: str | None = None
    """Regular expression that is searched in the prompt, case-insensitive. Unset: any."""
    times: int | None = Field(default=None, ge=1)
    """How often it is given; unset: once without ``when``, without limit with it."""
    do: tuple[Action, ...] = ()
    """What is done first, in order."""
    answer: str | dict[str, Any] = ""
    """The text, or an object, which goes out as JSON text and as structured output."""
    parts: tuple[dict[str, Any], ...] = ()
    """Further A2A parts of the answer."""
    state: Literal[
        "completed",
        "failed",
        "rejected",
        "canceled",
        "input-required",
        "auth-required",
    ] = "completed"
    """Final state of the A2A task."""
    error: ScriptedError | None = None
    """The error of an answer that says it failed."""
    message_only: bool = False
    """Answer with a message instead of a task; nothing can be done before."""

    @property
    def is_error(self) -> bool:
        """Whether it reports a failure."""
        return self.error is not None

    @field_validator("when")
    @classmethod
    def _a_pattern(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                re.compile(value)
            except re.error as error:
                raise ValueError(f"is no regular expression: {error}") from None
        return value

    def fits(self, prompt: str, times_given: int) -> bool:
        """Whether a prompt gets this answer, after it was given that often."""
        limit = self.times or (1 if self.when is None else None)
        if limit is not None and times_given >= limit:
            return False
        return self.when is None or bool(re.search(self.when, prompt, re.IGNORECASE))


class Script(_Part):
    """What a scripted agent knows."""

    name: str = DEFAULT_NAME
    """Its name on its card."""
    answers: tuple[ScriptedAnswer, ...]
    """The first that fits and is not used up is given."""


def read_script(text: str, where: str) -> Script:
    """Read a script; ``where`` is for messages.

    Raises:
        SettingsError: it is no script; every problem with its place.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{where}: is not JSON ({error})") from None
    try:
        return Script.model_validate(
            {"answers": data} if isinstance(data, list) else data
        )
    except ValidationError as error:
        problems = "\n".join(_problem(where, problem) for problem in error.errors())
        raise SettingsError(problems) from None


def filled(value: Any, saved: Mapping[str, Any]) -> Any:
    """``value`` with each ``{{name.key.0}}`` in its strings replaced.

    A string that is one place alone becomes the value itself, whatever its type.

    Raises:
        LookupError: nothing of that name was saved.
    """
    if isinstance(value, Mapping):
        return {key: filled(inner, saved) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [filled(inner, saved) for inner in value]
    if not isinstance(value, str):
        return value
    if whole := _PLACE.fullmatch(value):
        return _found(whole[1], saved)
    return _PLACE.sub(lambda place: _as_text(_found(place[1], saved)), value)


def _found(path: str, saved: Mapping[str, Any]) -> Any:
    found: Any = saved
    try:
        for key in path.split("."):
            found = found[int(key)] if isinstance(found, list) else found[key]
    except (LookupError, TypeError, ValueError):
        raise LookupError(f"nothing is saved as {{{{{path}}}}}") from None
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _problem(where: str, problem: Mapping[str, Any]) -> str:
    place = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]
    ).lstrip(".")
    text = problem["msg"].removeprefix("Value error, ")
    return f"{where}: {place}: {text}" if place else f"{where}: {text}"
