"""The seam between the engines and the places where commands run.

A :class:`Provider` brings up :class:`Sandbox` objects from an
:class:`EnvironmentSpec`. Every provider keeps the same contract, and one conformance
suite (``tests/sandboxes/conformance.py``) runs against each of them.

Rules for all methods:

- Times are seconds, sizes MiB where the name says so, bytes otherwise.
- Paths in the sandbox are absolute POSIX strings; host paths are ``Path``.
- A command's non-zero exit or timeout is a result. The exceptions are those of
  ``errors.SandboxError``, named at each method.
- Everything is safe to cancel. ``stop`` and ``aclose`` shield themselves.
- The host's environment never reaches the sandbox.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, TypeAlias

from pytest_harbor.errors import UnsupportedByProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Network, User
from pytest_harbor.sandboxes.transfer_types import (
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)

Tell: TypeAlias = Callable[[str], None]
"""Takes a line of progress for people, in the event loop. Must not block."""

MAX_CAPTURED_BYTES = 1024 * 1024
"""Output kept in memory per stream; a log file takes far more."""

NOTE = "note: "
"""What warnings begin with that only explain a failure: nobody need mind them else."""

TASK_LABEL = "pytest-harbor.task"
"""Label of everything that is made for a task; its value is the task's ID."""

KILLED = 137
"""The exit code of what ended by SIGKILL."""

VERIFIER_TOOLS = ("bash", "timeout", "tar", "gzip", "find")
"""What a verifier's image must bring (spec 2)."""


@dataclass(frozen=True)
class Capabilities:
    """What a provider found out about itself by trying (``Provider.probe``).

    ``reason`` says why it is not available and what to do. ``mode`` is the text for
    the terminal header (``bubblewrap, root``), ``notes`` further lines for it.
    ``isolation`` goes into each record.
    """

    available: bool
    mode: str = ""
    reason: str = ""
    isolation: str = ""
    notes: tuple[str, ...] = ()
    concurrent: bool = True
    """False when episodes run one at a time (in-place mode)."""
    groups: bool = False
    """True when a user may be ``name:group`` (spec 15)."""
    switches_network: bool = False
    """True when its sandboxes have :meth:`Sandbox.set_network`."""


@dataclass(frozen=True)
class Swept:
    """What a sweep came to: one line for people about each thing."""

    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What ``Sandbox.keep`` left up, with the command that removes it."""


@dataclass(frozen=True)
class ExecResult:
    """How a command ended.

    ``exit_code`` is ``128 + n`` after signal n and ``None`` after a timeout.
    ``stdout`` and ``stderr`` hold at most the first and last parts of 1 MiB each, decoded
    with replacement; ``truncated`` is true when something was left out.
    """

    exit_code: int | None
    stdout: str
    stderr: str
    timed_out: bool = False
    truncated: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """True when the command ended by itself with exit code 0."""
        return self.exit_code == 0

    @property
    def output(self) -> str:
        """Both streams, standard output first."""
        return self.stdout + self.stderr


class Process(ABC):
    """A command started with :meth:`Sandbox.spawn` that runs on by itself."""

    @abstractmethod
    async def wait(self) -> ExecResult:
        """Wait until the command ends. Raises SandboxLost."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the command's whole process tree; returns when it is gone."""


class PipedProcess(Process):
    """A command started with :meth:`Sandbox.spawn_piped`. :meth:`kill` it at last, always.

    One task may receive while another sends.
    """

    @abstractmethod
    async def receive(self) -> bytes:
        """The next bytes of its standard output; empty when no more come."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Write all of ``data`` to its standard input, as fast as it reads.

        Raises:
            OSError: nobody reads any more.
        """


