"""The seam of judges: whoever answers a question in words with grades in JSON.

A model behind an endpoint, a deployed agent and a project's own judge (hook
``pytest_harbor_judges``) are equals behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias


class Judge(ABC):
    """One grading. Made for it, asked up to three times, closed after it.

    A project's judge is a subclass, or a class with the same methods; the factory that
    the hook returns is called with ``model`` as a keyword (the step's, or ``None``).
    """

    @abstractmethod
    async def ask(
        self, text: str, schema: Mapping[str, Any], *, timeout_seconds: float
    ) -> str | Mapping[str, Any]:
        """Answer with an object of that JSON schema, or with text that has one.

        The first ``text`` is the whole question. Another one says what was wrong with
        the answer before and asks for a new one; the question still holds.

        Raises:
            JudgeError, ProtocolError: there is no answer. It is not asked again.
        """

    async def aclose(self) -> None:  # noqa: B027 - optional
        """End what it holds; called once, whatever happened."""


JudgeFactory: TypeAlias = Callable[..., Judge]
