"""A loaded step task: its steps, checked, and the bundle that their names refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.order import ancestors
from pytest_harbor.tasks.steps.step import Step


@dataclass(frozen=True)
class StepTask:
    """One task file that passed every check of the load (spec 13, 1 to 5)."""

    name: str
    """The file's name without its extension; the task's id (spec 1.1)."""
    file: Path
    bundle: Bundle
    steps: tuple[Step, ...] = ()
    """In the order of the file."""
    warnings: tuple[str, ...] = ()
    """One line each, with file, step and field."""
    seed: Mapping[str, Any] = field(default_factory=dict)
    """Values that the placeholders got (spec 1.5)."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """``user_overrides`` that were laid over the file."""
    source: tuple[Any, ...] = field(default=(), repr=False)
    """The steps as the file has them."""
    step_types: Mapping[str, type[Step]] = field(default_factory=dict, repr=False)
    """The types that the file may use."""

    @property
    def label(self) -> str:
        """The file as messages name it: below the bundle, with forward slashes."""
        if self.file.is_relative_to(self.bundle.root):
            return self.file.relative_to(self.bundle.root).as_posix()
        return self.file.name

    @cached_property
    def by_id(self) -> Mapping[str, Step]:
        """The steps by id."""
        return {step.id: step for step in self.steps}

    @cached_property
    def ancestors(self) -> Mapping[str, frozenset[str]]:
        """Per step id the ids of all steps that have ended before it starts."""
        found = ancestors((step.id, step.depends_on) for step in self.steps)
        return dict(zip(self.by_id, found, strict=True))