class Sandbox(ABC):
    """One running sandbox. Made by :meth:`Provider.start`, ended by :meth:`stop`."""

    id: str
    """Name a person can use to enter it (``docker exec -it <id> bash``)."""
    provider: str
    workdir: str
    default_user: User | None
    is_disposable: bool = True
    """False: what a command changes outside the task's own folders outlives the sandbox."""
    unenforced: tuple[str, ...] = ()
    """What the task asked for and this sandbox could not be given, a line each."""
    oom_kills: int = 0
    """Processes that ran out of memory so far, as far as commands have told."""
    warnings: Sequence[str] = ()
    """What a person should hear of how it was started."""

    @property
    def services(self) -> Mapping[str, Sandbox]:
        """The other services of its Compose file by name; they end with it (spec 18)."""
        return {}

    @abstractmethod
    async def exec(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout_seconds: float | None = None,
        log: Path | None = None,
        error_log: Path | None = None,
    ) -> ExecResult:
        """Run a command to its end.

        A string is run by ``sh -c``, a list as it is. ``user`` and ``cwd`` default
        to the sandbox's, ``env`` is laid over the sandbox's own. ``log`` receives every
        byte of both streams as they come (appended); with ``error_log`` beside it, those
        of standard error go there instead. After ``timeout_seconds`` the whole
        tree of this command is killed, double forks and new sessions too, and nothing of
        earlier commands; output so far is kept. A process left in the background that
        holds the streams does not delay the result.

        A command that does not exist gives exit code 127, one that cannot be
        executed 126.

        Raises:
            SandboxLost: the sandbox died, or cannot run anything.
            UnsupportedByProvider: the provider cannot switch to ``user``.
        """

    @abstractmethod
    async def spawn(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> Process:
        """Start a command and return at once. Raises as :meth:`exec`."""

    async def spawn_piped(
        self,
        command: str | Sequence[str],
        *,
        user: User | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> PipedProcess:
        """As :meth:`spawn`, to be talked to; ``log`` receives its standard error alone."""
        raise UnsupportedByProvider(
            f"nobody can talk to a command in a {self.provider} sandbox"
        )

    def expect_command(self, user: User | None = None) -> None:  # noqa: B027 - optional
        """Hint that a command of ``user`` comes right after the next transfer.

        A provider may get ready for it meanwhile; ``user`` is that of :meth:`exec`.
        """

    @abstractmethod
    async def upload(
        self, uploads: Sequence[Upload], *, empty: Sequence[str] = ()
    ) -> None:
        """Copy files in, all in one transfer, after emptying the folders ``empty``.

        Emptying works from outside the agent's control: a link, a file or an
        unwritable folder in the place of an ``empty`` folder is replaced by an empty folder,
        root-owned, mode 0755 (``/logs/verifier`` and ``/logs/agent``: 0777).

        Raises:
            TransferFailed: not possible; ``blocked`` when the sandbox's own content
                is in the way. Also when something survives the emptying.
            SandboxLost: the sandbox died.
        """

    @abstractmethod
    async def download(
        self, downloads: Sequence[Download], *, limits: TransferLimits | None = None
    ) -> list[Downloaded]:
        """Copy files out. Nothing of it can reach outside its ``target``.

        A missing or unreadable source is a result, not an error, and so is one that
        passes a cap of ``limits`` (``failed``, with the reason). setuid and setgid bits,
        devices, FIFOs and links that leave the source are dropped.

        Raises:
            TransferFailed: the host cannot write.
            SandboxLost: the sandbox died.
        """

    @abstractmethod
    async def initial_tools(self) -> frozenset[str]:
        """Which of ``VERIFIER_TOOLS`` were there when the sandbox started."""

    async def address(self) -> str:
        """The IP address at which this host reaches the servers in it.

        Other sandboxes of its provider reach them there, too. A loopback address says that it shares the host's network, ports included.

        Raises:
            UnsupportedByProvider: nobody can reach it.
            SandboxLost: it died.
        """
        raise UnsupportedByProvider(
            f"a server in a {self.provider} sandbox cannot be reached from outside"
        )

    async def host_address(self) -> str:
        """The IP address at which commands in it reach this host's servers.

        Other than loopback, it reaches those only that listen on more than loopback.
        Raises as :meth:`address`.
        """
        raise UnsupportedByProvider(
            f"commands in a {self.provider} sandbox cannot reach this host"
        )

    async def set_network(self, network: Network) -> None:
        """Give it another of ``EnvironmentSpec.phase_networks``, or its own again.

        Connections through the one before are cut. Services are not touched.

        Raises:
            UnsupportedByProvider: its network is what it is.
            SandboxLost: it died, or is left without a network.
        """
        raise UnsupportedByProvider(
            f"{network.mode!r}: the network of a {self.provider} sandbox cannot be switched"
        )

    async def network_refusals(self) -> Sequence[str]:
        """What its allowlist refused since last asked, a line for people; often none.

        Raises:
            SandboxLost: what lets the allowed hosts through is gone.
        """
        return ()

    async def start_command(self) -> tuple[str, ...]:
        """What the image runs by itself, entrypoint first; empty when there is none.

        Nothing runs it but :meth:`spawn`. Raises SandboxLost.
        """
        return ()

    @abstractmethod
    async def stop(self) -> None:
        """End it and leave nothing. May be called again; never cancelled half-way.

        Slow removal may go on in the background until ``Provider.aclose``.
        """

    @abstractmethod
    def how_to_enter(self) -> str:
        """The command that opens a shell in it, and how to remove it."""

    async def keep(self) -> None:
        """Leave it up for a person: neither ``aclose`` nor a sweep removes it any more.

        ``id`` may change with it.

        Raises:
            UnsupportedByProvider: it cannot outlive the session.
            SandboxLost: the sandbox died.
        """
        raise UnsupportedByProvider(
            f"a {self.provider} sandbox ends with the session and cannot be kept; "
            "use --harbor-sandbox docker to look around in one"
        )

    async def halt(self) -> None:
        """End its own processes for good, and let its services run on until ``stop``.

        Nothing can be run in it afterwards (SandboxLost). One without services is stopped.
        """
        await self.stop()

    async def set_default_user(self, user: User | None) -> None:
        """Make ``user`` the default of :meth:`exec` (spec 15). Raises SandboxLost."""
        self.default_user = user

    async def read_bytes(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> bytes | None:
        """The content of a file, cut at ``max_bytes``; ``None`` when it is none."""
        result = await self.exec(
            ["head", "-c", str(max_bytes), "--", path], user=0, cwd="/"
        )
        return result.stdout.encode() if result.ok else None

    async def read_text(
        self, path: str, *, max_bytes: int = MAX_CAPTURED_BYTES
    ) -> str | None:
        """As :meth:`read_bytes`, decoded with replacement."""
        content = await self.read_bytes(path, max_bytes=max_bytes)
        return None if content is None else content.decode(errors="replace")


class Provider(ABC):
    """Brings up sandboxes of one kind. One instance serves a whole process."""

    name: ClassVar[str]

    @abstractmethod
    async def probe(self) -> Capabilities:
        """Find out by trying whether and how this provider works here. Cached."""

    @abstractmethod
    def check(self, spec: EnvironmentSpec, users: Sequence[User | None]) -> None:
        """Refuse what the provider cannot do, before anything starts.

        ``users`` are all users that the episode's commands will run as.

        Raises:
            UnsupportedByProvider: names the key and the provider.
        """

    async def prepare(  # noqa: B027 - not every kind has something to prepare
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None = None,
    ) -> None:
        """Pull or build what a later ``start`` of ``spec`` needs, as far as that is known.

        For sandboxes that start only after an agent has worked: what is not to be had is
        found out before. Raises as :meth:`start`.
        """

    @abstractmethod
    async def start(
        self,
        spec: EnvironmentSpec,
        *,
        name: str,
        labels: Mapping[str, str],
        tell: Tell | None = None,
    ) -> Sandbox:
        """Build or find the image, start a sandbox, bring in ``spec.files``.

        The sandbox has its working directory, ``/tests`` does not exist yet, and
        ``/logs/agent``, ``/logs/verifier`` and ``/logs/artifacts`` are writable for everybody.
        ``labels`` are put on everything that outlives the process, beside the
        provider's own (session and owner). ``tell`` hears of what takes long, a pull or
        a build, every few seconds.

        Raises:
            SandboxUnavailable: this kind of sandbox is not there.
            SandboxStartFailed: image or sandbox did not come up; the text has the
                last lines of the log.
            InstallFailed: ``spec.install`` did not come to its end, likewise.
            UnsupportedByProvider: as :meth:`check`.
        """

    @abstractmethod
    async def sweep(self) -> Swept:
        """Remove what dead owners left."""

    @abstractmethod
    async def aclose(self) -> None:
        """Finish removals, end what still runs. The instance cannot be used again."""
