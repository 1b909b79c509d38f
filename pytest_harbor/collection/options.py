"""Options and ini keys of the plugin, and the one :class:`Settings` they resolve to.

An option wins over its ini twin (same name, underscores), which wins over the default.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_harbor.collection.option import (
    Option,
    Parse,
    integer,
    lines,
    names,
    number,
    one_of,
    switch,
    targets,
    text,
)
from pytest_harbor.collection.step_options import STEP_OPTIONS

if TYPE_CHECKING:
    from pytest_harbor.settings import Settings

GROUP: Final = "harbor"
DEFAULT_RESULTS: Final = ".pytest_harbor"
OPTIONS: Final = (
    Option(
        "agent",
        names,
        "agents that work on each task: oracle (the reference solution), nop, chat (a "
        "model in a loop), a command-line agent (claude-code, codex, opencode, ...; "
        "--harbor-agents lists them), a registered name, or module:attr (default: oracle)",
        "NAME[,NAME]",
        field="agents",
    ),
    Option(
        "agents-file",
        text,
        "TOML file with tables [agents.<name>], beside those of pyproject.toml "
        "([tool.pytest_harbor.agents.<name>])",
        "FILE",
    ),
    Option("model", text, "model passed to the agent", "NAME"),
    Option(
        "sandbox",
        text,
        "auto (Docker for a task that names an image, Dockerfile or Compose file, "
        "else local), local, docker, or a registered provider (default: auto)",
        "NAME",
    ),
    Option(
        "unavailable",
        one_of("error", "skip"),
        "what a task gets whose kind of sandbox is not there, such as no Docker "
        "daemon: error or skip (default: error)",
        "error|skip",
    ),
    Option(
        "min-reward",
        number,
        "reward an episode must reach to pass, for tasks that name none of their own "
        "(default: 1.0)",
        "N",
    ),
    Option(
        "attempts",
        integer,
        "episodes per task and agent; the summary reports mean, pass@k and pass^k "
        "(default: 1)",
        "K",
    ),
    Option(
        "validate",
        switch,
        "check that tasks are sound: the oracle must reach the threshold and doing "
        "nothing must not",
    ),
    Option(
        "retries",
        integer,
        "new tries after an outage or a passed deadline, never after a score "
        "(default: 1)",
        "N",
    ),
    Option(
        "timeout-multiplier",
        number,
        "scales the budgets of agents and verifiers (default: 1.0)",
        "X",
    ),
    Option(
        "turn-sessions",
        one_of("fresh", "continue"),
        "whether an agent starts each turn of a multi-step task anew (default: fresh)",
        "fresh|continue",
    ),
    Option(
        "prompt-template",
        text,
        "file that wraps the first instruction; {instruction} stands for it",
        "FILE",
    ),
    Option(
        "results",
        text,
        "folder of the run folders; its link 'latest' names the newest, the last 10 "
        "are kept (default: .pytest_harbor in the root directory)",
        "DIR",
    ),
    Option(
        "keep",
        one_of("never", "failed", "always"),
        "leave sandboxes up after their episode and print how to enter them "
        "(default: never)",
        "never|failed|always",
    ),
    Option("force-build", switch, "build images anew, whatever is cached"),
    Option(
        "strict",
        switch,
        "warnings about a task (unknown keys and the like) are errors",
    ),
    Option("debug", switch, "show tracebacks of pytest-harbor itself"),
    Option(
        "reward-key",
        text,
        "key of reward.json that counts where a task writes no 'reward'",
        ini_only=True,
    ),
    Option(
        "local-mode",
        one_of("auto", "namespace", "in-place"),
        "how the local sandbox isolates: auto, namespace or in-place",
        ini_only=True,
    ),
    Option(
        "egress-image",
        text,
        "image with python3 for the proxy of docker sandboxes with an allowlist "
        "(default: python:3.13-slim)",
        ini_only=True,
    ),
    Option(
        "local-images",
        targets,
        "what stands in for images on the local sandbox, one 'pattern = target' a line; "
        "a target is host (this machine's userland), or the folder or tar of a root "
        "file system",
        ini_only=True,
    ),
    Option(
        "enforce-task-timeouts",
        switch,
        "the episode's deadline is computed from the task (default: true)",
        ini_only=True,
    ),
    Option(
        "default-episode-timeout-seconds",
        number,
        "deadline where it is not computed from the task (default: 21600)",
        ini_only=True,
    ),
    Option(
        "step-setup-timeout-s",
        number,
        "bound of a step's setup.sh, seconds (default: the turn's agent budget)",
        ini_only=True,
    ),
    Option(
        "verifier-grace-s",
        number,
        "slack per verifier budget in the deadline, seconds (default: 60)",
        ini_only=True,
    ),
    Option(
        "separate-verifier-for-artifacts",
        switch,
        "turns with declared artifacts are verified in a sandbox of their own "
        "(default: false)",
        ini_only=True,
    ),
    Option(
        "agent-outcome-policy",
        lines,
        "what an agent's failure does, one rule a line such as 'status:429 = retry'; "
        "actions: verify, count_as_zero, retry, fail",
        ini_only=True,
    ),
    Option(
        "agent-setup-timeout-s",
        number,
        "allowance for an agent's own set-up in the deadline, seconds (default: 360)",
        ini_only=True,
    ),
    Option(
        "sandbox-start-timeout-s",
        number,
        "allowance for a sandbox start in the deadline, seconds (default: 600)",
        ini_only=True,
    ),
    Option(
        "chat-max-turns",
        integer,
        "answers of the model per turn that the chat agent may ask for (default: 100)",
        ini_only=True,
    ),
    Option(
        "chat-max-tokens",
        integer,
        "tokens, in and out, that a session of the chat agent may use (default: no limit)",
        ini_only=True,
    ),
    Option(
        "model-api-base",
        text,
        "endpoint of the chat agent, and of judges that are one model call; it speaks "
        "OpenAI's chat completions (default: what OPENAI_BASE_URL says)",
        ini_only=True,
    ),
    *STEP_OPTIONS,
)

JUNIT_STEPS: Final = "harbor_junit_steps"
LIST_AGENTS: Final = "harbor_list_agents"
SWEEP: Final = "harbor_sweep"
"""No setting, so it has no ini key: nobody wants a project that never runs a test."""


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and ini key."""
    group = parser.getgroup(GROUP, "agent-evaluation tasks (pytest-harbor)")
    for option in OPTIONS:
        twin = f"twin of {option.flag}: " if not option.ini_only else ""
        parser.addini(option.key, twin + option.help, type="string", default=None)
        if option.ini_only:
            continue
        if option.parse is switch:
            group.addoption(
                option.flag,
                dest=option.key,
                action="store_true",
                default=None,
                help=option.help,
            )
        else:
            group.addoption(
                option.flag,
                dest=option.key,
                metavar=option.metavar,
                type=_for_argparse(option),
                default=None,
                action="append" if option.is_repeated else "store",
                help=option.help.replace("%", "%%"),
            )
    group.addoption(
        "--harbor-agents",
        dest=LIST_AGENTS,
        action="store_true",
        help="list the agents and what each needs, and exit",
    )
    group.addoption(
        "--harbor-sweep",
        dest=SWEEP,
        action="store_true",
        help="remove what dead runs left (containers, networks, volumes, local "
        "sandboxes), say what that was, and run no tests",
    )
    parser.addini(
        JUNIT_STEPS,
        "write each step of a multi-step task as a JUnit test case (default: true)",
        type="bool",
        default=True,
    )


