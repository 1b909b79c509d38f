"""What every step has, whatever its type, and how a type is declared (spec 1.3, 1.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import Field, ValidationInfo, model_validator
from typing_extensions import Self

from pytest_harbor.tasks.steps.values import Id, Record, Version, WholeNumber, refused

# The loader asks for the faults itself, to tell all of them.
LOADING: Mapping[str, bool] = {"loading": True}

DEFAULT_AGENT_NAME = "default-agent"

NameKind: TypeAlias = Literal["env", "agent", "prompt", "verifier", "files"]


@dataclass(frozen=True)
class Name:
    """A name in the run context that a step reads or writes (spec 1.3).

    Each kind is a namespace of its own. ``files`` are what a step collected, under
    the step's id.
    """

    kind: NameKind
    name: str
    field: str = ""
    """Where the step has it (``env_ids[0]``)."""


@dataclass(frozen=True)
class Fault:
    """Fields of one step that do not go together."""

    field: str
    """The field the message is about; empty for the whole step."""
    text: str
    is_lack: bool = False
    """True when something is missing, which may be a follow-up of a refused value."""


class Retry(Record):
    """``retry_config``: what is run again when the step fails (spec 1.4, 2.2)."""

    retry_from_step_id: Id
    """The step itself or an ancestor; everything from there on is undone and re-run."""
    max_retries: WholeNumber = 1
    """How often."""


class Step(Record):
    """One step of a task, checked. Subclass it for a step type of your own.

    A subclass declares its fields, and may say what it :meth:`reads` and
    :meth:`writes` in the run context, so that order and names are checked before a run.
    """

    id: Id
    """Unique in the task."""
    type: str = ""
    """The type's name."""
    depends_on: tuple[str, ...] = ()
    """Ids of the steps that must have ended first, resolved: a file that says nothing
    means every earlier step."""
    fail_task_on_error: bool = True
    """Whether a failure of this step fails the task."""
    retry: Retry | None = None
    """``retry_config`` of the file."""
    version: Version | None = None
    """Version of a stored step; without meaning here."""
    position: int = 0
    """Place in the file, from 1."""
    raw: Mapping[str, Any] = Field(default_factory=dict, repr=False)
    """The file's keys as this run has them: after overrides and placeholders, by today's
    names, with the bundle's skills in full."""

    old_names: ClassVar[Mapping[str, str]] = {}
    """Old spellings of fields that are still read."""
    unsupported: ClassVar[frozenset[str]] = frozenset()
    """Keys of the format that are known and do nothing here."""
    written_kinds: ClassVar[frozenset[NameKind]] = frozenset()
    """Kinds of names that steps of this type write."""

    def reads(self) -> Iterator[Name]:
        """Names that an earlier step must have written."""
        return iter(())

    def writes(self) -> Iterator[Name]:
        """Names that later steps may read."""
        return iter(())

    def faults(self) -> Iterator[Fault]:
        """What is wrong with the fields together."""
        return iter(())

    def doubts(self) -> Iterator[Fault]:
        """What is likely a mistake; a warning."""
        return iter(())

    @model_validator(mode="after")
    def _sound(self, info: ValidationInfo) -> Self:
        if info.context is not LOADING:
            for fault in self.faults():
                raise refused(
                    f"{fault.field}: {fault.text}" if fault.field else fault.text
                )
        return self


def repeated(names: list[str]) -> list[str]:
    """The names that are there more than once, in order."""
    return [name for name, count in Counter(names).items() if count > 1]
