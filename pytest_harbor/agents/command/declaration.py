"""What a command-line agent is. Declared, not coded.

A declaration comes from a table ``[tool.pytest_harbor.agents.<name>]``, from the hook
``pytest_harbor_agents`` or from the catalogue; :mod:`.tables` reads the first.

Placeholders stand in ``command``, ``continue_command``, ``model_flag``, ``mcp_flag``, the
values of ``env`` and ``trajectory_files``:

``{instruction}``  path of a file with the instruction (never its text)
``{model}``        the model that was asked for, ``provider/name`` as it was written
``{provider}``, ``{model_name}``  its parts before and after the first slash
``{session}``      the session: a new UUID, or what ``session`` found in the first turn
``{mcp_config}``   path of the first file that ``mcp_config`` wrote
``{logs}``         ``/logs/agent``
``{prefix}``       the folder that ``install`` fills
``{workdir}``, ``{home}``  the working directory, and the home of the agent's user

Any other text in braces is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from pytest_harbor.agents.api import AgentResult, McpServer
from pytest_harbor.errors import AgentError, SettingsError
from pytest_harbor.sandboxes.environment import User
from pytest_harbor.sandboxes.install_script import INSTALL_FOLDER

DEFAULT_INSTALL_TIMEOUT_SECONDS: Final = 900.0
AGENT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

__all__ = [
    "AgentDeclaration",
    "CommandRun",
    "FailureClassifier",
    "InstructionBy",
    "McpServer",
    "McpWriter",
    "PlacedFile",
    "SessionFinder",
    "TrajectoryParser",
    "UnsupportedServer",
]

InstructionBy: TypeAlias = Literal["file", "stdin"]


@dataclass(frozen=True)
class PlacedFile:
    """A file that is put into the sandbox for the agent's CLI, readable by its user.

    ``path`` is absolute or starts with ``~/``, the home of the agent's user. It is removed
    when the session closes.
    """

    path: str
    content: str


@dataclass(frozen=True)
class CommandRun:
    """One run of the command, as parsers and classifiers see it."""

    instruction: str
    output: str
    """Its whole standard output (up to 64 MiB), decoded with replacement."""
    errors: str
    """Its standard error, likewise."""
    exit_code: int | None
    """``None`` when it ran out of its time."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What of ``trajectory_files`` is new, or not as an earlier turn left it: path to content."""
    model: str | None = None
    version: str | None = None
    """What ``probe`` printed when it was installed, else the version asked for."""
    session: str = ""
    index: int = 0
    """The turn's number, from 0."""
    earlier: tuple[Mapping[str, Any], ...] = ()
    """Trajectories of this session's earlier turns; a log that holds the whole session
    has their steps, too, which the parser leaves out."""


McpWriter: TypeAlias = Callable[[Sequence[McpServer]], Sequence[PlacedFile]]
"""From servers to the files that make the CLI use them; the first is ``{mcp_config}``.

Raises ``UnsupportedServer`` for a transport that the CLI does not speak.
"""
TrajectoryParser: TypeAlias = Callable[[CommandRun], AgentResult]
"""From a run to its trajectory (ATIF v1.7, this turn alone), final message, tokens, cost.

Logs are the agent's own words: what cannot be read is left out, nothing is raised.
"""
FailureClassifier: TypeAlias = Callable[[CommandRun], AgentError | None]
"""What failed, or ``None`` for a run that did not (whatever its exit code says).

Called after every run, those with exit code 0 too. ``None`` and an exit code other than 0
is a failure of kind ``agent_run_error``.
"""
SessionFinder: TypeAlias = Callable[[CommandRun], str | None]
"""The name that the CLI itself gave its session in the first turn."""


class UnsupportedServer(ValueError):
    """Raised by an ``mcp_config`` writer for a server that its CLI cannot use."""


def _takes_file(command: Sequence[str]) -> bool:
    return any("{instruction}" in part for part in command)


