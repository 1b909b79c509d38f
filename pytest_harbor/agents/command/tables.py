"""Agents declared in TOML: the table ``[tool.pytest_harbor.agents.<name>]``, checked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Strict,
    Tag,
    model_validator,
)

from pytest_harbor.agents.api import AgentResult
from pytest_harbor.agents.command import template
from pytest_harbor.agents.command.declaration import (
    DEFAULT_INSTALL_TIMEOUT_SECONDS,
    AgentDeclaration,
    CommandRun,
    InstructionBy,
)
from pytest_harbor.agents.command.failures import FailureRule, by_rules
from pytest_harbor.agents.command.mcp import json_writer
from pytest_harbor.agents.python_agent import load_attribute
from pytest_harbor.errors import AGENT_RUN_ERROR, SettingsError, TrajectoryError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.folder.model import Table
from pytest_harbor.tasks.folder.toml_file import validate
from pytest_harbor.tasks.folder.unknown_keys import unknown_keys
from pytest_harbor.tasks.folder.values import Seconds, Strings, User, Variables
from pytest_harbor.tasks.validation import refusal

ATIF: Final = "atif"
"""``trajectory``: the command writes one itself, into the first of ``trajectory_files``."""
RULE: Final = "agent"
"""Error type of what is refused here; no rule of a specification has it."""
_NEAR_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
_FLAGS: Final = ("model_flag", "mcp_flag")


def _argv(value: tuple[str, ...]) -> tuple[str, ...]:
    for part in value:
        for name in _NEAR_PLACEHOLDER.findall(part):
            known = (*template.NAMES, *_FLAGS)
            near = get_close_matches(name, known, n=1, cutoff=0.8)
            if name not in known and near:
                raise refusal(
                    RULE, f"{{{name}}} is no placeholder; did you mean {{{near[0]}}}?"
                )
        if "\0" in part:
            raise refusal(RULE, "holds a NUL, which no command line can")
    return value


def _list(value: object) -> object:
    """``"--model"`` is short for ``["--model"]``."""
    return [value] if isinstance(value, str) else value


def _pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise refusal(RULE, f"{value!r} is no regular expression: {error}") from None
    return value


def _session_pattern(value: str) -> str:
    if re.compile(_pattern(value)).groups != 1:
        raise refusal(
            RULE, f"{value!r} needs one group, which is the session: 'session: (\\S+)'"
        )
    return value


def _path(value: str) -> str:
    if not value.startswith(("/", "~/")) or "\0" in value:
        raise refusal(RULE, f"{value!r} must be absolute or start with ~/")
    return value


def _groups(value: object) -> object:
    if not isinstance(value, list):
        return value
    return [[group] if isinstance(group, str) else group for group in value]


Argv: TypeAlias = Annotated[Strings, AfterValidator(_argv)]
Flag: TypeAlias = Annotated[Argv, BeforeValidator(_list)]
Pattern: TypeAlias = Annotated[str, AfterValidator(_pattern)]
SandboxPath: TypeAlias = Annotated[str, AfterValidator(_path)]
Groups: TypeAlias = Annotated[
    tuple[Strings, ...], Strict(False), BeforeValidator(_groups)
]


class McpConfigTable(Table):
    """``mcp_config`` as a table: one JSON file that names the servers."""

    path: SandboxPath
    """The file, absolute or ``~/...``."""
    key: str = "mcpServers"
    """The key of the object in it."""


def _shape(value: object) -> str:
    return "table" if isinstance(value, dict) else "function"


# With one of the two to blame, and not both.
McpConfig: TypeAlias = Annotated[
    Annotated[str, Tag("function")] | Annotated[McpConfigTable, Tag("table")],
    Discriminator(_shape),
]


class FailureTable(Table):
    """One of ``failures``: what a run's end means."""

    pattern: Pattern = ""
    """Regular expression, searched in the end of the output; unset: any output."""
    exit_code: int | None = None
    """The exit code; unset: any but 0."""
    kind: str = AGENT_RUN_ERROR
    """The failure's kind."""
    status: int | None = None
    """The HTTP status, for the outcome policy."""

    @model_validator(mode="after")
    def _says_something(self) -> FailureTable:
        if not self.pattern and self.exit_code is None:
            raise refusal(RULE, "needs pattern or exit_code")
        return self


