"""A judge that is one model behind a chat-completions endpoint (spec 8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_harbor.errors import JudgeError
from pytest_harbor.protocols import chat_completions
from pytest_harbor.verification.judges.api import Judge


@dataclass
class ModelJudge(Judge):
    """Asks a model; each answer is one call, with all that was said before."""

    model: str
    """As task files write it, ``openai/judge-small``."""
    api_base: str | None = None
    api_key: str | None = field(default=None, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of each call."""
    messages: list[dict[str, str]] = field(default_factory=list)
    """What was said so far."""

    async def ask(
        self, text: str, schema: Mapping[str, Any], *, timeout_seconds: float
    ) -> str:
        self.messages.append({"role": "user", "content": text})
        completion = await chat_completions.complete(
            self.model,
            self.messages,
            response_format={"type": "json_schema", "schema": schema},
            api_base=self.api_base,
            api_key=self.api_key,
            timeout_seconds=timeout_seconds,
            params=self.params,
        )
        if not completion.text and completion.finish_reason == "content_filter":
            raise JudgeError(f"model {self.model} refused to grade (content filter)")
        self.messages.append({"role": "assistant", "content": completion.text})
        return completion.text
