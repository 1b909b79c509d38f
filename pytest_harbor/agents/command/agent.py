"""The agent that runs a declared command in the sandbox, turn by turn."""

from __future__ import annotations

import hashlib
import re
import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from pytest_harbor.agents.api import AgentNeeds, AgentResult, AgentTurn
from pytest_harbor.agents.command import placing, template
from pytest_harbor.agents.command.declaration import AgentDeclaration, CommandRun
from pytest_harbor.agents.command.failures import NOT_FOUND_TEXT, default_failure
from pytest_harbor.agents.command.needs import needs_of
from pytest_harbor.errors import (
    AGENT_RUN_ERROR,
    AGENT_TIMEOUT,
    AgentError,
    TransferFailed,
)
from pytest_harbor.sandboxes.api import ExecResult, Sandbox
from pytest_harbor.sandboxes.transfer_types import Upload
from pytest_harbor.tasks.folder.plan_types import EpisodePlan
from pytest_harbor.tasks.folder.templates import TEMPLATE

LOGS: Final = "/logs/agent"
MAX_TEXT_CHARS: Final = 100_000
"""Of a final message; a command without a parser may print anything."""

# $1 the folder that goes before the PATH (may be empty), then the command.
WRAPPER: Final = f"""\
[ -z "$1" ] || PATH=$1:$PATH
export PATH
shift
command -v "$1" >/dev/null 2>&1 || {{ echo "{NOT_FOUND_TEXT} $1" >&2; exit 127; }}
exec "$@"
"""
# It comes from the output, and goes into a command and into patterns of files.
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
T = TypeVar("T")


@dataclass
class _Session:
    """A conversation with the CLI, in one sandbox (spec 16)."""

    home: str
    version: str | None
    name: str = field(default_factory=lambda: str(uuid.uuid4()))
    is_named: bool = True
    """False: the CLI names its sessions itself, and has not yet."""
    placed: tuple[str, ...] = ()
    """Files that go when the session closes."""
    mcp_config: str | None = None
    trajectories: list[Mapping[str, Any]] = field(default_factory=list)


