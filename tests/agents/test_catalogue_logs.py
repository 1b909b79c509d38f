"""What the catalogue reads from the CLIs' logs.

``cli_logs`` holds what the CLIs printed to a scripted model, long lists in it cut short;
goose's are written after its documentation.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pytest_harbor.agents import catalogue
from pytest_harbor.agents.catalogue.events import (
    as_arguments,
    as_cost,
    as_count,
    as_time,
)
from pytest_harbor.agents.command.declaration import CommandRun
from pytest_harbor.agents.trajectory import read_trajectory

LOGS = Path(__file__).with_name("cli_logs")
INSTRUCTION = "say hello to file\n"
FILES = (".session", ".traj", ".md")
ALL = sorted(catalogue.MODULES)


def logged(
    agent: str, case: str, exit_code: int | None = 0, **fields: object
) -> CommandRun:
    """A run that printed what is in the case's files."""
    texts = {
        path.suffix: path.read_text()
        for path in sorted((LOGS / agent).glob(f"{case}.*"))
    }
    files = {f"/logs/x{end}": text for end, text in texts.items() if end in FILES}
    given = {"model": "prov/asked", "version": f"{agent} 1.2.3 (x)", "files": files}
    return CommandRun(
        instruction=INSTRUCTION,
        output=texts.get(".stdout", ""),
        errors=texts.get(".stderr", ""),
        exit_code=exit_code,
        **{**given, **fields},
    )


def read(run: CommandRun, agent: str):
    """The result of a run, its trajectory checked."""
    result = catalogue.load(agent).trajectory(run)
    trajectory = result.trajectory and read_trajectory(result.trajectory)
    return result, trajectory


def told(trajectory) -> list:
    """Who said what, and the tools called with it."""
    return [
        (
            step.source,
            step.message,
            [call.function_name for call in step.tool_calls or ()],
        )
        for step in trajectory.steps
    ]


def solved(tool: str) -> list:
    return [
        ("user", INSTRUCTION, []),
        ("agent", "I will do it.", [tool]),
        ("agent", "Done one.", []),
    ]


