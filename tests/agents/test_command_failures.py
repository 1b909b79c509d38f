"""What a failed command's output says of the failure."""

from __future__ import annotations

import pytest

from pytest_harbor.agents.command.declaration import CommandRun
from pytest_harbor.agents.command.failures import (
    NOT_FOUND_TEXT,
    FailureRule,
    by_rules,
    default_failure,
)


def run(output="", errors="", exit_code: int | None = 1) -> CommandRun:
    return CommandRun("do it", output, errors, exit_code)


@pytest.mark.parametrize(
    ("text", "kind", "status"),
    [
        ("API Error: 429 {...}", "agent_rate_limited", 429),
        ("Error: Rate limit reached for gpt", "agent_rate_limited", 429),
        ("Overloaded", "agent_rate_limited", 429),
        ("HTTP 401 Unauthorized", "agent_auth_error", 401),
        ("Incorrect API key provided: sk", "agent_auth_error", 401),
        ("authentication_error", "agent_auth_error", 401),
        ("connect ECONNREFUSED 127.0.0.1:9", "agent_request_failed", None),
        ("curl: Could not resolve host: x", "agent_request_failed", None),
        ("TypeError: fetch failed", "agent_request_failed", None),
        ("502 Bad Gateway", "agent_request_failed", None),
        ("Segmentation fault", "agent_run_error", None),
        ("line 14290 of 4010 is wrong", "agent_run_error", None),
        ("File x.py, line 401, in main", "agent_run_error", None),
        ("429 passed, 1 failed in 503 s", "agent_run_error", None),
        ("request failed with status code 429", "agent_rate_limited", 429),
        ("statusCode: 429, responseHeaders: {}", "agent_rate_limited", 429),
        ("APIError(status_code=401)", "agent_auth_error", 401),
        ("{'error': {'code': 401}}", "agent_auth_error", 401),
        ("HTTP/1.1 503", "agent_request_failed", None),
    ],
)
@pytest.mark.parametrize("stream", ["output", "errors"])
def test_by_its_words(text, kind, status, stream):
    failure = default_failure(run(**{stream: f"working\n{text}\n"}))
    assert (failure.kind, failure.status) == (kind, status)
    assert text in str(failure)
    assert "exit code 1" in str(failure)


@pytest.mark.parametrize("exit_code", [0, None])
def test_a_command_that_did_not_fail_says_what_it_likes(exit_code):
    assert default_failure(run("429 too many requests", exit_code=exit_code)) is None


def test_a_signal_is_named():
    assert str(default_failure(run(exit_code=137))) == "it was killed by signal 9"


def test_a_command_that_is_not_there():
    failure = default_failure(run(errors=f"{NOT_FOUND_TEXT} my cli\n", exit_code=127))
    assert failure.kind == "agent_config_error"
    assert "no command 'my cli'" in str(failure)
    # Some other 127 is the CLI's own.
    assert default_failure(run(errors="x", exit_code=127)).kind == "agent_run_error"


def test_only_the_end_of_the_output_counts_and_is_shown():
    # A tool's output, further up, is not what ended the run.
    failure = default_failure(run("HTTP 429 " + "x" * 5_000))
    assert failure.kind == "agent_run_error"
    assert len(str(failure)) < 1000
    assert RULES(run("out of credit" + "x" * 5_000)).status == 402
    assert RULES(run("out of credit" + "x" * 50_000)) is None


RULES = by_rules(
    [
        FailureRule("out of credit", kind="agent_auth_error", status=402),
        FailureRule(exit_code=53, kind="agent_turn_limit"),
        FailureRule(r"(?m)^limit$", exit_code=0, kind="agent_token_limit"),
    ]
)


@pytest.mark.parametrize(
    ("output", "exit_code", "kind", "status"),
    [
        ("you are out of credit", 1, "agent_auth_error", 402),
        ("you are out of credit", 0, None, None),
        ("you are out of credit", None, None, None),
        ("", 53, "agent_turn_limit", None),
        ("", 54, None, None),
        ("a\nlimit\n", 0, "agent_token_limit", None),
        ("no limit", 0, None, None),
    ],
)
def test_rules(output, exit_code, kind, status):
    failure = RULES(run(output, exit_code=exit_code))
    found = (failure.kind, failure.status) if failure else (None, None)
    assert found == (kind, status)