class AgentTable(Table):
    """``[tool.pytest_harbor.agents.<name>]``."""

    extends: str | None = None
    """Another agent, whose declaration this one changes."""
    description: str = ""
    """One line for ``--harbor-agents``."""
    version: str | None = None
    """Installed unless ``name@version`` asks for another."""
    install: str | None = None
    """Bash script; its environment has ``AGENT_VERSION`` and ``AGENT_PREFIX``."""
    install_file: str | None = None
    """File with that script, beside the configuration file."""
    install_env: Variables = Field(default_factory=dict)
    """Further variables of the script; values may be ``${VAR}`` templates."""
    install_timeout_sec: Seconds = DEFAULT_INSTALL_TIMEOUT_SECONDS
    """Limit of the script in seconds."""
    probe: Argv = ()
    """Command that prints the version, run after ``install``."""
    command: Argv = ()
    """Command of a turn, with placeholders."""
    instruction: InstructionBy = "file"
    """How the command gets its instruction."""
    continue_command: Argv | None = None
    """Command that continues the session; unset: it cannot."""
    session: Annotated[str, AfterValidator(_session_pattern)] | None = None
    """Regular expression with one group that finds the session's name in the output."""
    model_flag: Flag = ()
    """Part of the command when there is a model."""
    env: Variables = Field(default_factory=dict)
    """Variables of the command; values may be ``${VAR}`` templates."""
    required_env: Groups = ()
    """Variables of the host that must be set; of a list in the list, one of them."""
    provider_env: dict[str, Strings] = Field(default_factory=dict)
    """The model's provider to variables of the host, one of which must be set."""
    mcp_config: McpConfig | None = None
    """How it is told of MCP servers: a table, or a function ``module:name``."""
    mcp_flag: Flag = ()
    """Part of the command when there are MCP servers."""
    skills: SandboxPath | None = None
    """Folder in the sandbox where skills go."""
    trajectory: str | None = None
    """``atif``, or a function ``module:name``."""
    trajectory_files: Strings = ()
    """Files in the sandbox that ``trajectory`` reads."""
    timeout_sec: Seconds | None = None
    """Cap of a turn in seconds."""
    user: User | None = None
    """User of the command where the task names none."""
    network: bool = True
    """Whether it needs the network."""
    failures: Annotated[tuple[FailureTable, ...], Strict(False)] = ()
    """What the ends of runs mean, the first that matches."""


Lookup: TypeAlias = Callable[[str], AgentDeclaration]


def read_table(
    name: str,
    raw: object,
    *,
    file: Path,
    path: tuple[str, ...],
    base: Lookup,
) -> AgentDeclaration:
    """The declaration of one table.

    ``path`` is where the tables of agents are in ``file``; ``base`` finds the agent that the
    table extends.

    Raises:
        SettingsError: every problem, one a line, with file and key.
    """
    found = Findings()
    place = (*path, name)
    label = f"{file.name}: [{'.'.join(place)}]"
    if not isinstance(raw, dict):
        raise SettingsError(f"{label}: must be a table")
    for line in unknown_keys(raw, AgentTable, place):
        found.problem(file.name, line)
    table = validate(raw, AgentTable, file.name, found, place)
    if found.problems:
        raise SettingsError("\n".join(map(str, found.problems)))
    if "install" in raw and "install_file" in raw:
        raise SettingsError(f"{label}: install and install_file exclude each other")
    try:
        return _declaration(name, table, raw, file.parent, base)
    except SettingsError as error:
        if str(error).startswith(f"{file.name}: "):  # of the table that it extends
            raise
        raise SettingsError(f"{label}: {error}") from error


