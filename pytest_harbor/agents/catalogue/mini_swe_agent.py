"""mini-swe-agent: Python from PyPI, for models of many providers through litellm."""

from __future__ import annotations

import re
import shlex
from typing import Final

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.catalogue.events import (
    Event,
    as_arguments,
    as_cost,
    as_count,
    as_list,
    as_object,
    as_text,
    as_time,
    at,
    joined_text,
    json_lines,
    shown,
)
from pytest_harbor.agents.catalogue.installing import (
    INSTALL_ENV,
    launcher,
    python_script,
)
from pytest_harbor.agents.catalogue.providers import PROVIDER_KEYS
from pytest_harbor.agents.catalogue.requests import request_failure
from pytest_harbor.agents.catalogue.steps import Steps, result_of
from pytest_harbor.agents.command.declaration import AgentDeclaration, CommandRun
from pytest_harbor.agents.trajectory import Metrics
from pytest_harbor.errors import AGENT_TURN_LIMIT, AgentError

NAME: Final = "mini-swe-agent"

# Its command line takes the task as text alone; from here it gets it from a file. What an earlier
# turn left is not this turn's trajectory.
_RUNNER: Final = """\
import pathlib
import sys

from minisweagent.run.mini import app

task, trajectory, *rest = sys.argv[1:]
pathlib.Path(trajectory).unlink(missing_ok=True)
text = pathlib.Path(task).read_text(encoding="utf-8", errors="replace")
sys.argv = ["mini", "--task", text, "--output", trajectory, *rest]
app()
"""

INSTALL: Final = python_script(
    """
python_install "$(python_requirement mini-swe-agent "$AGENT_VERSION")" 10 14
""",
    f'printf %s {shlex.quote(_RUNNER)} >"$AGENT_PREFIX/run_mini.py"',
    launcher(
        "mini-swe-agent",
        """
if [ "$1" = --version ]; then
  exec "$AGENT_PREFIX/venv/bin/python" -c \\
    'from importlib.metadata import version; print(version("mini-swe-agent"))'
fi
exec "$AGENT_PREFIX/venv/bin/python" "$AGENT_PREFIX/run_mini.py" "$@"
""",
    ),
)

_TRAJECTORY: Final = "{logs}/mini-swe-agent.traj.json"
_ERROR: Final = re.compile(
    r"litellm\.(?:exceptions\.)?(\w+(?:Error|Exceeded\w*))[:(] ?(.*)"
)
_STATUS_OF_ERROR: Final = {
    "AuthenticationError": 401,
    "PermissionDeniedError": 403,
    "NotFoundError": 404,
    "BadRequestError": 400,
    "ContextWindowExceededError": 400,
    "RateLimitError": 429,
    "InternalServerError": 500,
    "ServiceUnavailableError": 503,
    "APIConnectionError": 503,
    "Timeout": 503,
}


def _document(run: CommandRun) -> Event:
    for content in run.files.values():
        for found in json_lines(content.replace("\n", " ")):
            return found
    return {}


def read(run: CommandRun) -> AgentResult:
    """The trajectory that it writes itself (``mini-swe-agent-1``), as ATIF."""
    document = _document(run)
    steps = Steps()
    for message in map(as_object, as_list(document.get("messages"))):
        role = message.get("role")
        text = joined_text(message.get("content"))
        if role == "system":
            steps.system(text)
        elif role == "user":
            _user(steps, message, text)
        elif role == "assistant":
            _answer(steps, message, text)
        elif role == "tool":
            steps.result(as_text(message.get("tool_call_id")) or None, text)
    submitted = as_text(at(document, "info", "submission"))
    return result_of(run, NAME, steps, text=submitted.strip() or None)


def _user(steps: Steps, message: Event, text: str) -> None:
    # An answer without a tool call, which it told the model of.
    rejected = at(message, "extra", "response")
    if rejected is not None:
        said = as_object(at(_first_choice(rejected), "message"))
        _answer(
            steps, {**said, "extra": {"response": rejected}}, shown(said.get("content"))
        )
    steps.user(text)


def _answer(steps: Steps, message: Event, text: str) -> None:
    extra = as_object(message.get("extra"))
    draft = steps.agent(
        text=text,
        reasoning=as_text(message.get("reasoning_content")),
        timestamp=as_time(extra.get("timestamp")),
        metrics=_metrics(extra),
    )
    for call in as_list(message.get("tool_calls")):
        draft.call(
            as_text(at(call, "id")),
            as_text(at(call, "function", "name")),
            as_arguments(at(call, "function", "arguments")),
        )


def _first_choice(response: object) -> object:
    return next(iter(as_list(at(response, "choices"))), None)


def _metrics(extra: Event) -> Metrics | None:
    usage = as_object(at(extra, "response", "usage"))
    given = as_count(usage.get("prompt_tokens"))
    if given is None:
        return None
    return Metrics(
        prompt_tokens=given,
        completion_tokens=as_count(usage.get("completion_tokens")),
        cached_tokens=as_count(at(usage, "prompt_tokens_details", "cached_tokens")),
        cost_usd=as_cost(extra.get("cost")) or None,
    )


def failure(run: CommandRun) -> AgentError | None:
    """The exception that ended the run: as exit status of the trajectory, or as a traceback."""
    document = _document(run)
    status = as_text(at(document, "info", "exit_status"))
    if status == "LimitsExceeded":
        return AgentError("it used up what it may spend", AGENT_TURN_LIMIT)
    if status in _STATUS_OF_ERROR:
        last = as_object((as_list(document.get("messages")) or [None])[-1])
        told = as_text(last.get("content")) if last.get("role") == "exit" else ""
        said = told or f"the request to the model failed: {status}"
        return request_failure(said, _STATUS_OF_ERROR[status])
    if run.exit_code in (0, None):
        return None
    for name, said in reversed(
        _ERROR.findall(run.errors[-20_000:] + run.output[-20_000:])
    ):
        if name in _STATUS_OF_ERROR:
            return request_failure(said or name, _STATUS_OF_ERROR[name])
    return None


DECLARATION: Final = AgentDeclaration(
    name=NAME,
    description="mini-swe-agent, a small loop around a shell, for models of many providers",
    version="2.4.6",
    install=INSTALL,
    install_env=INSTALL_ENV,
    probe=("mini-swe-agent", "--version"),
    command=(
        "mini-swe-agent",
        "{instruction}",
        _TRAJECTORY,
        "--yolo",
        "--exit-immediately",
        "--cost-limit=0",
        "--model={model}",
    ),
    provider_env=PROVIDER_KEYS,
    env={
        "OPENAI_BASE_URL": "${OPENAI_BASE_URL:-}",
        "ANTHROPIC_BASE_URL": "${ANTHROPIC_BASE_URL:-}",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        # A model whose price is not known is no reason to stop.
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "${MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT:-}",
        "MSWEA_SILENT_STARTUP": "1",
    },
    trajectory=read,
    trajectory_files=(_TRAJECTORY,),
    failure=failure,
)
