"""Inner tests of a verifier."""

from __future__ import annotations

import json

import pytest

from pytest_harbor.verification.ctrf import MAX_TESTS, InnerTest, read_ctrf


def write(folder, data):
    text = data if isinstance(data, str) else json.dumps(data)
    (folder / "ctrf.json").write_text(text)


def test_names_status_and_message(tmp_path):
    tests = [
        {"name": "test_a", "status": "passed", "duration": 3},
        {"name": "test_b", "status": "failed", "message": "x != y", "trace": "long"},
        {"name": "test_c", "status": "failed", "trace": "assert 0"},
        {"name": "test_d"},
        {"status": "failed"},
        "nonsense",
    ]
    write(tmp_path, {"results": {"tool": {"name": "pytest"}, "tests": tests}})
    assert read_ctrf(tmp_path) == (
        InnerTest("test_a", "passed"),
        InnerTest("test_b", "failed", "x != y"),
        InnerTest("test_c", "failed", "assert 0"),
        InnerTest("test_d", "other"),
    )


@pytest.mark.parametrize(
    "data",
    [
        "",
        "{",
        "[]",
        "null",
        {},
        {"results": []},
        {"results": {"tests": "x"}},
        "[" * 99999,
    ],
)
def test_a_broken_report_is_left_alone(tmp_path, data):
    write(tmp_path, data)
    assert read_ctrf(tmp_path) == ()


def test_a_huge_report_is_cut(tmp_path):
    tests = [{"name": str(n), "status": "passed"} for n in range(MAX_TESTS + 5)]
    write(tmp_path, {"results": {"tests": tests}})
    assert len(read_ctrf(tmp_path)) == MAX_TESTS


def test_no_report_and_a_link_to_one(tmp_path):
    assert read_ctrf(tmp_path) == ()
    outside = tmp_path / "outside.json"
    outside.write_text('{"results": {"tests": [{"name": "a", "status": "passed"}]}}')
    folder = tmp_path / "verifier"
    folder.mkdir()
    (folder / "ctrf.json").symlink_to(outside)
    assert read_ctrf(folder) == ()