class TestSolved:
    @pytest.mark.parametrize(
        ("agent", "tool", "cost"),
        [
            ("claude-code", "Bash", 0.000896),
            ("codex", "shell", None),
            ("gemini-cli", "run_shell_command", None),
            ("goose", "developer__shell", 0.25),
            ("opencode", "bash", None),
            ("qwen-code", "run_shell_command", None),
        ],
    )
    def test_steps_calls_results_and_usage(self, agent, tool, cost):
        result, trajectory = read(logged(agent, "solved"), agent)
        assert told(trajectory) == solved(tool)
        [call] = trajectory.steps[1].tool_calls
        assert "echo hello > out1.txt" in call.arguments["command"]
        [outcome] = trajectory.steps[1].observation.results
        assert outcome.source_call_id == call.tool_call_id
        assert "hello" in outcome.content
        assert result.text == "Done one."
        assert (result.input_tokens, result.output_tokens) == (200, 20)
        assert trajectory.final_metrics.total_cached_tokens == 80
        assert trajectory.final_metrics.total_steps == 3
        assert result.cost_usd == cost
        assert trajectory.agent.name == agent
        assert trajectory.agent.version == "1.2.3"
        assert trajectory.agent.model_name
        assert catalogue.load(agent).failure(logged(agent, "solved")) is None

    @pytest.mark.parametrize("agent", ["claude-code", "opencode", "qwen-code"])
    def test_each_answer_has_its_own_usage(self, agent):
        _, trajectory = read(logged(agent, "solved"), agent)
        used = [step.metrics for step in trajectory.steps if step.source == "agent"]
        assert [(one.prompt_tokens, one.completion_tokens) for one in used] == [
            (100, 10)
        ] * 2
        assert [one.cached_tokens for one in used] == [40, 40]

    def test_claude_code_without_its_session_file_does_not_guess(self):
        _, trajectory = read(logged("claude-code", "solved", files={}), "claude-code")
        used = trajectory.steps[1].metrics
        assert (used.prompt_tokens, used.completion_tokens) == (100, None)
        assert trajectory.final_metrics.total_completion_tokens == 20

    def test_mini_swe_agent(self):
        result, trajectory = read(logged("mini-swe-agent", "solved"), "mini-swe-agent")
        steps = told(trajectory)
        assert [who for who, _, _ in steps[:4]] == ["system", "user", "agent", "agent"]
        assert steps[1][1].startswith("Please solve this issue: say hello to file")
        assert steps[2][1:] == ("I will do it.", ["bash"])
        assert (
            '"output": "hello\\n"' in trajectory.steps[2].observation.results[0].content
        )
        # Answers without a call, which it told the model of: paid for, so counted.
        assert [text for who, text, _ in steps if who == "agent"] == [
            "I will do it.",
            *["Done one."] * 3,
        ]
        assert (result.input_tokens, result.output_tokens) == (400, 40)

    @pytest.mark.parametrize(
        ("case", "file"), [("solved", "out1.txt"), ("continued", "out2.txt")]
    )
    def test_aider(self, case, file):
        result, trajectory = read(logged("aider", case), "aider")
        assert [step.source for step in trajectory.steps] == ["user", "agent"]
        assert result.text.startswith(f"Here:\n\n{file}\n```\n<<<<<<< SEARCH")
        assert result.text.endswith(">>>>>>> REPLACE\n```")
        assert (result.input_tokens, result.output_tokens) == (100, 10)

    @pytest.mark.parametrize(
        ("line", "numbers"),
        [
            ("> Tokens: 2.1k sent, 50 received.  ", (2100, 50, None, None)),
            (
                (
                    "> Tokens: 12k sent, 3.4k cache write, 8k cache hit, 1.2k received. "
                    "Cost: $0.06 message, $0.11 session.  "
                ),
                (12_000, 1200, 8000, 0.06),
            ),
            ("> Tokens: 1,234 sent, 1M received.  ", (1234, 1_000_000, None, None)),
            ("> Tokens: many sent, 50 received.  ", (None, None, None, None)),
        ],
    )
    def test_tokens_as_aider_writes_them(self, line, numbers):
        chat = f"# aider chat started at x\n\n#### do it  \n\nDone.\n\n{line}\n"
        run = CommandRun(INSTRUCTION, "", "", 0, files={"/x.md": chat})
        _, trajectory = read(run, "aider")
        final = trajectory.final_metrics
        assert numbers == (
            final.total_prompt_tokens,
            final.total_completion_tokens,
            final.total_cached_tokens,
            final.total_cost_usd,
        )

    @pytest.mark.parametrize(
        "agent", ["claude-code", "codex", "gemini-cli", "opencode", "qwen-code"]
    )
    def test_calls_made_together_stay_together(self, agent):
        _, trajectory = read(logged(agent, "together"), agent)
        both, last = [step for step in trajectory.steps if step.source == "agent"]
        assert len(both.tool_calls) == 2
        answered = {
            result.source_call_id: result.content.strip()
            for result in both.observation.results
        }
        commands = {
            call.tool_call_id: call.arguments["command"] for call in both.tool_calls
        }
        assert set(answered) == set(commands)
        assert last.message == "Done three."


