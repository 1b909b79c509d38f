"""Every error of pytest-harbor, and every ``failure_kind`` it can report.

::

    HarborError
    ├── SettingsError            an option, ini key or marker has a bad value
    ├── TaskLoadError            a task folder cannot be loaded (all problems at once)
    ├── TaskRefused              refused at seed, before any agent runs; never retried
    ├── AgentError               the agent failed; the outcome policy decides what follows
    ├── UnsupportedByAgent       the agent's card does not offer what the task needs
    ├── MissingExtra             an optional dependency is not installed
    ├── ProtocolError            a server's answer cannot be read (HTML for JSON, too large)
    │   ├── ServerUnreachable    no connection, or it broke before the answer came
    │   │   └── ServerTimeout    no answer in time
    │   └── ServerRefused        the server answered with an error
    ├── TrajectoryError          a document is no trajectory in ATIF v1.7
    ├── JudgeError               a judge gave no answer that can be read as grades
    ├── StepError                a step of a step task failed
    │   ├── NotDeployed          it names an env, agent or sandbox that is not there
    │   ├── AlreadyDeployed      it deploys under a name that is taken
    │   └── ServerNotReady       an env or agent server did not come up, or died
    └── SandboxError
        ├── SandboxUnavailable   this kind of sandbox is not there (no daemon, no bwrap)
        ├── SandboxStartFailed   the sandbox or its image could not be brought up; retried unless final
        │   ├── InstallFailed    the agent's software could not be installed; retried
        │   └── BuildFailed      an instruction of a Dockerfile failed (local sandbox); final
        ├── SandboxLost          the sandbox died or cannot run commands; retried
        ├── TransferFailed       files could not be copied in or out; retried
        └── UnsupportedByProvider  the provider cannot do what the task asks; refused

A command that exits non-zero or overruns its time is a result, never an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Spec 19.5: low-cardinality names of what went wrong. Ours carry the prefix.
NO_REWARD_FILE: Final = "harbor:no_reward_file"
INVALID_REWARD_FILE: Final = "harbor:invalid_reward_file"
STEP_SETUP_FAILED: Final = "harbor:step_setup_failed"
STEP_WORKDIR_FAILED: Final = "harbor:step_workdir_failed"
STEP_HEALTHCHECK_FAILED: Final = "harbor:step_healthcheck_failed"
TASK_DEADLINE: Final = "harbor:task_deadline"
ENVIRONMENT_UNHEALTHY: Final = "harbor:environment_unhealthy"
SANDBOX_UNAVAILABLE: Final = "harbor:sandbox_unavailable"
SANDBOX_START_FAILED: Final = "harbor:sandbox_start_failed"
SANDBOX_LOST: Final = "harbor:sandbox_lost"
TRANSFER_FAILED: Final = "harbor:transfer_failed"
REFUSED: Final = "harbor:refused"
PROTOCOL_ERROR: Final = "harbor:protocol_error"
SERVER_UNREACHABLE: Final = "harbor:server_unreachable"
SERVER_REFUSED: Final = "harbor:server_refused"
STEP_FAILED: Final = "harbor:step_failed"
SERVER_NOT_READY: Final = "harbor:server_not_ready"
JUDGE_ERROR: Final = "harbor:judge_error"
VERIFIER_ERROR: Final = "verifier_error"
AGENT_TIMEOUT: Final = "agent_timeout"
AGENT_SETUP_TIMEOUT: Final = "agent_setup_timeout"
AGENT_RUN_ERROR: Final = "agent_run_error"
AGENT_COULD_NOT_RUN: Final = "agent_could_not_run"
AGENT_INSTALL_FAILED: Final = "agent_install_failed"
AGENT_MISSING_KEY: Final = "agent_missing_key"
AGENT_AUTH_ERROR: Final = "agent_auth_error"
AGENT_CONFIG_ERROR: Final = "agent_config_error"
AGENT_RATE_LIMITED: Final = "agent_rate_limited"
AGENT_REQUEST_FAILED: Final = "agent_request_failed"
AGENT_TOKEN_LIMIT: Final = "agent_token_limit"  # noqa: S105 - no secret
AGENT_TURN_LIMIT: Final = "agent_turn_limit"
CANCELLED: Final = "cancelled"
INTERNAL_ERROR: Final = "harbor:internal_error"


class HarborError(Exception):
    """Root of the family. ``kind`` is the ``failure_kind`` of a record."""

    kind: str = INTERNAL_ERROR

    @property
    def message(self) -> str:
        """The text for people: what happened, where, and what to do."""
        return str(self)


class SettingsError(HarborError, ValueError):
    """Raised when an option, an ini key or a marker has a value we cannot use."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a task or dataset.

    ``where`` is a file relative to the task folder, with the key if there is one
    (``task.toml: [agent].timeout_sec``); ``rule`` is the refusal's ID in the
    specification (``X27``), for tests and documentation.
    """

    where: str
    what: str
    rule: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


class TaskLoadError(HarborError, ValueError):
    """Raised when a task folder cannot be loaded. Carries every problem found.

    ``warnings`` refuse nothing, and may be why: a misspelt key is one that is missing.
    """

    kind = REFUSED

    def __init__(
        self,
        folder: str,
        problems: tuple[Problem, ...],
        warnings: tuple[str, ...] = (),
    ) -> None:
        lines = [*map(str, problems), *(f"warning: {text}" for text in warnings)]
        super().__init__("\n".join(lines))
        self.folder = folder
        self.problems = problems
        self.warnings = warnings


class TaskRefused(HarborError):
    """Raised at seed when a task cannot be run as it is (spec 19.6, X30 and on).

    ``kind`` is ``agent_missing_key`` where nothing but a key of the agent's is missing.
    """

    def __init__(self, message: str, *, rule: str = "", kind: str = REFUSED) -> None:
        super().__init__(message)
        self.rule = rule
        self.kind = kind


class AgentError(HarborError):
    """Raised by an agent that failed.

    ``kind`` is a name of the shared vocabulary (``agent_run_error``,
    ``agent_request_failed``, ...), ``status`` the HTTP status when a request was
    the cause. ``harbor_agent_outcome_policy`` reads both.
    """

    def __init__(
        self, message: str, kind: str = AGENT_RUN_ERROR, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


class UnsupportedByAgent(HarborError):
    """Raised when a task needs an extension that the agent's card does not list."""

    kind = REFUSED


