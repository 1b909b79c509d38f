"""examples/steps: both bundles on the local sandbox, with no Docker and no model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "steps"


def overlap(one, other) -> bool:
    """Whether two steps ran at the same time."""
    return (
        one["started_at"] < other["started_at"] + other["seconds"]
        and other["started_at"] < one["started_at"] + one["seconds"]
    )


def test_the_mail_bundle(run_pytest):
    run = run_pytest(EXAMPLES / "mail/tasks/reply.json")
    assert run.code == 0, run.output
    (record,) = run.records
    assert record["verifier_rewards"] == {"manners": 1.0}
    steps = {step["id"]: step for step in record["steps"]}
    # What the format promises: the pairs that depend on the same step run together.
    assert overlap(steps["inbox"], steps["assistant"])
    assert overlap(steps["manners"], steps["notes"])
    context = json.loads((Path(record["logs"]) / "context.json").read_text())
    (reply,) = context["prompt_responses"]
    assert "14 June" in reply["response"]
    collected = context["metadata"]["collected_artifacts"]["notes"]["artifacts"]
    note = Path(collected["notes.md"].removeprefix("file://"))
    assert note.read_text() == "- 14 June, Porto: bring the projector\n"
    # A step has the task's name, too: the item's own row is the one with properties.
    (item,) = [
        case
        for case in run.report.iter("testcase")
        if case.get("classname").endswith(".tasks.reply.json")
    ]
    scores = {p.get("name"): p.get("value") for p in item.iter("property")}
    assert scores["harbor.score.manners"] == "1.0"
    assert scores["harbor.score.manners.date"] == "1"


def test_a_prompt_the_assistant_does_not_know(run_pytest):
    run = run_pytest(
        EXAMPLES / "mail/tasks/reply.json",
        "--harbor-override",
        "reply.prompt=What is for lunch?",
    )
    assert run.code == 1
    assert "step 'reply' (prompt_agent) failed" in run.output
    assert "the script has no answer to: What is for lunch?" in run.output
    assert "Traceback" not in run.output


def test_the_chart_is_handed_on(run_pytest):
    run = run_pytest(EXAMPLES / "chart")
    assert run.code == 0, run.output
    (record,) = run.records
    steps = {step["id"]: step for step in record["steps"]}
    assert overlap(steps["analyst-up"], steps["presenter-up"])
    assert record["reward"] == 1


def test_the_same_as_a_python_test(run_pytest):
    run = run_pytest(EXAMPLES / "mail/test_reply.py")
    assert run.code == 0, run.output
    assert list(run.cases) == ["test_reply"]