class TestContinued:
    @pytest.mark.parametrize("agent", ["claude-code", "codex"])
    def test_what_earlier_turns_used_is_taken_off(self, agent):
        """Both add up over the session; the log is of its second turn."""
        first = catalogue.load(agent).trajectory(logged(agent, "solved"))
        second, trajectory = read(
            logged(agent, "together", earlier=(first.trajectory,)), agent
        )
        assert (second.input_tokens, second.output_tokens) == (200, 20)
        assert trajectory.final_metrics.total_cached_tokens == 80
        assert second.cost_usd == (first.cost_usd if agent == "claude-code" else None)

    @pytest.mark.parametrize("agent", ["claude-code", "codex"])
    def test_totals_of_the_turn_alone_are_left_alone(self, agent):
        first = catalogue.load(agent).trajectory(logged(agent, "together"))
        second, _ = read(logged(agent, "solved", earlier=(first.trajectory,)), agent)
        assert (second.input_tokens, second.output_tokens) == (200, 20)

    def test_totals_that_only_seem_to_be_the_sessions(self):
        """Some versions of Claude Code start anew in each turn: ``usage`` tells."""
        first = {"final_metrics": {"total_prompt_tokens": 100}}
        second, _ = read(
            logged("claude-code", "solved", earlier=(first,)), "claude-code"
        )
        assert second.input_tokens == 200

    @pytest.mark.parametrize(
        ("agent", "session"),
        [
            ("codex", "01a22"),
            ("opencode", "ses_"),
        ],
    )
    def test_the_session_that_the_cli_named(self, agent, session):
        find = catalogue.load(agent).session
        assert find(logged(agent, "solved")).startswith(session)
        assert find(logged(agent, "no such case")) is None


FAILURES = [
    ("agent", "case", "exit_code", "kind", "status"),
    ("aider", "rate_limited", 0, "agent_rate_limited", 429),
    ("aider", "unauthorized", 0, "agent_auth_error", 401),
    ("claude-code", "rate_limited", 1, "agent_rate_limited", 429),
    ("claude-code", "unauthorized", 1, "agent_auth_error", 401),
    ("claude-code", "server_error", 1, "agent_request_failed", 500),
    ("claude-code", "cut", 1, "agent_request_failed", 503),
    ("claude-code", "too_long", 1, "agent_token_limit", None),
    ("codex", "rate_limited", 1, "agent_rate_limited", 429),
    ("codex", "unauthorized", 1, "agent_auth_error", 401),
    ("codex", "server_error", 1, "agent_request_failed", 503),
    ("codex", "cut", 1, "agent_request_failed", 503),
    ("codex", "too_long", 1, "agent_token_limit", None),
    ("gemini-cli", "rate_limited", 173, "agent_rate_limited", 429),
    ("gemini-cli", "unauthorized", 145, "agent_auth_error", 401),
    ("gemini-cli", "cut", 1, "agent_request_failed", 503),
    ("gemini-cli", "too_long", 144, "agent_token_limit", None),
    ("goose", "rate_limited", 1, "agent_rate_limited", 429),
    ("mini-swe-agent", "rate_limited", 1, "agent_rate_limited", 429),
    ("mini-swe-agent", "unauthorized", 1, "agent_auth_error", 401),
    ("mini-swe-agent", "server_error", 1, "agent_request_failed", 500),
    ("opencode", "rate_limited", 1, "agent_rate_limited", 429),
    ("opencode", "unauthorized", 1, "agent_auth_error", 401),
    ("opencode", "too_long", 1, "agent_config_error", 400),
    ("qwen-code", "unauthorized", 1, "agent_auth_error", 401),
]


