"""ATIF v1.7: what is read, what is refused, what is counted."""

from __future__ import annotations

import copy
import json

import pytest

from pytest_harbor.agents.trajectory import (
    SCHEMA_VERSION,
    AgentInfo,
    FinalMetrics,
    Metrics,
    Step,
    Trajectory,
    read_trajectory,
)
from pytest_harbor.agents.trajectory_totals import (
    Totals,
    final_metrics,
    join_trajectories,
    totals,
)
from pytest_harbor.errors import HarborError, TrajectoryError

EVERYTHING = {
    "schema_version": SCHEMA_VERSION,
    "session_id": "run-1",
    "trajectory_id": "main",
    "agent": {
        "name": "some-agent",
        "version": "1.2.3",
        "model_name": "some-model",
        "tool_definitions": [{"type": "function", "function": {"name": "shell"}}],
        "extra": {"prompt": "short"},
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "You are an agent."},
        {
            "step_id": 2,
            "source": "user",
            "timestamp": "2026-11-30T22:00:00Z",
            "message": [
                {"type": "text", "text": "what is this?"},
                {
                    "type": "image",
                    "source": {"media_type": "image/png", "path": "a.png"},
                },
            ],
        },
        {
            "step_id": 3,
            "source": "agent",
            "timestamp": "2026-11-30T22:00:01.500+00:00",
            "model_name": "other-model",
            "reasoning_effort": "high",
            "message": "",
            "reasoning_content": "I look.",
            "tool_calls": [
                {
                    "tool_call_id": "c1",
                    "function_name": "shell",
                    "arguments": {"command": "ls"},
                    "extra": {"attempt": 1},
                }
            ],
            "observation": {
                "results": [
                    {
                        "source_call_id": "c1",
                        "content": "a.png",
                        "subagent_trajectory_ref": [{"trajectory_id": "sub"}],
                        "extra": {"exit": 0},
                    },
                    {"content": "the clock struck"},
                ]
            },
            "metrics": {
                "prompt_tokens": 100,
                "completion_tokens": 10,
                "cached_tokens": 80,
                "cost_usd": 0.25,
                "prompt_token_ids": [1, 2],
                "completion_token_ids": [3],
                "logprobs": [-0.5],
                "extra": {"cache_creation_input_tokens": 20},
            },
            "llm_call_count": 1,
            "extra": {"turn": 1},
        },
        {
            "step_id": 4,
            "source": "agent",
            "message": "passed on",
            "llm_call_count": 0,
        },
    ],
    "notes": "made up",
    "final_metrics": {"total_steps": 4, "extra": {"seconds": 3.5}},
    "continued_trajectory_ref": "next.json",
    "extra": {"seed": 7},
    "subagent_trajectories": [
        {
            "schema_version": SCHEMA_VERSION,
            "trajectory_id": "sub",
            "agent": {"name": "helper", "version": "1"},
            "steps": [
                {
                    "step_id": 1,
                    "source": "agent",
                    "message": "done",
                    "metrics": {"prompt_tokens": 7, "cost_usd": 0.5},
                }
            ],
        }
    ],
}


def _changed(path: str, value: object) -> dict:
    document = copy.deepcopy(EVERYTHING)
    *parents, last = [int(p) if p.isdigit() else p for p in path.split(".")]
    place: object = document
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


def test_every_field_survives_the_round_trip() -> None:
    read = read_trajectory(EVERYTHING)
    assert read.to_json() == EVERYTHING
    assert read_trajectory(read.to_text()) == read
    assert read_trajectory(read.to_text().encode()) == read


def test_odd_characters_survive_and_the_text_is_ascii() -> None:
    odd = "\x00\x1b[31m\ufffd\u2028 ünï 🙂"
    trajectory = _one_turn(odd)
    text = trajectory.to_text()
    assert text.isascii()
    assert read_trajectory(text).steps[0].message == odd
    assert json.loads(text)["steps"][0]["message"] == odd


