"""Placeholders and overrides: what a run changes in a file (task-steps spec 1.5)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_harbor.errors import SettingsError, TaskLoadError
from pytest_harbor.tasks.steps.load import with_changes
from pytest_harbor.tasks.steps.overrides import filled, overridden
from step_bundles import agent_up, ask, env_up, grade, load_steps

QUICK = settings(max_examples=60, deadline=None)

texts = st.text(alphabet="ab<>&", max_size=8)
keys = st.text(alphabet="abc", min_size=1, max_size=3)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(texts, below, max_size=3)
    ),
    max_leaves=12,
)
seeds = st.dictionaries(keys, st.text(alphabet="xyz<>", max_size=5) | st.integers())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("<who> and <who>", "Ann and Ann"),
        ("<n> of <whole>", "3 of <whole>"),
        ("<nobody> <who", "<nobody> <who"),
        ("<<who>>", "<Ann>"),
        (
            ["<who>", {"<who>": "<n>"}, 3, None, True],
            ["Ann", {"<who>": "3"}, 3, None, True],
        ),
        ("<nested>", "<who>"),
        ("<a.b>", "dot"),
        ("<axb>", "<axb>"),
        ("<yes> <none> <list>", "True None [1]"),
        ("<n>m> <n>", "longer 3"),
    ],
)
def test_placeholders(value: Any, expected: Any) -> None:
    seed = {
        "who": "Ann",
        "n": 3,
        "nested": "<who>",
        "a.b": "dot",
        "n>m": "longer",
        "yes": True,
        "none": None,
        "list": [1],
    }
    assert filled(value, seed) == expected


@QUICK
@given(json_values)
def test_without_a_seed_nothing_changes(value: Any) -> None:
    assert filled(value, {}) is value


@QUICK
@given(json_values, seeds)
def test_filling_leaves_the_original_and_its_shape(value: Any, seed: Any) -> None:
    before = copy.deepcopy(value)
    result = filled(value, seed)
    assert value == before
    assert _shape(result) == _shape(value)


@QUICK
@given(st.lists(texts.filter(lambda text: "<" not in text)), seeds)
def test_text_without_placeholders_stays(strings: list[str], seed: Any) -> None:
    assert filled(strings, seed) == strings


@QUICK
@given(seeds.filter(bool), st.data())
def test_each_placeholder_becomes_its_value_wherever_it_stands(
    seed: dict[str, Any], data: st.DataObject
) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(seed)), max_size=5))
    text = "-".join(f"<{name}>" for name in names)
    assert filled(text, seed) == "-".join(str(seed[name]) for name in names)


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shape(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_shape(entry) for entry in value]
    return str if isinstance(value, str) else value


# A run-wide choice, the type of step that it reaches, and the field that it beats.
RUN_WIDE = [
    ("env_sandbox", "docker", "deploy_env", "sandbox_type"),
    ("ttl_seconds", 60, "deploy_env", "ttl_seconds"),
    ("ttl_seconds", 60, "deploy_agent", "ttl_seconds"),
    ("agent_sandbox", "docker", "deploy_agent", "sandbox_type"),
    ("a2a_agent_id", "codex", "deploy_agent", "a2a_agent_id"),
    ("a2a_agent_version", 2, "deploy_agent", "a2a_agent_version"),
    ("user_model", "m", "prompt_agent", "user_model"),
    ("judge_model", "m", "rubrics_verifier", "default_model"),
    ("use_agent_judge", False, "rubrics_verifier", "use_agent_judge"),
]
TYPES = sorted({kind for _, _, kind, _ in RUN_WIDE} | {"load_artifact", "wait"})


@pytest.mark.parametrize(("name", "value", "kind", "field"), RUN_WIDE)
def test_a_run_wide_choice_beats_the_file(
    name: str, value: Any, kind: str, field: str
) -> None:
    step = {"id": "s", "type": kind, field: "file's"}
    assert overridden(step, {name: value})[field] == value
    assert overridden(step, {name: None})[field] == "file's"
    own = {name: value, "step_params": {"s": {field: "step's"}}}
    assert overridden(step, own)[field] == "step's"
    other = {name: value, "step_params": {"t": {field: "step's"}}}
    assert overridden(step, other)[field] == value


@pytest.mark.parametrize("kind", TYPES)
def test_a_run_wide_choice_reaches_only_the_steps_that_it_is_for(kind: str) -> None:
    choices = {name: value for name, value, _, _ in RUN_WIDE}
    reached = {field for _, _, other, field in RUN_WIDE if other == kind}
    step = {"id": "s", "type": kind}
    assert set(overridden(step, choices)) - set(step) == reached


def test_another_agent_is_not_held_to_the_version_of_the_first() -> None:
    step = agent_up(a2a_agent_version=1)
    changed = overridden(step, {"a2a_agent_id": "codex"})
    assert "a2a_agent_version" not in changed
    pinned = {"a2a_agent_id": "codex", "a2a_agent_version": 4}
    assert overridden(step, pinned)["a2a_agent_version"] == 4


@QUICK
@given(
    st.dictionaries(st.sampled_from(["id", "type", "x", "y"]), texts),
    st.dictionaries(st.sampled_from(["ttl_seconds", "zzz"]), st.integers() | st.none()),
    st.dictionaries(texts, st.dictionaries(st.sampled_from(["x", "z"]), texts)),
)
def test_overriding_leaves_the_original_and_what_nobody_names(
    step: dict[str, Any], choices: dict[str, Any], params: dict[str, Any]
) -> None:
    before = copy.deepcopy(step)
    changed = overridden(step, {**choices, "step_params": params})
    assert step == before
    own = params.get(step.get("id", ""), {}) if "id" in step else {}
    assert {key: changed[key] for key in step} == {
        key: own.get(key, value) for key, value in step.items()
    }


@pytest.mark.parametrize("step", [3, "up", None, []])
def test_what_is_no_step_is_left_to_the_checks(step: Any) -> None:
    assert overridden(step, {"ttl_seconds": 3}) is step


@pytest.mark.parametrize("params", [["ask"], "ask", {"s": 3}, {"s": ["x"]}])
def test_params_that_are_none(params: Any) -> None:
    with pytest.raises(SettingsError, match=r"step_params must be \{\"<step id>"):
        overridden({"id": "s", "type": "note"}, {"step_params": params})


def test_params_meet_an_id_of_another_kind() -> None:
    step = {"id": ["s"], "type": ["note"]}
    assert overridden(step, {"step_params": {"s": {"x": 1}}}) == step


STEPS = [
    env_up(ttl_seconds=60),
    agent_up(system_prompt="You are <who>."),
    ask(prompt="Find <what>."),
    grade(criteria=[{"id": "a", "criterion": "<what> is found by <who>."}]),
]


def test_a_load_with_seed_and_overrides(tmp_path: Path) -> None:
    task = load_steps(
        tmp_path,
        STEPS,
        seed={"who": "Ann", "what": "the <who>"},
        overrides={"ttl_seconds": 5, "step_params": {"ask": {"prompt": "<what>!"}}},
    )

    up, clerk, question, verifier = task.steps
    assert (up.ttl_seconds, clerk.ttl_seconds) == (5, 5)
    assert clerk.system_prompt == "You are Ann."
    assert question.prompt == "the <who>!"
    assert question.raw["prompt"] == "the <who>!"
    assert verifier.criteria[0].criterion == "the <who> is found by Ann."
    assert task.source == tuple(STEPS)
    assert dict(task.seed) == {"who": "Ann", "what": "the <who>"}


def test_a_run_changes_a_copy(tmp_path: Path) -> None:
    task = load_steps(tmp_path, STEPS, seed={"who": "Ann"})

    changed = with_changes(task, seed={"who": "Bob"}, overrides={"ttl_seconds": 9})
    again = with_changes(changed, overrides={})

    assert [step.system_prompt for step in (task.steps[1], changed.steps[1])] == [
        "You are Ann.",
        "You are Bob.",
    ]
    assert [t.steps[0].ttl_seconds for t in (task, changed, again)] == [60, 9, 60]
    assert again.steps[1].system_prompt == "You are Bob."
    assert again.file == task.file


def test_a_name_may_be_a_placeholder(tmp_path: Path) -> None:
    steps = [env_up(env_id="<env>"), agent_up(id="<id>", env_ids=["<env>"])]
    task = load_steps(tmp_path, steps, seed={"env": "library", "id": "c"})
    assert [step.id for step in task.steps] == ["up", "c"]
    assert task.steps[1].depends_on == ("up",)
    assert task.warnings == ()


def test_what_an_override_breaks_is_told_of_the_step(tmp_path: Path) -> None:
    task = load_steps(tmp_path, STEPS)
    with pytest.raises(TaskLoadError) as caught:
        with_changes(
            task, overrides={"step_params": {"ask": {"max_conversation_turns": 0}}}
        )
    assert str(caught.value) == (
        "tasks/t.json: step 3 'ask': max_conversation_turns: must be an integer of at"
        " least 1, not 0"
    )