class MissingExtra(HarborError, ImportError):
    """Raised when an optional dependency is needed and not installed; says which."""

    kind = REFUSED


class ProtocolError(HarborError):
    """Raised when a server's answer is not what its protocol allows.

    ``url`` is the address that was called.
    """

    kind = PROTOCOL_ERROR

    def __init__(self, message: str, *, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class ServerUnreachable(ProtocolError):
    """Raised when a server cannot be connected to, or hangs up before it answers.

    ``sent`` is false when the request certainly never got there, so that it may be
    sent again.
    """

    kind = SERVER_UNREACHABLE

    def __init__(self, message: str, *, url: str = "", sent: bool = True) -> None:
        super().__init__(message, url=url)
        self.sent = sent


class ServerTimeout(ServerUnreachable):
    """Raised when a server does not answer in time."""


class ServerRefused(ProtocolError):
    """Raised when a server answers with an error.

    ``status`` is the HTTP status; ``code`` the JSON-RPC code or the endpoint's own name
    of the error; ``body`` the start of what it said; ``retry_after_seconds`` when it
    asks to be asked again.
    """

    kind = SERVER_REFUSED

    def __init__(
        self,
        message: str,
        *,
        url: str = "",
        status: int | None = None,
        code: int | str | None = None,
        body: str = "",
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message, url=url)
        self.status = status
        self.code = code
        self.body = body
        self.retry_after_seconds = retry_after_seconds


class TrajectoryError(HarborError, ValueError):
    """Raised when a document is no trajectory in ATIF; names every problem."""


class JudgeError(HarborError):
    """Raised when a judge cannot be asked, or its answers are no grades. Never a score.

    ``answers`` is what it said, one text per attempt.
    """

    kind = JUDGE_ERROR

    def __init__(self, message: str, answers: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.answers = answers


class StepError(HarborError):
    """Raised when a step of a step task fails (its spec 2.2).

    ``kind`` tells infrastructure from what the task or the agent did wrong.
    """

    kind = STEP_FAILED

    def __init__(self, message: str, kind: str | None = None) -> None:
        super().__init__(message)
        if kind is not None:
            self.kind = kind


class NotDeployed(StepError, LookupError):
    """Raised when a step names an env, agent or sandbox that the run does not have."""


class AlreadyDeployed(StepError):
    """Raised when a step deploys under a name that the run has already given."""


class ServerNotReady(StepError):
    """Raised when the server of an env or agent does not come up in time, or has died.

    The message has the last lines of its log.
    """

    kind = SERVER_NOT_READY


class SandboxError(HarborError):
    """Root of what a provider raises; each is about infrastructure, not a score."""


class SandboxUnavailable(SandboxError):
    """Raised when this kind of sandbox does not exist here (no daemon, no bwrap)."""

    kind = SANDBOX_UNAVAILABLE


class SandboxStartFailed(SandboxError):
    """Raised when an image cannot be built or found, or the sandbox does not start.

    ``is_final`` is true when it would fail the same way again (an image that does not
    exist, a build whose own command failed), so that nobody tries.
    """

    kind = SANDBOX_START_FAILED

    def __init__(self, message: str, *, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class InstallFailed(SandboxStartFailed):
    """Raised when an agent's install script fails; the text has its last lines."""

    kind = AGENT_INSTALL_FAILED


class BuildFailed(SandboxStartFailed):
    """Raised when an instruction of a Dockerfile fails on the local sandbox.

    The text has its line and the end of its output.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, is_final=True)


class SandboxLost(SandboxError):
    """Raised when a started sandbox died or can no longer run a command."""

    kind = SANDBOX_LOST


class TransferFailed(SandboxError, OSError):
    """Raised when files cannot be copied into or out of a sandbox.

    ``blocked`` is true when the sandbox's own content is in the way (a folder
    where a file must go), which a step's ``workdir/`` merge tells apart (spec 12.2).
    """

    kind = TRANSFER_FAILED

    def __init__(self, message: str, *, blocked: bool = False) -> None:
        super().__init__(message)
        self.blocked = blocked


class UnsupportedByProvider(SandboxError):
    """Raised when a task asks for something that the provider does not have.

    The message names the key and the provider. The task is refused, not retried.
    """

    kind = REFUSED