class CommandAgent:
    """Runs a declaration's command: once per turn, within the turn's budget.

    The instruction reaches it byte for byte, in a file or on standard input, and never as part
    of a command line. Secrets are in the command's environment alone.
    """

    slack_seconds = 60.0
    """To read what a command left that ran out of its time."""

    def __init__(
        self,
        declaration: AgentDeclaration,
        *,
        model: str | None = None,
        name: str | None = None,
    ) -> None:
        self.declaration = declaration
        self.model = model
        self.name = name or declaration.name
        """As it was asked for, version included."""
        self._sessions: WeakKeyDictionary[Sandbox, _Session] = WeakKeyDictionary()
        self._known_files: WeakKeyDictionary[Sandbox, dict[str, bytes]] = (
            WeakKeyDictionary()
        )
        """Digests of what earlier turns left in ``trajectory_files``."""

    @property
    def can_continue(self) -> bool:
        """True when a later turn can go on with the session (spec 16)."""
        return self.declaration.can_continue

    @property
    def takes_mcp_servers(self) -> bool:
        """True when it can be told of MCP servers."""
        return self.declaration.mcp_config is not None

    @property
    def takes_skills(self) -> bool:
        """True when it can be given skills."""
        return self.declaration.skills is not None

    def needs(self, plan: EpisodePlan, environ: Mapping[str, str]) -> AgentNeeds:
        """What it needs, or lacks, for an episode."""
        return needs_of(
            self.declaration,
            self.name,
            self.model,
            plan.agent_network,
            environ,
        )

    async def run(self, turn: AgentTurn) -> AgentResult:
        """Run one turn.

        Raises:
            AgentError: it could not be started.
            SandboxError: infrastructure failed.
        """
        warnings: list[str] = []
        session = await self._session(turn, warnings)
        async with self._instruction(turn) as path:
            result = await self._exec(turn, session, path)
        run = await self._look(turn, session, result)
        if self.declaration.session is not None and not session.is_named:
            name = self._ask(self.declaration.session, run, "session", warnings)
            if name is not None and _SESSION_NAME.fullmatch(name):
                session.name, session.is_named = name, True
        done = self._read(run, warnings)
        if done.trajectory is not None:
            session.trajectories.append(done.trajectory)
        return replace(
            done,
            exit_code=result.exit_code,
            failure=self._failure(turn, run, result, warnings),
            warnings=(*done.warnings, *warnings),
        )

    async def end_session(self, sandbox: Sandbox) -> None:
        """Take away what was placed for the session.

        Raises:
            SandboxError: infrastructure failed.
        """
        session = self._sessions.pop(sandbox, None)
        if session is not None and session.placed:
            await placing.remove(sandbox, session.placed)

    async def _session(self, turn: AgentTurn, warnings: list[str]) -> _Session:
        if turn.continues:
            session = self._sessions.get(turn.sandbox)
            if session is None or not session.is_named:
                raise AgentError(
                    f"{self.name} cannot go on: the turn before named no session",
                    AGENT_RUN_ERROR,
                )
            return session
        session = await self._open(turn, warnings)
        self._sessions[turn.sandbox] = session
        return session

    async def _open(self, turn: AgentTurn, warnings: list[str]) -> _Session:
        declared = self.declaration
        home, version = await placing.look_round(turn.sandbox, turn.user, declared)
        is_named = declared.session is None
        session = _Session(home, version or declared.version, is_named=is_named)
        if turn.mcp_servers and declared.mcp_config is not None:
            files = placing.mcp_files(
                declared.mcp_config, turn.mcp_servers, self.name, warnings
            )
            paths = [placing.expanded(file.path, home) for file in files]
            # Noted before they are written: a half-written one goes, too.
            session.placed = tuple(paths)
            session.mcp_config = paths[0] if paths else None
            self._sessions[turn.sandbox] = session
            for path, file in zip(paths, files, strict=True):
                await placing.place(turn.sandbox, turn.user, path, file.content)
        if (turn.skills_dir or turn.skills) and declared.skills is not None:
            target = placing.expanded(declared.skills, home)
            warnings += await placing.place_skills(turn, target)
        return session

    def _instruction(self, turn: AgentTurn) -> _InstructionFile:
        is_file = self.declaration.instruction == "file"
        return _InstructionFile(turn, is_needed=is_file)

    async def _exec(
        self, turn: AgentTurn, session: _Session, instruction: str | None
    ) -> ExecResult:
        declared = self.declaration
        values: dict[str, str | None] = {
            **template.model_values(self.model),
            "instruction": instruction,
            "session": session.name,
            "mcp_config": session.mcp_config,
            "logs": LOGS,
            "prefix": declared.prefix,
            "workdir": turn.sandbox.workdir,
            "home": session.home,
        }
        command = declared.command
        if turn.continues and declared.continue_command is not None:
            command = declared.continue_command
        try:
            argv = template.argv(
                declared, command, values, has_servers=session.mcp_config is not None
            )
        except ValueError as error:
            raise AgentError(f"{self.name}: {error}", AGENT_RUN_ERROR) from error
        on_stdin = declared.instruction == "stdin"
        path = f"{declared.prefix}/bin" if declared.install is not None else ""
        return await turn.sandbox.exec(
            ["/bin/sh", "-c", WRAPPER, "sh", path, *argv],
            user=turn.user,
            env={"HOME": session.home, **self._env(turn, values)},
            stdin=_encoded(turn) if on_stdin else None,
            timeout_seconds=self._limit(turn),
            log=self._log(turn, "stdout"),
            error_log=self._log(turn, "stderr"),
        )

    def _env(self, turn: AgentTurn, values: template.Values) -> dict[str, str]:
        """The command's variables; those from the host are never looked into."""
        env: dict[str, str] = {}
        for name, value in turn.env.items():
            declared = self.declaration.env.get(name)
            is_literal = declared is not None and not TEMPLATE.fullmatch(declared)
            filled = template.fill(value, values) if is_literal else value
            if filled:
                env[name] = filled
        return env

    def _limit(self, turn: AgentTurn) -> float | None:
        limits = [turn.budget_seconds, self.declaration.timeout_sec]
        return min((limit for limit in limits if limit is not None), default=None)

    def _log(self, turn: AgentTurn, stream: str) -> Path:
        return turn.logs / f"{self.declaration.name}.{stream}.txt"

    async def _look(
        self, turn: AgentTurn, session: _Session, result: ExecResult
    ) -> CommandRun:
        declared = self.declaration
        read = anyio.to_thread.run_sync
        patterns = [
            filled
            for pattern in declared.trajectory_files
            if (
                filled := template.fill(
                    placing.expanded(pattern, session.home),
                    {"session": session.name, "logs": LOGS, "home": session.home},
                )
            )
        ]
        return CommandRun(
            instruction=turn.instruction,
            output=await read(_text, self._log(turn, "stdout")),
            errors=await read(_text, self._log(turn, "stderr")),
            exit_code=result.exit_code,
            files=self._new(
                turn.sandbox, await placing.read_files(turn.sandbox, patterns)
            ),
            model=self.model,
            version=session.version,
            session=session.name,
            index=turn.index,
            earlier=tuple(session.trajectories),
        )

    def _new(self, sandbox: Sandbox, files: Mapping[str, str]) -> dict[str, str]:
        """Those that are not as an earlier turn left them: nothing cleans them up.

        A command that writes none would be given the work of the turn before.
        """
        known = self._known_files.setdefault(sandbox, {})
        new = {}
        for path, content in files.items():
            digest = hashlib.sha256(content.encode(errors="replace")).digest()
            if known.get(path) != digest:
                known[path] = digest
                new[path] = content
        return new

    def _read(self, run: CommandRun, warnings: list[str]) -> AgentResult:
        if self.declaration.trajectory is not None:
            done = self._ask(self.declaration.trajectory, run, "trajectory", warnings)
            return done if isinstance(done, AgentResult) else AgentResult()
        text = run.output.strip()[-MAX_TEXT_CHARS:]
        return AgentResult(text=text or None)

    def _failure(
        self,
        turn: AgentTurn,
        run: CommandRun,
        result: ExecResult,
        warnings: list[str],
    ) -> AgentError | None:
        failure = None
        if self.declaration.failure is not None:
            failure = self._ask(self.declaration.failure, run, "failure", warnings)
        if result.timed_out:
            limit = self._limit(turn)
            assert limit is not None
            # Graded as it is; but whether it only waited for its model, people want to know.
            why = f"; it had met with: {failure}" if failure is not None else ""
            message = f"{self.name} ran out of its {limit:g} s{why}"
            return AgentError(message, AGENT_TIMEOUT)
        failure = failure or default_failure(run)
        if failure is None:
            return None
        message = f"{self.name}: {failure}"
        if self.declaration.network and turn.network != "public":
            message += (
                f" (the task's network is {turn.network!r}: can it reach its model?)"
            )
        return AgentError(message, failure.kind, failure.status)

    def _ask(
        self,
        function: Callable[[CommandRun], T],
        run: CommandRun,
        what: str,
        warnings: list[str],
    ) -> T | None:
        """Call a reader of what the command printed, which may be anything at all."""
        try:
            return function(run)
        except Exception as error:  # noqa: BLE001 - a bug in a reader costs no score
            warnings.append(
                f"{self.name}: {what} cannot be read from its output: "
                f"{type(error).__name__}: {error}"
            )
            return None


class _InstructionFile:
    """The instruction in a file of the sandbox, for as long as the command runs."""

    def __init__(self, turn: AgentTurn, *, is_needed: bool) -> None:
        self._turn = turn
        self._path = f"{LOGS}/.instruction-{secrets.token_hex(8)}.md"
        self._is_needed = is_needed

    async def __aenter__(self) -> str | None:
        if not self._is_needed:
            return None
        content = _encoded(self._turn)
        try:
            await self._turn.sandbox.upload([Upload(content, self._path)])
        except TransferFailed as error:
            if not error.blocked:
                raise
            # An earlier turn's doing: nobody may void a score by it.
            raise AgentError(
                f"the instruction cannot be placed in {LOGS}: {error}"
            ) from error
        return self._path

    async def __aexit__(self, *_: object) -> None:
        if self._is_needed:
            await placing.remove(self._turn.sandbox, [self._path])


def _encoded(turn: AgentTurn) -> bytes:
    return turn.instruction.encode(errors="surrogateescape")


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace") if path.exists() else ""
