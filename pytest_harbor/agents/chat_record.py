"""What the ``chat`` agent did, as a trajectory (ATIF v1.7) and as a log for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from pytest_harbor import __version__
from pytest_harbor.agents.chat_tools import arguments_of
from pytest_harbor.agents.trajectory import (
    AgentInfo,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    Trajectory,
)
from pytest_harbor.agents.trajectory import ToolCall as RecordedCall
from pytest_harbor.agents.trajectory_totals import add_known, final_metrics
from pytest_harbor.protocols.chat_completions import Completion, ToolCall

LOG_NAME: Final = "chat.json"


class ChatRecord:
    """One turn as it goes on; the engine joins those of a session (spec 16)."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._steps: list[dict[str, Any]] = []

    def system(self, text: str) -> None:
        """The system prompt."""
        self._add(source="system", message=text)

    def user(self, text: str) -> None:
        """An instruction."""
        self._add(source="user", message=text)

    def answer(self, answer: Completion) -> None:
        """What the model answered, and what it cost."""
        usage = answer.usage
        calls = [
            RecordedCall(
                tool_call_id=call.id,
                function_name=call.name,
                arguments=_arguments(call),
            )
            for call in answer.tool_calls
        ]
        self._add(
            source="agent",
            message=answer.text,
            model_name=answer.model,
            tool_calls=calls or None,
            metrics=Metrics(
                prompt_tokens=usage.input_tokens,
                completion_tokens=usage.output_tokens,
                cached_tokens=usage.cached_input_tokens,
            ),
            llm_call_count=1,
        )

    def result(self, call: ToolCall, text: str) -> None:
        """What a tool answered; it belongs to the answer that called it."""
        results = self._steps[-1].setdefault("results", [])
        results.append(ObservationResult(source_call_id=call.id, content=text))

    @property
    def input_tokens(self) -> int | None:
        """Tokens that went in; ``None`` when the endpoint never said."""
        return add_known(one["metrics"].prompt_tokens for one in self._answers())

    @property
    def output_tokens(self) -> int | None:
        """Tokens that came out."""
        return add_known(one["metrics"].completion_tokens for one in self._answers())

    def trajectory(self) -> dict[str, Any]:
        """The turn so far, in ATIF v1.7."""
        steps = []
        for number, kept in enumerate(self._steps, 1):
            fields = dict(kept)
            results = fields.pop("results", None)
            if results:
                fields["observation"] = Observation(results=results)
            steps.append(Step(step_id=number, **fields))
        trajectory = Trajectory(
            agent=AgentInfo(name="chat", version=__version__, model_name=self._model),
            steps=steps,
            final_metrics=final_metrics(steps),
        )
        return trajectory.model_dump(mode="json", exclude_none=True)

    def write(self, folder: Path) -> None:
        """Keep the trajectory in the turn's agent logs. Raises OSError."""
        text = json.dumps(self.trajectory(), indent=1, ensure_ascii=False)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOG_NAME).write_text(text, encoding="utf-8", errors="replace")

    def _add(self, **fields: Any) -> None:
        at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        self._steps.append({"timestamp": at, **fields})

    def _answers(self) -> list[dict[str, Any]]:
        return [step for step in self._steps if step["source"] == "agent"]


def _arguments(call: ToolCall) -> Mapping[str, Any]:
    """The arguments as an object; what is none is kept as it came."""
    try:
        return arguments_of(call)
    except ValueError:
        return {"raw": call.arguments}