@pytest.mark.parametrize("minor", range(8))
def test_every_version_up_to_1_7_is_read(minor: int) -> None:
    document = _changed("schema_version", f"ATIF-v1.{minor}")
    assert read_trajectory(document).schema_version == f"ATIF-v1.{minor}"


@pytest.mark.parametrize(
    ("path", "value", "place", "words"),
    [
        ("schema_version", "ATIF-v2.0", "schema_version", "ATIF-v1.7"),
        ("agent", ..., "agent", "required"),
        ("agent.version", ..., "agent.version", "required"),
        ("agent.nmae", "x", "agent.nmae", "not permitted"),
        ("colour", "blue", "colour", "not permitted"),
        ("steps", [], "steps", "at least 1 item"),
        ("steps.1.step_id", 3, "", "steps[1].step_id is 3, expected 2"),
        ("steps.0.step_id", 0, "steps[0].step_id", "greater than or equal to 1"),
        ("steps.1.source", "tool", "steps[1].source", "'system', 'user' or 'agent'"),
        ("steps.0.message", ..., "steps[0].message", "required"),
        ("steps.1.timestamp", "yesterday", "steps[1].timestamp", "isoformat"),
        ("steps.1.tool_calls", [], "steps[1]", "source 'user' has no tool_calls"),
        ("steps.0.metrics", {}, "steps[0]", "source 'system' has no metrics"),
        ("steps.0.model_name", "m", "steps[0]", "no model_name"),
        ("steps.0.reasoning_effort", 1, "steps[0]", "no reasoning_effort"),
        ("steps.0.reasoning_content", "m", "steps[0]", "no reasoning_content"),
        ("steps.3.metrics", {}, "steps[3]", "asked no model has no metrics"),
        ("steps.3.llm_call_count", -1, "steps[3].llm_call_count", "greater than"),
        ("steps.2.tool_calls.0.arguments", "ls", "steps[2].tool_calls[0]", "dict"),
        ("steps.2.tool_calls.0.tool_call_id", "c2", "steps[2]", "answers 'c1'"),
        ("steps.2.tool_calls", ..., "steps[2]", "answers 'c1'"),
        ("steps.2.metrics.cost_usd", float("nan"), "steps[2].metrics", "finite"),
        ("steps.1.message.0.text", ..., "steps[1].message", "has 'text'"),
        ("steps.1.message.0.type", "image", "steps[1].message", "has 'source'"),
        ("steps.1.message.1.source.media_type", "image/bmp", "steps[1]", "image/png"),
        (
            "steps.2.observation.results.0.subagent_trajectory_ref.0",
            {"session_id": "run-1"},
            "steps[2].observation.results[0].subagent_trajectory_ref[0]",
            "needs a trajectory_id or a trajectory_path",
        ),
        (
            "subagent_trajectories.0.trajectory_id",
            ...,
            "",
            "subagent_trajectories[0].trajectory_id is missing",
        ),
        (
            "subagent_trajectories",
            [EVERYTHING["subagent_trajectories"][0]] * 2,
            "",
            "'sub' is used twice",
        ),
        ("final_metrics.total_steps", -1, "final_metrics.total_steps", "greater"),
    ],
)
def test_what_breaks_a_rule_is_refused_with_its_place(
    path: str, value: object, place: str, words: str
) -> None:
    with pytest.raises(TrajectoryError) as caught:
        read_trajectory(_changed(path, value))
    lines = str(caught.value).splitlines()
    assert any(
        line.startswith(place) and words.lower() in line.lower() for line in lines
    ), lines


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(TrajectoryError) as caught:
        read_trajectory({"agent": {"name": "a"}, "steps": [{"step_id": 1}]})
    assert sorted(
        line.partition(":")[0] for line in str(caught.value).splitlines()
    ) == [
        "agent.version",
        "steps[0].message",
        "steps[0].source",
    ]
    assert isinstance(caught.value, HarborError)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\ufeff{}", '{"a": NaN}'])
