"""Record files: what is in them, and that nothing is lost (design 5.5)."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from episode_samples import make_result, make_turn

from pytest_harbor.episodes.result import FailedAttempt
from pytest_harbor.results import records
from pytest_harbor.results.records import Origin, Records
from pytest_harbor.verdicts import Verdict

ORIGIN = Origin("datasets/t/task.toml::t[oracle]", min_reward=1.0)
PASSED = Verdict("passed", "reward 1.00 >= 1.00")


def rows(folder: Path, name: str) -> list[dict[str, object]]:
    return list(records.read(folder / name))


def test_a_graded_episode_has_the_fields_of_the_format(tmp_path: Path) -> None:
    turn = make_turn(reward=1.0, durations={"agent": 1.5}, agent_timed_out=True)
    result = make_result(turns=(turn,), logs=tmp_path)
    Records(tmp_path).finished(result, PASSED, origin=ORIGIN)
    (row,) = rows(tmp_path, records.ROLLOUTS)
    expected = (
        "reward verifier_rewards verifier_mode turns stopped_after_turn mask_sample "
        "failure_kind failure_reason task_id digest agent model attempt node_id "
        "started_at durations versions"
    )
    assert set(expected.split()) <= set(row)
    assert row["turns"][0]["timed_out"] == {"agent": True, "verifier": False}
    assert row["turns"][0]["durations"] == {"agent": 1.5}
    assert rows(tmp_path, records.FAILURES) == []
    whole = json.loads((tmp_path / records.EPISODE).read_text())
    assert (whole["status"], whole["outcome"]) == ("graded", "passed")


def test_failed_tries_and_the_end_are_told_apart(tmp_path: Path) -> None:
    lost = FailedAttempt(1, "harbor:sandbox_lost", "x" * 5000, False, 1.0, 2.0)
    graded = make_result(failed_attempts=(lost,))
    outage = make_result(status="outage", reward=None, failed_attempts=(lost, lost))
    writer = Records(tmp_path)
    writer.finished(graded, PASSED, origin=ORIGIN)
    writer.finished(outage, Verdict("error", "gone"), origin=ORIGIN)
    failures = rows(tmp_path, records.FAILURES)
    assert [row["final"] for row in failures] == [False, False, True]
    assert {len(str(row["failure_reason"])) for row in failures} == {2000}
    assert len(rows(tmp_path, records.ROLLOUTS)) == 1


def test_an_episode_refused_before_any_try_has_a_failure_row(tmp_path: Path) -> None:
    refused = make_result(
        status="refused",
        reward=None,
        failure_kind="harbor:refused",
        failure_reason="no",
    )
    Records(tmp_path).finished(refused, Verdict("error", "no"), origin=ORIGIN)
    (row,) = rows(tmp_path, records.FAILURES)
    assert (row["terminal"], row["final"], row["outcome"]) == (True, True, "error")


def test_a_masked_episode_has_a_row_of_its_own(tmp_path: Path) -> None:
    masked = make_result(status="masked", reward=None)
    Records(tmp_path).finished(masked, Verdict("error", "masked"), origin=ORIGIN)
    (row,) = rows(tmp_path, records.ROLLOUTS)
    assert (row["mask_sample"], row["reward"], row["outcome"]) == (True, None, "error")
    assert rows(tmp_path, records.FAILURES) == []


def test_anything_becomes_json(tmp_path: Path) -> None:
    value = {
        "nan": math.nan,
        "inf": -math.inf,
        "path": tmp_path,
        1: ("a", frozenset({2})),
        "surrogate": "\udc80\x00",
        "true": True,
    }
    text = json.dumps(records.plain(value), allow_nan=False)
    assert json.loads(text) == {
        "nan": "nan",
        "inf": "-inf",
        "path": str(tmp_path),
        "1": ["a", [2]],
        "surrogate": "\udc80\x00",
        "true": True,
    }


def test_odd_text_is_one_line_and_readable(tmp_path: Path) -> None:
    turn = make_turn(verifier_output_tail="a\nb\u2028c\x85d\udc80")
    result = make_result(turns=(turn,), logs=tmp_path)
    Records(tmp_path).finished(result, PASSED, origin=ORIGIN)
    (row,) = rows(tmp_path, records.ROLLOUTS)
    assert row["turns"][0]["verifier_output_tail"] == "a\nb\u2028c\x85d\udc80"
    assert (tmp_path / records.EPISODE).is_file()


def test_a_line_cut_off_does_not_hide_the_others(tmp_path: Path) -> None:
    file = tmp_path / records.ROLLOUTS
    file.write_text('{"a": 1}\n[]\n{"b": 2}\n{"c":')
    assert rows(tmp_path, records.ROLLOUTS) == [{"a": 1}, {"b": 2}]
    assert rows(tmp_path, "nothing.jsonl") == []


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from pytest_harbor.results.records import Origin, Records\n"
        "writer = Records(Path(sys.argv[1]))\n"
        "for n in range(50):\n"
        "    writer.broken(origin=Origin(f'{sys.argv[2]}-{n}', 1.0), task_id='t',"
        " reason='x' * 2000)\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(number)])
        for number in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    lines = (tmp_path / records.FAILURES).read_text().splitlines()
    assert len({json.loads(line)["node_id"] for line in lines}) == len(lines) == 150


def test_started_is_written_before_the_end(
    tmp_path: Path, record: Callable[..., None]
) -> None:
    record("a")
    (row,) = rows(tmp_path, records.STARTED)
    assert row["node_id"] == "a"
    assert row["sandbox"] == "local"
