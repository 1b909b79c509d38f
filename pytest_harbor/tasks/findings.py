"""What a check found: problems refuse the task, warnings and notes do not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_harbor.errors import Problem


@dataclass
class Findings:
    """Collects what is wrong with one task or dataset, so that all is told at once."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Likely mistakes; ``--harbor-strict`` makes problems of them."""
    notes: list[str] = field(default_factory=list)
    """Legacy keys and choices worth a line in the record; never an error."""

    def problem(self, where: str, what: str, rule: str = "") -> None:
        """Add a reason why the task cannot be loaded."""
        self.problems.append(Problem(where, what, rule))

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems found elsewhere, each once."""
        self.problems += [p for p in problems if p not in self.problems]

    def warn(self, text: str) -> None:
        """Add a warning, each text once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def note(self, text: str) -> None:
        """Add a note, each text once."""
        if text not in self.notes:
            self.notes.append(text)

    def make_strict(self) -> None:
        """Turn every warning into a problem."""
        self.problems += [Problem("", text) for text in self.warnings]
        self.warnings.clear()

    @property
    def lines(self) -> tuple[str, ...]:
        """Warnings, then notes."""
        return (*self.warnings, *self.notes)