def test_what_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(TrajectoryError):
        read_trajectory(text)


def test_a_document_nested_too_deep_is_refused() -> None:
    deep = '{"subagent_trajectories":[' * 3000
    with pytest.raises(TrajectoryError):
        read_trajectory(deep)


def _one_turn(
    message: str, used: Metrics | None = None, final: FinalMetrics | None = None
) -> Trajectory:
    return Trajectory(
        session_id="s",
        agent=AgentInfo(name="a", version="1"),
        steps=[
            Step(step_id=1, source="user", message=message),
            Step(step_id=2, source="agent", message="ok", metrics=used),
        ],
        final_metrics=final,
    )


class TestTotals:
    def test_steps_calls_and_usage_are_added_up(self) -> None:
        assert totals(read_trajectory(EVERYTHING)) == Totals(
            steps=4,
            agent_steps=2,
            tool_calls=1,
            input_tokens=107,
            cached_tokens=80,
            output_tokens=10,
            cost_usd=0.75,
        )

    def test_nothing_said_is_unknown_and_not_zero(self) -> None:
        found = totals(_one_turn("x"))
        assert (found.input_tokens, found.output_tokens) == (None, None)
        assert (found.cached_tokens, found.cost_usd) == (None, None)
        assert found.steps == 2

    def test_final_metrics_win_field_by_field(self) -> None:
        trajectory = _one_turn(
            "x",
            Metrics(prompt_tokens=5, completion_tokens=6, cost_usd=1.0),
            FinalMetrics(total_prompt_tokens=50, total_cost_usd=0.0),
        )
        found = totals(trajectory)
        assert (found.input_tokens, found.output_tokens) == (50, 6)
        assert found.cost_usd == 0.0

    def test_copied_context_was_paid_for_before(self) -> None:
        copied = Step(
            step_id=1,
            source="agent",
            message="old",
            metrics=Metrics(prompt_tokens=1000),
            is_copied_context=True,
        )
        new = Step(
            step_id=2, source="agent", message="new", metrics=Metrics(prompt_tokens=3)
        )
        found = totals(
            Trajectory(agent=AgentInfo(name="a", version="1"), steps=[copied, new])
        )
        assert (found.steps, found.input_tokens) == (1, 3)

    def test_a_stated_cost_wins_over_the_steps(self) -> None:
        steps = _one_turn("x", Metrics(prompt_tokens=5, cost_usd=1.0)).steps
        assert final_metrics(steps).total_cost_usd == 1.0
        assert final_metrics(steps, cost_usd=0.0).total_cost_usd == 0.0
        assert final_metrics(steps).total_steps == 2
        assert final_metrics(steps).total_completion_tokens is None


class TestJoin:
    def test_turns_become_one_session(self) -> None:
        first = _one_turn("one", Metrics(prompt_tokens=5))
        second = _one_turn(
            "two",
            Metrics(prompt_tokens=7, completion_tokens=1),
            FinalMetrics(total_cost_usd=0.5),
        )
        joined = join_trajectories([first, second])
        assert [step.message for step in joined.steps] == ["one", "ok", "two", "ok"]
        assert [step.step_id for step in joined.steps] == [1, 2, 3, 4]
        assert read_trajectory(joined.to_text()) == joined
        assert joined.final_metrics == FinalMetrics(
            total_prompt_tokens=12,
            total_completion_tokens=1,
            total_cost_usd=0.5,
            total_steps=4,
        )
        assert first.steps[0].step_id == 1

    def test_trajectories_inside_are_kept_once(self) -> None:
        whole = read_trajectory(EVERYTHING)
        joined = join_trajectories([whole, whole])
        assert [inner.trajectory_id for inner in joined.subagent_trajectories] == [
            "sub"
        ]
        assert read_trajectory(joined.to_text()) == joined

    def test_no_turn_is_a_mistake(self) -> None:
        with pytest.raises(ValueError, match="no turn"):
            join_trajectories([])
