"""What a failed episode tells a person."""

from __future__ import annotations

from pathlib import Path

from episode_samples import make_result, make_turn

from pytest_harbor.results.failure_text import failure_text
from pytest_harbor.verdicts import StepVerdict, Verdict
from pytest_harbor.verification.ctrf import InnerTest


def test_single_step(tmp_path: Path) -> None:
    turn = make_turn(
        reward=0.0,
        verifier_exit_code=2,
        verifier_output_tail="\n".join(f"line {n}" for n in range(35)),
        inner_tests=(
            InnerTest("one", "failed", "why\nmore"),
            InnerTest("two", "passed"),
        ),
        verifier_timed_out=True,
        warnings=("Windows line ends",),
    )
    result = make_result(
        turns=(turn,),
        logs=tmp_path / "run" / "t",
        durations={"seed": 1.25, "agent": 0.01, "verify": 0.2},
        kept_sandboxes=("docker exec -it x sh",),
    )
    text = failure_text(result, Verdict("failed", "reward 0.00 < 1.00"), root=tmp_path)
    lines = text.splitlines()
    assert lines[:6] == [
        "reward 0.00 < 1.00",
        "times: seed 1.2 s, verify 0.2 s",
        "verifier: exit code 2",
        "verifier: ran out of time",
        "failed: one: why",
        "last lines of the verifier (at most 30):",
    ]
    assert lines[6:-3] == [f"  line {n}" for n in range(5, 35)]
    assert lines[-3:] == [
        "warning: Windows line ends",
        "kept: docker exec -it x sh",
        "logs: run/t",
    ]


def test_turn_table(tmp_path: Path) -> None:
    result = make_result(
        is_multi_step=True,
        declared_steps=("01-bake", "02", "03"),
        turns=(
            make_turn("01-bake", reward=0.25, durations={"agent": 61.0}),
            make_turn("02", 1, status="error", verifier_exit_code=3),
        ),
    )
    verdict = Verdict(
        "error",
        "the sandbox died",
        (
            StepVerdict("01-bake", 0, "passed", "reward 0.25", 0.25, 61.0),
            StepVerdict("02", 1, "error", "died\nmore"),
            StepVerdict("03", 2, "skipped", "not run: stopped after 02"),
        ),
    )
    assert failure_text(result, verdict, root=tmp_path).splitlines() == [
        "the sandbox died",
        "step     reward  seconds  outcome",
        "01-bake    0.25     61.0  passed",
        "02            -      0.0  error: died",
        "03            -        -  skipped: not run: stopped after 02",
        "verifier of 02: exit code 3",
    ]


def test_warnings_of_the_episode_and_of_every_turn(tmp_path: Path) -> None:
    result = make_result(
        is_multi_step=True,
        warnings=("read before", "told of no servers", "not kept: gone"),
        turns=(
            make_turn("01", warnings=("a verifier's",)),
            make_turn("02", 1, warnings=("the agent failed",)),
        ),
    )
    verdict = Verdict("failed", "reward 0.00 < 1.00")
    text = failure_text(result, verdict, root=tmp_path, told={"read before"})
    assert text.splitlines()[-3:] == [
        "warning: told of no servers",
        "warning: 01: a verifier's",
        "warning: 02: the agent failed",
    ]


def test_many_inner_tests_are_cut(tmp_path: Path) -> None:
    tests = tuple(InnerTest(f"n{n}", "failed") for n in range(12))
    result = make_result(turns=(make_turn(inner_tests=tests),))
    text = failure_text(result, Verdict("failed", "x"), root=tmp_path)
    assert "failed: n9" in text
    assert "failed: n10" not in text
    assert "and 2 more" in text