class TestFailures:
    @pytest.mark.parametrize(FAILURES[0], FAILURES[1:])
    def test_they_are_told_apart(self, agent, case, exit_code, kind, status):
        failure = catalogue.load(agent).failure(logged(agent, case, exit_code))
        assert (failure.kind, failure.status) == (kind, status)
        assert 10 < len(str(failure)) < 700

    @pytest.mark.parametrize("agent", [name for name in ALL if name != "goose"])
    def test_an_error_is_no_answer_of_the_model(self, agent):
        result, _ = read(logged(agent, "unauthorized", 1), agent)
        assert (result.text, result.trajectory) == (None, None)

    @pytest.mark.parametrize(
        ("exit_code", "errors", "kind", "status"),
        [
            (41, "Please set an Auth method", "agent_auth_error", 401),
            (53, "Reached max session turns", "agent_turn_limit", None),
            (247, "", "agent_request_failed", 503),
            (1, "TypeError: fetch failed", "agent_request_failed", 503),
        ],
    )
    def test_exit_codes_of_gemini_cli(self, exit_code, errors, kind, status):
        failure = catalogue.load("gemini-cli").failure(
            CommandRun(INSTRUCTION, "", errors, exit_code)
        )
        assert (failure.kind, failure.status) == (kind, status)

    def test_claude_code_cut_off_while_it_waits_to_try_again(self):
        """A run without a ``result`` event: the last retry says why."""
        retry = {
            "type": "system",
            "subtype": "api_retry",
            "error_status": 529,
            "error": "overloaded",
        }
        classify = catalogue.load("claude-code").failure
        for code in (1, None):
            failure = classify(CommandRun(INSTRUCTION, json.dumps(retry), "", code))
            assert (failure.kind, failure.status) == ("agent_request_failed", 529)
        assert classify(CommandRun(INSTRUCTION, json.dumps(retry), "", 0)) is None

    def test_what_mini_swe_agent_says_last_is_the_reason(self):
        run = logged("mini-swe-agent", "rate_limited", 1)
        failure = catalogue.load("mini-swe-agent").failure(run)
        assert str(failure).startswith("litellm.RateLimitError: RateLimitError: OpenAI")

    def test_codex_shows_the_endpoints_words_for_a_bad_request(self):
        body = json.dumps({"error": {"message": "no such model"}})
        event = {"type": "turn.failed", "error": {"message": body}}
        failure = catalogue.load("codex").failure(
            CommandRun(INSTRUCTION, json.dumps(event), "", 1)
        )
        assert (str(failure), failure.status) == ("no such model", 400)

    def test_aider_gets_over_an_error(self):
        told = "litellm.RateLimitError: slow down\n"
        used = "Tokens: 1 sent, 1 received.\n"
        failure = catalogue.load("aider").failure
        assert failure(CommandRun(INSTRUCTION, told + used, "", 0)) is None
        assert failure(CommandRun(INSTRUCTION, used + told, "", 0)).status == 429

    def test_opencode_gets_over_an_error(self):
        lines = [
            {"type": "error", "error": {"data": {"message": "x", "statusCode": 500}}},
            {"type": "step_finish", "part": {"reason": "stop"}},
        ]
        text = "\n".join(map(json.dumps, lines))
        failure = catalogue.load("opencode").failure
        assert failure(CommandRun(INSTRUCTION, text, "", 0)) is None
        text = "\n".join(map(json.dumps, reversed(lines)))
        assert failure(CommandRun(INSTRUCTION, text, "", 0)).status == 500

    @pytest.mark.parametrize(
        ("message", "status", "kind", "kept"),
        [
            ("Insufficient quota: check your billing", 429, "agent_auth_error", 402),
            ("slow down", 429, "agent_rate_limited", 429),
            ("prompt is too long", 400, "agent_token_limit", None),
            ("maximum context length exceeded", 413, "agent_token_limit", None),
            ("no such model", 404, "agent_config_error", 404),
            ("overloaded", 529, "agent_request_failed", 529),
            ("it broke", None, "agent_run_error", None),
            ("", 403, "agent_auth_error", 403),
        ],
    )
    def test_by_status_and_words(self, message, status, kind, kept):
        from pytest_harbor.agents.catalogue.requests import request_failure

        failure = request_failure(message, status)
        assert (failure.kind, failure.status) == (kind, kept)
        assert str(failure)