def _declaration(
    name: str,
    table: AgentTable,
    given: Mapping[str, Any],
    folder: Path,
    base: Lookup,
) -> AgentDeclaration:
    fields = _fields(table, given, folder)
    if table.extends is None:
        if not table.command:
            raise SettingsError("command is missing")
        return AgentDeclaration(name, **fields)
    extended = base(table.extends)
    if "env" in fields:
        fields["env"] = {**extended.env, **fields["env"]}
    return replace(extended, name=name, **fields)


def _fields(
    table: AgentTable, given: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """The fields of a declaration that the table sets, the others left to its base."""
    plain = {
        key: getattr(table, key)
        for key in (
            *("description", "version", "install", "probe", "command", "instruction"),
            *("continue_command", "install_env", "env", "required_env", "provider_env"),
            *("mcp_flag", "skills"),
            *("trajectory_files", "timeout_sec", "user", "network"),
        )
        if key in given
    }
    if "install_timeout_sec" in given:
        plain["install_timeout_seconds"] = table.install_timeout_sec
    if table.install_file is not None:
        plain["install"] = _script(folder / table.install_file)
    if "model_flag" in given:
        plain["model_flag"] = _with_model(table.model_flag)
    if "session" in given:
        plain["session"] = _session_finder(table.session or "()")
    if table.mcp_config is not None:
        plain["mcp_config"] = (
            _function(table.mcp_config)
            if isinstance(table.mcp_config, str)
            else json_writer(table.mcp_config.path, key=table.mcp_config.key)
        )
    if table.trajectory is not None:
        is_atif = table.trajectory == ATIF
        plain["trajectory"] = read_atif if is_atif else _function(table.trajectory)
    if "failures" in given:
        rules = [
            FailureRule(rule.pattern, rule.exit_code, rule.kind, rule.status)
            for rule in table.failures
        ]
        plain["failure"] = by_rules(rules)
    return plain


def _function(name: str) -> Any:
    if ":" not in name:
        raise SettingsError(f"{name!r} is no function; write module:function")
    found = load_attribute(name)
    if not callable(found):
        raise SettingsError(f"{name!r} is {type(found).__name__}, expected a function")
    return found


def _script(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"install_file: {path} cannot be read: {error.strerror}"
        ) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"install_file: {path} is not UTF-8") from error


def _with_model(flag: tuple[str, ...]) -> tuple[str, ...]:
    """``--model`` alone takes the model as the next argument."""
    if template.placeholders(flag) & template.OF_THE_MODEL or not flag:
        return flag
    return (*flag, "{model}")


def _session_finder(pattern: str) -> Callable[[CommandRun], str | None]:
    def find(run: CommandRun) -> str | None:
        found = re.search(pattern, run.output) or re.search(pattern, run.errors)
        return found[1] if found else None

    return find


def read_atif(run: CommandRun) -> AgentResult:
    """The result of a command that writes its trajectory in ATIF itself.

    The final message is the last one of the agent, else the standard output.
    """
    from pytest_harbor.agents.trajectory import read_trajectory
    from pytest_harbor.agents.trajectory_totals import totals

    text = run.output.strip() or None
    if not run.files:
        return AgentResult(text=text, warnings=("the agent wrote no trajectory",))
    path, document = list(run.files.items())[-1]
    try:
        trajectory = read_trajectory(document)
    except TrajectoryError as error:
        problem = str(error).splitlines()[0]
        return AgentResult(text=text, warnings=(f"{path} is no trajectory: {problem}",))
    messages = [
        step.message
        for step in trajectory.steps
        if step.source == "agent" and isinstance(step.message, str) and step.message
    ]
    numbers = totals(trajectory)
    return AgentResult(
        text=messages[-1] if messages else text,
        trajectory=json.loads(document),
        input_tokens=numbers.input_tokens,
        output_tokens=numbers.output_tokens,
        cost_usd=numbers.cost_usd,
    )
