"""The policy on agent failures: spec 17."""

from __future__ import annotations

import pytest

from pytest_harbor.agents.outcome_policy import parse_policy
from pytest_harbor.errors import SettingsError


@pytest.mark.parametrize(
    ("kind", "status", "action"),
    [
        ("agent_run_error", None, "verify"),
        ("something_new", None, "verify"),
        ("agent_timeout", None, "verify"),
        ("agent_turn_limit", None, "verify"),
        ("agent_setup_timeout", None, "retry"),
        ("agent_request_failed", None, "retry"),
        ("agent_request_failed", 503, "retry"),
        ("agent_request_failed", 429, "retry"),
        ("agent_request_failed", 401, "fail"),
        ("agent_request_failed", 403, "fail"),
        ("agent_request_failed", 404, "fail"),
        ("agent_auth_error", None, "fail"),
        ("agent_config_error", None, "fail"),
    ],
)
def test_defaults(kind, status, action):
    assert parse_policy(()).action(kind, status) == action


def test_order_is_status_kind_class_default():
    lines = [
        "default = verify",
        "class:rate_limit = fail",
        "kind:agent_request_failed = count_as_zero",
        "status:429 = retry",
    ]
    expected = ["retry", "count_as_zero", "fail", "verify"]
    for action in expected:
        assert parse_policy(lines).action("agent_request_failed", 429) == action
        lines.pop()


def test_a_default_of_the_user_wins_over_our_classes():
    policy = parse_policy(["default = count_as_zero"])
    assert policy.action("agent_request_failed", 503) == "count_as_zero"


def test_a_limit_is_a_completion_that_no_default_touches():
    assert parse_policy(["default = fail"]).action("agent_timeout") == "verify"
    assert parse_policy(["kind:agent_timeout = fail"]).action("agent_timeout") == "fail"
    assert parse_policy(["class:limit = retry"]).action("agent_timeout") == "retry"


def test_comments_and_empty_lines_are_skipped():
    policy = parse_policy(["", "  # nothing", "status:429=fail  # now"])
    assert policy.rules == {"status:429": "fail"}


@pytest.mark.parametrize(
    "line",
    [
        "retry",
        "default retry",
        "default = again",
        "status:42x = retry",
        "status:٤٢٩ = retry",
        "status: = retry",
        "class:weather = retry",
        "kind: = retry",
        "code:429 = retry",
        "default = ",
    ],
)
def test_a_bad_line_is_named(line):
    with pytest.raises(SettingsError) as caught:
        parse_policy(["default = verify", line])
    assert repr(line.strip()) in str(caught.value)
    assert "count_as_zero" in str(caught.value)


def test_a_kind_that_is_nearly_ours_is_a_slip():
    with pytest.raises(SettingsError, match="did you mean kind:agent_timeout"):
        parse_policy(["kind:agent_time_out = fail"])
    assert parse_policy(["kind:mycli_refused = fail"]).action("mycli_refused") == "fail"