class TestValues:
    @pytest.mark.parametrize(
        ("value", "count", "cost"),
        [
            (7, 7, 7.0),
            (7.9, 7, 7.9),
            (0, 0, 0.0),
            (-1, None, None),
            (True, None, None),
            ("7", None, None),
            (None, None, None),
            (float("nan"), None, None),
            (float("inf"), None, None),
        ],
    )
    def test_numbers(self, value, count, cost):
        assert (as_count(value), as_cost(value)) == (count, cost)

    @pytest.mark.parametrize(
        ("value", "time"),
        [
            ("2026-11-30T22:00:00Z", "2026-11-30T22:00:00Z"),
            ("noon", None),
            (1_796_076_709, "2026-11-30T22:11:49+00:00"),
            (1_796_076_709_000, "2026-11-30T22:11:49+00:00"),
            (1e30, None),
            (True, None),
        ],
    )
    def test_times(self, value, time):
        assert as_time(value) == time

    @pytest.mark.parametrize(
        ("value", "arguments"),
        [
            ({"a": 1}, {"a": 1}),
            ('{"a": 1}', {"a": 1}),
            ("ls -l", {"input": "ls -l"}),
            ("[1]", {"input": "[1]"}),
            ([1], {"input": [1]}),
            ("", {}),
            (None, {}),
        ],
    )
    def test_arguments(self, value, arguments):
        assert as_arguments(value) == arguments


class TestRubbish:
    """A log is the agent's own words: it may say anything."""

    LINES = (
        "",
        "not json",
        "{",
        "[1, 2]",
        "null",
        '"text"',
        '{"type": 7}',
        '{"type": "assistant", "message": "text"}',
        '{"type": "assistant", "message": {"content": [null, 3, {"type": "text"}]}}',
        '{"type": "assistant", "message": {"id": 5, "usage": {"input_tokens": "many"}}}',
        '{"type": "user", "message": {"content": [{"type": "tool_result"}]}}',
        '{"type": "result", "is_error": true, "result": 3, "modelUsage": [1]}',
        '{"type": "result", "stats": 5, "usage": {"input_tokens": -4}}',
        '{"type": "item.completed", "item": {"type": "command_execution"}}',
        '{"type": "item.started", "item": {"type": "mcp_tool_call", "arguments": "{"}}',
        '{"type": "turn.failed", "error": "text"}',
        '{"type": "turn.completed", "usage": {"input_tokens": 1e400}}',
        '{"type": "tool_use", "part": {"state": [], "callID": 3}}',
        '{"type": "tool_use", "tool_id": {}, "parameters": [1]}',
        '{"type": "step_finish", "part": {"tokens": {"input": true}}}',
        '{"type": "error", "error": {"data": []}}',
        '{"type": "message", "message": {"role": "assistant", "created": 1e30}}',
        '{"type": "message", "role": "assistant", "content": 4, "timestamp": "noon"}',
        '{"type": "complete", "cost_usd": "free", "input_tokens": null}',
        '{"messages": [5, {"role": "assistant", "tool_calls": {}, "extra": []}]}',
        "# aider chat started at x",
        "#### ",
        "> Tokens: ... sent, ... received.  ",
        '{"a":' * 5000,
    )

    @pytest.mark.parametrize("agent", ALL)
    def test_nothing_is_raised_and_what_is_made_is_a_trajectory(self, agent):
        declared = catalogue.load(agent)
        chance = random.Random(7)
        for _ in range(150):
            text = "\n".join(chance.choices(self.LINES, k=chance.randint(0, 12)))
            code = chance.choice([0, 1, 41, None])
            run = CommandRun(INSTRUCTION, text, text[:500], code, files={"/x": text})
            read(run, agent)
            declared.failure(run)
            if declared.session:
                declared.session(run)

    @pytest.mark.parametrize("agent", ALL)
    def test_a_log_that_was_cut_anywhere(self, agent):
        whole = logged(agent, "solved")
        declared = catalogue.load(agent)
        texts = [whole.output, *whole.files.values()]
        for cut in range(0, max(map(len, texts)), 97):
            files = {path: text[:cut] for path, text in whole.files.items()}
            run = CommandRun(INSTRUCTION, whole.output[:cut], "", None, files=files)
            read(run, agent)
            declared.failure(run)
