"""Rows, formats and aggregation, with the worked examples of spec (task steps) 8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_harbor.tasks.steps.criteria import Criterion
from pytest_harbor.verification.judges.answer import Grade
from pytest_harbor.verification.judges.criteria import aliases
from pytest_harbor.verification.judges.scores import (
    aggregate,
    graded_rows,
    prompt_error_entry,
)


def criterion(**keys):
    return Criterion.model_validate({"id": "a", "criterion": "b", **keys})


def graded(score, output_format, **keys):
    grades = {"a": Grade(score, "why", {"score": score, "justification": "why"})}
    (row,) = graded_rows([criterion(**keys)], grades, output_format)
    return row


def rows(*scores_and_weights):
    return [
        {"score": score, "result": score == 1, "weight": weight}
        for score, weight in scores_and_weights
    ]


class TestAggregation:
    @pytest.mark.parametrize(
        ("found", "kind", "invents", "average", "all_pass"),
        [(1, 0, 1, 2 / 3, 0), (1, 0, 0, 1 / 3, 0), (1, 1, 1, 1.0, 1)],
    )
    def test_the_worked_example(self, found, kind, invents, average, all_pass):
        graded = rows((found, 2), (kind, 1), (invents, -1))
        assert aggregate(graded, "weighted_average") == pytest.approx(average)
        assert aggregate(graded, "all_pass") == all_pass

    @pytest.mark.parametrize(
        ("graded", "all_pass", "any_pass", "average"),
        [
            ([], 0, 0, 0),
            (rows((1, 1)), 1, 1, 1),
            (rows((0, 1)), 0, 0, 0),
            (rows((1, 1), (0, 1)), 0, 1, 0.5),
            (rows((0.25, 1), (1, 1)), 0, 1, 0.625),
            (rows((0, -1)), 0, 0, 0),  # no positive weight
            (rows((1, -1)), 1, 1, 0),
            (rows((1, 0)), 1, 1, 0),
            (rows((0, 1), (0, -5)), 0, 0, 0),  # not below 0
            (rows((1, 1), (0, 0)), 0, 1, 1),
            (rows((1, 1), (0.5, -1)), 0, 1, 0.5),
            ([{"result": True}, {"result": False}], 0, 1, 0.5),  # an author's check
            ([{"result": True, "score": 0.5}], 1, 1, 0.5),
        ],
    )
    def test_aggregators(self, graded, all_pass, any_pass, average):
        assert aggregate(graded, "all_pass") == all_pass
        assert aggregate(graded, "any_pass") == any_pass
        assert aggregate(graded, "weighted_average") == pytest.approx(average)
        assert type(aggregate(graded, "all_pass")) is float

    @given(
        st.lists(
            st.tuples(
                st.floats(0, 1),
                st.floats(-100, 100).filter(lambda weight: abs(weight) > 1e-3)
                | st.just(0.0),
            )
        )
    )
    def test_a_weighted_average_is_a_share(self, pairs):
        assert 0 <= aggregate(rows(*pairs), "weighted_average") <= 1

    @given(st.lists(st.tuples(st.just(1.0), st.integers(-9, 9)), min_size=1))
    def test_everything_as_wished_is_one(self, pairs):
        wished = 1.0 if any(weight > 0 for _, weight in pairs) else 0.0
        assert aggregate(rows(*pairs), "weighted_average") == wished


class TestRows:
    def test_binary_keeps_the_keys_of_both(self):
        written = {"id": "found", "criterion": "It says where.", "weight": 2, "hint": 4}
        judge = {"score": True, "justification": "s4", "hint": 5, "evidence": "line 1"}
        (row,) = graded_rows(
            [Criterion.model_validate(written)],
            {"found": Grade(1.0, "s4", judge)},
            "rubric_binary",
        )
        assert row == {
            "id": "found",
            "criterion": "It says where.",
            "weight": 2,
            "hint": 4,
            "evidence": "line 1",
            "score": 1,
            "result": True,
            "justification": "s4",
        }

    def test_a_judge_cannot_set_what_is_not_its_to_decide(self):
        judge = {"score": 0, "result": True, "weight": -1, "raw_score": 1, "id": "x"}
        (row,) = graded_rows(
            [criterion()], {"a": Grade(0.0, "", judge)}, "rubric_binary"
        )
        assert (row["score"], row["result"], row["weight"]) == (0, False, 1.0)
        assert row["id"] == "a"
        assert "raw_score" not in row
        assert aggregate([row], "weighted_average") == 0

    def test_order_is_the_task_s(self):
        written = [criterion(id="b"), criterion(id="a")]
        grades = {"a": Grade(1.0), "b": Grade(0.0)}
        graded = graded_rows(written, grades, "rubric_binary")
        assert [row["id"] for row in graded] == ["b", "a"]

    @pytest.mark.parametrize(
        ("keys", "grade", "score", "raw", "result"),
        [
            ({}, 0.5, 0.5, None, True),
            ({}, 0.49, 0.49, None, False),
            ({"pass_threshold": 0.8}, 0.7, 0.7, None, False),
            ({"pass_threshold": 0}, 0, 0, None, True),
            ({"outcomes": {"min": 1, "max": 5}}, 3, 0.5, 3, True),
            ({"outcomes": {"min": 1, "max": 5}}, 1, 0, 1, False),
            ({"outcomes": {"min": -1, "max": 1}}, 0, 0.5, 0, True),
            # 0.1 + 0.2 of floats must not miss its threshold
            (
                {"outcomes": {"min": 0, "max": 10}, "pass_threshold": 0.3},
                3,
                0.3,
                3,
                True,
            ),
            (
                {"outcomes": [{"score": 0}, {"score": 0.4}, {"score": 1}]},
                0.4,
                0.4,
                0.4,
                False,
            ),
            (
                {"outcomes": [{"score": 1}, {"score": 0.4}, {"score": 0}]},
                0.6,
                0.4,
                0.6,
                False,
            ),
            (
                {"outcomes": [{"score": 0}, {"score": 0.4}, {"score": 1}]},
                0.8,
                1,
                0.8,
                True,
            ),
            (
                {"outcomes": [{"score": 1}, {"score": 0}]},
                0.5,
                0,
                0.5,
                False,
            ),  # a tie: the lower one
            (
                {"outcomes": [{"label": "half", "score": 0.5}, {"score": 1}]},
                0.6,
                0.5,
                0.6,
                True,
            ),
        ],
    )
    def test_partial(self, keys, grade, score, raw, result):
        row = graded(grade, "rubric_partial", **keys)
        assert row["score"] == pytest.approx(score)
        assert row["result"] is result
        assert row.get("raw_score") == raw

    def test_threshold_is_met_within_rounding(self):
        row = graded(
            2.8,
            "rubric_partial",
            outcomes={"min": 2, "max": 3},
            pass_threshold=0.8,
        )
        assert row["score"] < 0.8
        assert row["result"] is True


def test_prompt_error_is_one_row_and_zero():
    assert prompt_error_entry("agent_error: no model", "rubric_partial") == {
        "format": "rubric_partial",
        "results": [
            {
                "id": "prompt_error",
                "score": 0,
                "result": False,
                "message": "agent_error: no model",
            }
        ],
        "score": 0,
    }


def test_aliases_count_from_one():
    written = [criterion(id="b"), criterion(id="a")]
    assert {alias: line.id for alias, line in aliases(written).items()} == {
        "c1": "b",
        "c2": "a",
    }