def _for_argparse(option: Option) -> Parse:
    """Check on the command line already; the text itself travels to the workers."""

    def check(value: str) -> str:
        try:
            option.parse(value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(
                f"expected {error}, got {value!r}"
            ) from None
        return value

    return check


def resolve(config: pytest.Config) -> Settings:
    """The settings of this run.

    Raises:
        pytest.UsageError: a value cannot be used; names the option or ini key.
    """
    from pytest_harbor.errors import SettingsError
    from pytest_harbor.settings import Settings

    value: Any
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for option in OPTIONS:
        given, origin, base = _given(config, option)
        if given is None:
            continue
        try:
            value = given if isinstance(given, bool) else option.parse(given)
        except ValueError as error:
            raise pytest.UsageError(
                f"{origin}: expected {error}, got {given!r}"
            ) from None
        if option.name in {"agents-file", "prompt-template"}:
            value = _absolute(base / value)
        if option.name == "local-images":
            value = tuple(
                (pattern, target if target == "host" else str(_absolute(base / target)))
                for pattern, target in value
            )
        values[option.setting] = value
        origins[option.setting] = origin
    values["results"] = results_folder(config)
    if values.get("validate"):
        if "agents" in values:
            raise pytest.UsageError(
                f"--harbor-validate brings its own agents (oracle and nop): remove "
                f"{origins['agents']}"
            )
        values["agents"] = ("oracle", "nop")
    try:
        settings = Settings(**values)
        _check_policy(settings)
    except SettingsError as error:
        raise pytest.UsageError(_with_origin(str(error), origins)) from None
    return settings


def _check_policy(settings: Settings) -> None:
    """Read the rules once here: else each episode would be refused for the same line."""
    if settings.agent_outcome_policy:
        from pytest_harbor.agents.outcome_policy import parse_policy

        parse_policy(settings.agent_outcome_policy)


def _given(
    config: pytest.Config, option: Option
) -> tuple[str | bool | None, str, Path]:
    """What the user wrote, where, and the folder that relative paths start from."""
    if not option.ini_only:
        value = config.getoption(option.key)
        if isinstance(value, list):
            value = "\n".join(value)
        if value is not None:
            return value, option.flag, config.invocation_params.dir
    text = config.getini(option.key)
    file = config.inipath
    place = f"{file.name}: {option.key}" if file else option.key
    return text or None, place, file.parent if file else config.rootpath


def _with_origin(message: str, origins: dict[str, str]) -> str:
    """Name the option where the message begins with the setting's name."""
    name = message.split(" ", 1)[0]
    return message.replace(name, origins[name], 1) if name in origins else message


def any_given(config: pytest.Config) -> bool:
    """True when an option was typed or an ini key set."""
    return any(_given(config, option)[0] is not None for option in OPTIONS)


def results_folder(config: pytest.Config) -> Path:
    """The folder of the run folders, known without resolving everything else."""
    option = next(option for option in OPTIONS if option.name == "results")
    given, _, base = _given(config, option)
    if given is None:
        return config.rootpath / DEFAULT_RESULTS
    return _absolute(base / str(given))


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - links stay as they were named


def step_file_patterns(config: pytest.Config) -> tuple[str, ...]:
    """Patterns of step task files, known without resolving everything else."""
    return lines(config.getini("harbor_step_files") or "")
