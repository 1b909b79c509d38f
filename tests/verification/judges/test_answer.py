"""What a judge answers, read: the form of spec (task steps) 8.3, and nothing else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_harbor.tasks.steps.criteria import Criterion
from pytest_harbor.verification.judges.answer import (
    MAX_ANSWER_CHARACTERS,
    answer_schema,
    correction,
    read_answer,
)

FOUND = Criterion(id="found", criterion="It says where the atlas stands.")
KIND = Criterion(id="kind", criterion="It is friendly.")
ONE = [FOUND]
TWO = [FOUND, KIND]

GRADES = {
    "results": [
        {"id": "c1", "score": 1, "justification": "shelf 4"},
        {"id": "c2", "score": 0, "justification": "curt"},
    ]
}
TEXT = json.dumps(GRADES)


def row(alias="c1", score: object = 1, **more):
    return {"id": alias, "score": score, "justification": "", **more}


def read_one(score, output_format="rubric_binary", criterion=FOUND):
    text = json.dumps({"results": [row(score=score)]})
    return read_answer(text, [criterion], output_format)


@pytest.mark.parametrize(
    "answer",
    [
        TEXT,
        GRADES,
        f"\n  {TEXT}\n",
        f"```json\n{TEXT}\n```",
        f"```\n{TEXT}\n```\n",
        f"```JSON  \n{json.dumps(GRADES, indent=2)}\n```",
        f"Here are the grades:\n\n{TEXT}\n\nI hope this helps {{really}}.",
        f"Grades {{sic}}:\n```json\n{TEXT}\n```\nDone.",
        json.dumps({"results": GRADES["results"][::-1]}),
        json.dumps({"summary": "fine", **GRADES}),
    ],
)
def test_an_answer_is_read(answer):
    read = read_answer(answer, TWO, "rubric_binary")
    assert read.problems == ()
    assert read.is_valid
    assert {name: grade.score for name, grade in read.grades.items()} == {
        "found": 1.0,
        "kind": 0.0,
    }
    assert read.grades["kind"].justification == "curt"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("", "it is empty"),
        ("   \n", "it is empty"),
        ("All good, full marks!", "it is not JSON"),
        (TEXT[:-5], "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ('{"a":' * 100_000, "it is not JSON"),
        ("x" * (MAX_ANSWER_CHARACTERS + 1), "longer than"),
        ("[]", "it is JSON, but no object"),
        ("1", "it is JSON, but no object"),
        ("null", "it is JSON, but no object"),
        ("{}", "there is no list 'results'"),
        ('{"results": {}}', "there is no list 'results'"),
        ('{"results": null}', "there is no list 'results'"),
        ({"results": "c1: 1"}, "there is no list 'results'"),
        (f"The reply says {TEXT} but I say {TEXT}", "more than one object"),
    ],
)
def test_an_answer_that_is_none(answer, problem):
    read = read_answer(answer, TWO, "rubric_binary")
    assert problem in read.problems[0]
    assert len(read.problems) == 1
    assert (read.is_valid, read.grades) == (False, {})


@pytest.mark.parametrize(
    ("rows", "problems"),
    [
        ([], ["c1 is not graded", "c2 is not graded"]),
        ([row("c1")], ["c2 is not graded"]),
        ([row("c1"), row("c1"), row("c2")], ["c1 is graded twice"]),
        (
            [row("c1"), row("c2"), row("c3")],
            ['there is no criterion "c3", only c1 to c2'],
        ),
        (
            [row("found"), row("c2")],
            ['there is no criterion "found", only c1 to c2', "c1 is not graded"],
        ),
        (
            [row(1), row(["c1"]), row("c1"), row("c2")],
            [
                "there is no criterion 1, only c1 to c2",
                'there is no criterion ["c1"], only c1 to c2',
            ],
        ),
        (["c1", row("c1"), row("c2")], ["entry 1 is no object"]),
        ([{"score": 1}, row("c1"), row("c2")], ["entry 1 has no id"]),
        ([row("c1", "high"), row("c2")], ['c1: score "high" is no number']),
        (
            [row("x" * 99), row("c1"), row("c2")],
            [f'there is no criterion "{"x" * 39}..., only c1 to c2'],
        ),
    ],
)
def test_each_criterion_is_graded_once(rows, problems):
    read = read_answer({"results": rows}, TWO, "rubric_binary")
    assert list(read.problems) == problems
    assert read.grades == {}


@pytest.mark.parametrize("score", [0, 1, 0.0, 1.0, True, False])
def test_binary_scores(score):
    read = read_one(score)
    assert read.is_valid
    assert read.grades["found"].score == float(score)


@pytest.mark.parametrize(
    "score",
    ["1", "true", None, [1], {"value": 1}, 0.5, 2, -1, float("nan"), float("inf")],
)
def test_what_is_no_binary_score(score):
    read = read_one(score)
    assert not read.is_valid
    assert read.problems[0].startswith("c1")


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400, "1" + "0" * 5000, "NaN"])
def test_numbers_beyond_all_bounds(number):
    text = f'{{"results": [{{"id": "c1", "score": {number}}}]}}'
    for output_format in ("rubric_binary", "rubric_partial"):
        assert not read_answer(text, ONE, output_format).is_valid
    # A number elsewhere would make the stored context no JSON.
    text = f'{{"results": [{{"id": "c1", "score": 1, "sure": {number}}}]}}'
    assert "not finite" in read_answer(text, ONE, "rubric_binary").problems[0]


@pytest.mark.parametrize(
    ("outcomes", "score", "problem"),
    [
        (None, 0.3, ""),
        (None, True, ""),
        (None, 1.1, "is not from 0 to 1"),
        (None, -0.1, "is not from 0 to 1"),
        ([{"score": 0}, {"score": 1}], 0.4, ""),
        ([{"score": 0}, {"score": 1}], 7, "is not from 0 to 1"),
        ({"min": 0, "max": 10}, 10, ""),
        ({"min": 0, "max": 10}, 11, "is not from 0 to 10"),
        ({"min": 1, "max": 5}, 0.5, "is not from 1 to 5"),
    ],
)
def test_partial_scores_stay_in_their_range(outcomes, score, problem):
    criterion = Criterion.model_validate(
        {"id": "a", "criterion": "b", "outcomes": outcomes}
    )
    read = read_one(score, "rubric_partial", criterion)
    assert read.is_valid is (problem == "")
    assert problem in "".join(read.problems)


def test_a_missing_justification_is_empty_and_further_keys_are_kept():
    rows = [{"id": "c1", "score": 1, "evidence": ["line 3"], "sure": 3}]
    grade = read_answer({"results": rows}, ONE, "rubric_binary").grades["found"]
    assert grade.justification == ""
    assert grade.keys == {"score": 1, "evidence": ["line 3"], "sure": 3}


def test_schema_is_strict_and_names_the_aliases_only():
    schema = answer_schema(TWO, "rubric_binary")
    row = schema["properties"]["results"]["items"]
    assert row["properties"]["id"]["enum"] == ["c1", "c2"]
    assert row["properties"]["score"] == {"type": "integer", "enum": [0, 1]}
    assert list(row["properties"]) == ["id", "justification", "score"]
    # Endpoints that are strict want every key required and no others.
    for part in (schema, row):
        assert part["required"] == list(part["properties"])
        assert part["additionalProperties"] is False
    partial = answer_schema(TWO, "rubric_partial")
    score = partial["properties"]["results"]["items"]["properties"]["score"]
    assert score == {"type": "number"}


def test_correction_names_the_problems_up_to_a_number():
    text = correction([f"problem {number}" for number in range(13)])
    assert "- problem 0\n- problem 1\n" in text
    assert "- problem 9\n- and 3 more\nAnswer again" in text
    assert "problem 10" not in text
    assert "more" not in correction(["c1 is not graded"]).split("Answer")[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["c1", "c2", "c3"]) | JSON, "score": JSON}
    )
    | JSON,
    max_size=4,
)


@settings(max_examples=60, deadline=None)  # slow machines are no failures
@given(JSON | st.fixed_dictionaries({"results": ROWS}), st.text(), st.text())
def test_whatever_comes_is_grades_for_all_or_problems(data, before, after):
    text = f"{before}{json.dumps(data)}{after}"
    for output_format in ("rubric_binary", "rubric_partial"):
        read = read_answer(text, TWO, output_format)
        if read.is_valid:
            assert set(read.grades) == {"found", "kind"}
            for grade in read.grades.values():
                assert 0 <= grade.score <= 1
                json.dumps(grade.keys, allow_nan=False)
        else:
            assert read.grades == {}