@dataclass(frozen=True)
class AgentDeclaration:
    """A command-line agent: how it is installed, started, continued and read.

    Times are in seconds.
    """

    name: str
    command: tuple[str, ...]
    """Starts a turn in a new session. ``{model_flag}`` and ``{mcp_flag}`` as items of
    their own say where those parts go; without them they go to the end."""
    description: str = ""
    version: str | None = None
    """Installed unless ``name@version`` asks for another."""
    install: str | None = None
    """Bash script, run as root once per image and version with public network; its
    environment has ``AGENT_VERSION`` (may be empty) and ``AGENT_PREFIX``, the folder that
    is kept (``/opt/harbor-agents/<name>``). Its ``bin`` is first in the command's PATH.
    ``None``: the command is in the image already."""
    install_timeout_seconds: float = DEFAULT_INSTALL_TIMEOUT_SECONDS
    install_env: Mapping[str, str] = field(default_factory=dict)
    """Further variables of ``install``, with templates as ``env``: a proxy, a mirror. Another
    value is another installation."""
    probe: tuple[str, ...] = ()
    """Prints the version; run after ``install``, which fails with it."""
    instruction: InstructionBy = "file"
    """``stdin``: on standard input. ``file``: as ``{instruction}``, outside the working
    directory."""
    continue_command: tuple[str, ...] | None = None
    """Continues the session of the turn before; ``None``: this CLI cannot."""
    session: SessionFinder | None = None
    """``None``: ``{session}`` stays the UUID of ours that the first turn gets."""
    model_flag: tuple[str, ...] = ()
    """Part of the command when a model is asked for."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the command; a value may be ``${VAR}`` or ``${VAR:-default}`` as a whole.
    One that comes out empty, or needs a model or servers that are not there, is left out."""
    required_env: tuple[tuple[str, ...], ...] = ()
    """Groups of variable names of the host; one of each group must be set. They are passed
    on under their own names, unless ``env`` says otherwise."""
    provider_env: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The model's provider to variables of the host, one of which must be set for its models.
    Treated as a group of ``required_env``, so that keys of other providers stay on the host."""
    mcp_config: McpWriter | None = None
    """``None``: it takes no MCP servers."""
    mcp_flag: tuple[str, ...] = ()
    """Part of the command when there are MCP servers."""
    skills: str | None = None
    """Folder in the sandbox (``~/...`` or absolute) where skill folders go; ``None``: it
    takes none."""
    trajectory: TrajectoryParser | None = None
    """``None``: the command's standard output is the final message, and that is all."""
    trajectory_files: tuple[str, ...] = ()
    """Files (or patterns as in a shell) in the sandbox that ``trajectory`` reads."""
    timeout_sec: float | None = None
    """Cap of a turn; the smaller one of it and the task's budget counts."""
    user: User | None = None
    """User of the command where the task names none."""
    failure: FailureClassifier | None = None
    network: bool = True
    """``False``: it needs no network, so nobody is warned of a task without one."""

    def __post_init__(self) -> None:
        if problem := self._problem():
            raise SettingsError(f"agent {self.name!r}: {problem}")

    def _problem(self) -> str:
        if not AGENT_NAME.fullmatch(self.name):
            return (
                "a name has letters, digits, '.', '_' and '-', and starts with a letter "
                "or digit"
            )
        commands = {"command": self.command, "continue_command": self.continue_command}
        for key, command in commands.items():
            if command is not None and not command:
                return f"{key} is empty"
            if command and self.instruction == "file" and not _takes_file(command):
                return (
                    f"{key} does not say where the instruction is: put {{instruction}} "
                    'into it, or set instruction = "stdin"'
                )
        if self.probe and self.install is None:
            return "probe is run after install, and there is no install"
        return ""

    @property
    def prefix(self) -> str:
        """The folder that ``install`` fills."""
        return f"{INSTALL_FOLDER}/{self.name}"

    @property
    def can_continue(self) -> bool:
        """True when a session can go on in a later turn (spec 16)."""
        return self.continue_command is not None
