"""Order: valid graphs always load, reversed references never do (task-steps spec 1.4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.keys import file_keys
from pytest_harbor.tasks.steps.load import load_step_task
from pytest_harbor.tasks.steps.model import STEP_TYPES
from pytest_harbor.tasks.steps.order import ancestors, dependencies
from pytest_harbor.tasks.steps.step import Step

NOTES = {"note": Step}


@st.composite
def graphs(draw: st.DrawFn, least: int = 1) -> list[dict[str, Any]]:
    """Steps without fields, each of which waits for some earlier ones, in any form."""
    steps: list[dict[str, Any]] = []
    for index in range(draw(st.integers(least, 12))):
        step: dict[str, Any] = {"id": f"s{index}", "type": "note"}
        form = draw(st.sampled_from(["absent", "null", "list"]))
        if form == "null":
            step["depends_on"] = None
        elif form == "list":
            earlier = st.integers(0, max(index - 1, 0))
            step["depends_on"] = [
                f"s{other}" if draw(st.booleans()) else {"task_step_id": f"s{other}"}
                for other in draw(st.lists(earlier, max_size=4 if index else 0))
            ]
        steps.append(step)
    return steps


def parents(step: dict[str, Any], index: int) -> list[str]:
    """What the step waits for, by the letter of the specification."""
    if step.get("depends_on") is None:
        return [f"s{other}" for other in range(index)]
    names = [d if isinstance(d, str) else d["task_step_id"] for d in step["depends_on"]]
    return list(dict.fromkeys(names))


def load(desk: Path, steps: Any) -> Any:
    file = desk / "tasks/t.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(steps))
    return load_step_task(file, step_types=NOTES)


# The files are small, and slow machines are no failures.
QUICK = settings(max_examples=40, deadline=None)


@QUICK
@given(graphs())
def test_every_valid_graph_loads_with_its_order(
    desk: Path, steps: list[dict[str, Any]]
) -> None:
    task = load(desk, steps)

    assert task.warnings == ()
    assert [list(step.depends_on) for step in task.steps] == [
        parents(step, index) for index, step in enumerate(steps)
    ]
    assert task.ancestors == _closure(steps)


def _closure(steps: list[dict[str, Any]]) -> dict[str, set[str]]:
    above: dict[str, set[str]] = {}
    for index, step in enumerate(steps):
        names = parents(step, index)
        above[step["id"]] = set(names).union(*(above[name] for name in names))
    return above


@QUICK
@given(graphs(least=2), st.data())
def test_a_reference_that_is_turned_round_never_loads(
    desk: Path, steps: list[dict[str, Any]], data: st.DataObject
) -> None:
    early = data.draw(st.integers(0, len(steps) - 2))
    late = data.draw(st.integers(early, len(steps) - 1))
    steps[early]["depends_on"] = [f"s{late}"]
    with pytest.raises(TaskLoadError) as caught:
        load(desk, steps)
    (problem,) = caught.value.problems
    where = f"tasks/t.json: step {early + 1} 's{early}': depends_on[0]"
    assert problem.where == where
    assert problem.rule == "13.2"


@QUICK
@given(graphs(), st.data())
def test_an_order_that_puts_a_step_before_its_parent_never_loads(
    desk: Path, steps: list[dict[str, Any]], data: st.DataObject
) -> None:
    assume(any(step.get("depends_on") for step in steps))
    written = [
        {**step, "depends_on": parents(step, index)} for index, step in enumerate(steps)
    ]
    shuffled = data.draw(st.permutations(written))
    seen: set[str] = set()
    is_ordered = True
    for step in shuffled:
        is_ordered = is_ordered and seen.issuperset(step["depends_on"])
        seen.add(step["id"])
    if is_ordered:
        load(desk, shuffled)
        return
    with pytest.raises(TaskLoadError, match="comes later; move it before"):
        load(desk, shuffled)


def test_a_step_without_an_id_is_nobodys_parent() -> None:
    found = dependencies(None, 2, {"b": 1}, [None, "b", "c"])
    assert found.ids == ("b",)


def test_ancestors_of_an_unknown_parent_are_the_parent() -> None:
    steps = [("a", ["zzz"]), (None, []), ("b", ["a"]), ("a", ["b"]), ("c", ["a"])]
    assert ancestors(steps) == [
        {"zzz"},
        set(),
        {"a", "zzz"},
        {"b", "a", "zzz"},
        {"a", "zzz"},
    ]


WORDS = ["s0", "s1", "library", "clerk", "reply", "rules", "x", ""]
INNER_KEYS = [
    "id",
    "kind",
    "text",
    "file",
    "uri",
    "name",
    "min",
    "max",
    "value",
    "criterion",
    "weight",
    "outcomes",
    "score",
    "url",
    "task_step_id",
]
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(st.sampled_from(INNER_KEYS), below, max_size=3)
    ),
    max_leaves=6,
)


@st.composite
def strange_steps(draw: st.DrawFn) -> Any:
    """A step of a known type whose fields are there and hold anything."""
    kind = draw(st.sampled_from(sorted(STEP_TYPES)))
    fields = sorted(file_keys(STEP_TYPES[kind]) - {"type"})
    step = draw(st.dictionaries(st.sampled_from(fields), ANYTHING, max_size=6))
    return draw(st.just({"id": "s0", "type": kind, **step}) | ANYTHING)


@settings(max_examples=50, deadline=None)
@given(st.lists(strange_steps(), max_size=3))
def test_whatever_a_file_holds_it_loads_or_says_why(desk: Path, steps: Any) -> None:
    problems = None
    try:
        task = load(desk, steps)
    except TaskLoadError as error:
        problems = error.problems
    if problems is None:
        assert len(task.steps) == len(steps)
    else:
        assert all(problem.rule for problem in problems)
        assert all(str(problem).startswith("tasks/t.json") for problem in problems)
