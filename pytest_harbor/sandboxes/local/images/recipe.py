"""From the text of a Dockerfile to what has to be done: pure decisions.

BuildKit's own parser (package ``dockerfile``) reads the file. What of it the local sandbox
does not do is refused here, with the line; nothing is skipped in silence.
"""

from __future__ import annotations

import platform
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

from pytest_harbor.errors import UnsupportedByProvider
from pytest_harbor.sandboxes.api import NOTE
from pytest_harbor.sandboxes.local.images.words import WordError, expand

SHELL: Final = ("/bin/sh", "-c")
IGNORED: Final = frozenset(
    {"EXPOSE", "HEALTHCHECK", "MAINTAINER", "STOPSIGNAL", "VOLUME"}
)
"""Instructions without an effect here; a note says so."""
_OTHERS: Final = frozenset({"ONBUILD"})
"""Instructions of Docker that the local sandbox does not have."""
_COPY_FLAGS: Final = frozenset({"chown", "chmod"})
_REMOTE: Final = re.compile(r"^(?:https?|ftp|git|ssh)://|^git@|\.git(?:#.*)?$")
_HEREDOC: Final = re.compile(r"""^\d*<<(-?)(['"]?)([^'"\s]+)\2$""")
_NO_TEXT: Final = re.compile("[\0\ud800-\udfff]")
_OTHER_ESCAPE: Final = re.compile(r"^#\s*escape\s*=\s*`", re.IGNORECASE)
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Run:
    """A command that is run, with everything that it sees."""

    line: int
    text: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    user: str | None


@dataclass(frozen=True)
class Copy:
    """Files of the context, and texts of the Dockerfile itself, that are copied."""

    line: int
    text: str
    sources: tuple[str, ...]
    texts: tuple[tuple[str, str], ...]
    """Name and content of heredocs."""
    target: str
    """Absolute; with a slash at its end it is a folder."""
    chown: str | None = None
    chmod: int | None = None
    is_add: bool = False


@dataclass(frozen=True)
class MakeFolder:
    """A working directory that has to exist."""

    line: int
    text: str
    path: str


Step: TypeAlias = "Run | Copy | MakeFolder"


@dataclass(frozen=True)
class Recipe:
    """A Dockerfile, every word of it expanded."""

    base: str
    base_line: int
    steps: tuple[Step, ...]
    env: Mapping[str, str]
    workdir: str
    user: str | None
    start_command: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def layers(self) -> tuple[tuple[Step, ...], ...]:
        """Steps that are kept together: what was copied, up to and with the next ``RUN``."""
        layers: list[tuple[Step, ...]] = []
        current: list[Step] = []
        for step in self.steps:
            current.append(step)
            if isinstance(step, Run):
                layers.append(tuple(current))
                current = []
        return (*layers, tuple(current)) if current else tuple(layers)


def read(text: str, name: str, path: str) -> Recipe:
    """Plan the build of a Dockerfile.

    ``name`` is what messages call it, ``path`` the ``PATH`` of its base.

    Raises:
        UnsupportedByProvider: names the line, and what of it is not possible.
    """
    return _Reading(name, path).run(text)


@dataclass
class _Reading:
    """The state that the instructions change, one after the other."""

    name: str
    path: str
    base: str = ""
    base_line: int = 0
    steps: list[Step] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    args: dict[str, str] = field(default_factory=dict)
    global_args: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    user: str | None = None
    shell: tuple[str, ...] = SHELL
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    ignored: dict[str, int] = field(default_factory=dict)
    line: int = 0

    def run(self, text: str) -> Recipe:
        for number, line in enumerate(text.splitlines(), 1):
            if not line.startswith("#"):
                break
            if _OTHER_ESCAPE.match(line):
                self.line = number
                self.refuse("another escape character")
        if found := _NO_TEXT.search(text):
            # The parser ends the whole process over it, or reads no further.
            self.line = text.count("\n", 0, found.start()) + 1
            self.refuse("a character that is not UTF-8")
        for command in _parse(text, self.name):
            self.line = command.start_line
            instruction = command.cmd.upper()
            if not self.base and instruction not in ("ARG", "FROM"):
                self.wrong(f"{instruction} before FROM")
            try:
                self._do(instruction, command)
            except WordError as error:
                self.refuse(f"{instruction} {error}")
        if not self.base:
            raise UnsupportedByProvider(f"{self.name} has no FROM")
        return Recipe(
            self.base,
            self.base_line,
            tuple(self.steps),
            self.env,
            self.workdir,
            self.user,
            (*self.entrypoint, *self.command),
            tuple(self._notes()),
        )

    def _notes(self) -> Iterator[str]:
        if self.ignored:
            said = ", ".join(f"{name} (line {n})" for name, n in self.ignored.items())
            yield f"{NOTE}{self.name}: the local sandbox ignores {said}"

    def refuse(self, what: str) -> NoReturn:
        raise UnsupportedByProvider(
            f"{self.name}, line {self.line}: {what}: the local sandbox cannot do it; "
            "use --harbor-sandbox docker"
        )

    def wrong(self, what: str) -> NoReturn:
        raise UnsupportedByProvider(f"{self.name}, line {self.line}: {what}")

    @property
    def variables(self) -> dict[str, str]:
        """What ``$NAME`` may stand for: ENV wins over ARG."""
        return {"PATH": self.path, **self.args, **self.env}

    def _do(self, instruction: str, command: Any) -> None:
        if instruction in IGNORED:
            self.ignored.setdefault(instruction, self.line)
            return
        work: dict[str, Callable[[Any], None]] = {
            "FROM": self._from,
            "ARG": self._arg,
            "ENV": self._env,
            "RUN": self._run,
            "COPY": self._copy,
            "ADD": self._copy,
            "WORKDIR": self._workdir,
            "USER": self._user,
            "SHELL": self._shell,
            "LABEL": lambda _: None,
            "CMD": self._cmd,
            "ENTRYPOINT": self._entrypoint,
        }
        if instruction in work:
            work[instruction](command)
        elif instruction in _OTHERS:
            self.refuse(instruction)
        else:
            self.wrong(f"{instruction}: there is no such instruction")

    def _from(self, command: Any) -> None:
        if self.base:
            self.refuse("a second FROM (a build of several stages)")
        values = [expand(value, self.args) for value in command.value]
        for flag, value in self._flags(command, frozenset({"platform"})):
            wanted = expand(value, {**_platform_args(), **self.args})
            if wanted not in (this_platform(), f"linux/{platform.machine()}"):
                self.refuse(f"FROM --{flag}={wanted}")
        if not values or not values[0]:
            self.wrong("FROM needs the name of an image")
        self.base, self.base_line = values[0], self.line
        self.global_args, self.args = self.args, {}

    def _arg(self, command: Any) -> None:
        for value in command.value:
            name, equals, default = value.partition("=")
            if equals:
                self.args[name] = expand(default, self.variables)
            elif self.base:
                inherited = {**_platform_args(), **self.global_args}
                if name in inherited:
                    self.args[name] = inherited[name]

    def _env(self, command: Any) -> None:
        before = self.variables
        words = [expand(value, before) for value in command.value]
        self.env.update(zip(words[::2], words[1::2], strict=True))

    def _run(self, command: Any) -> None:
        self._flags(command, frozenset())
        argv = tuple(command.value)
        if not argv or not argv[0]:
            self.wrong("RUN needs a command")
        if not command.json:
            argv = (*self.shell, self._script(command))
        self.steps.append(
            Run(
                self.line,
                _short(command.original),
                argv,
                self.variables,
                self.workdir,
                self.user,
            )
        )

    def _script(self, command: Any) -> str:
        """What the shell gets, heredocs included."""
        script = str(command.value[0])
        documents = command.heredocs
        alone = _HEREDOC.match(script.strip())
        if len(documents) == 1 and alone:
            content = str(documents[0].content)
            if content.startswith("#!"):
                self.refuse("RUN <<... with a '#!' line")
            return _without_tabs(content) if alone[1] else content
        parts = [f"\n{one.content}{one.name}" for one in documents]
        return "".join([script, *parts, "\n" if parts else ""])

    def _copy(self, command: Any) -> None:
        instruction = command.cmd.upper()
        flags = dict(self._flags(command, _COPY_FLAGS))
        chmod = flags.get("chmod")
        if chmod is not None:
            chmod = expand(chmod, self.variables)
            if not re.fullmatch(r"0?[0-7]{3,4}", chmod):
                self.refuse(f"{instruction} --chmod={chmod} (no octal number)")
        *words, target = command.value or ("",)
        if not words:
            self.wrong(f"{instruction} needs a source and a target")
        documents = {one.name: str(one.content) for one in command.heredocs}
        sources, texts = [], []
        for word in words:
            found = _HEREDOC.match(word)
            if found and found[3] in documents:
                content = documents[found[3]]
                content = _without_tabs(content) if found[1] else content
                if not found[2]:
                    content = expand(content, self.variables, keep_quotes=True)
                texts.append((found[3], content))
                continue
            source = expand(word, self.variables)
            if instruction == "ADD" and _REMOTE.search(source):
                self.refuse(f"ADD {source} (nothing is downloaded)")
            inner = posixpath.normpath(source.lstrip("/") or ".")
            if inner == ".." or inner.startswith("../"):
                self.wrong(
                    f"{instruction} {source}: leads out of the build context; "
                    "nothing outside of it can be copied"
                )
            sources.append(inner)
        target = self._place(expand(target, self.variables))
        if len(words) > 1 and not target.endswith("/"):
            self.wrong(
                f"{instruction} of several sources needs a target that ends in /"
            )
        self.steps.append(
            Copy(
                self.line,
                _short(command.original),
                tuple(sources),
                tuple(texts),
                target,
                expand(flags["chown"], self.variables) if "chown" in flags else None,
                int(chmod, 8) if chmod is not None else None,
                instruction == "ADD",
            )
        )

    def _place(self, path: str) -> str:
        is_folder = path.endswith("/") or posixpath.basename(path) in (".", "..", "")
        place = posixpath.normpath(posixpath.join("/", self.workdir, path))
        place = "/" + place.lstrip("/")
        return f"{place.rstrip('/')}/" if is_folder else place

    def _workdir(self, command: Any) -> None:
        path = expand(" ".join(command.value), self.variables)
        if not path:
            self.wrong("WORKDIR needs a path")
        self.workdir = self._place(path).rstrip("/") or "/"
        text = _short(command.original)
        self.steps.append(MakeFolder(self.line, text, self.workdir))

    def _user(self, command: Any) -> None:
        user = expand(" ".join(command.value), self.variables)
        if not user:
            self.wrong("USER needs a name or a number")
        if ":" in user:
            self.refuse(f"USER {user} (a group of its own)")
        self.user = user

    def _shell(self, command: Any) -> None:
        if not command.json or not command.value:
            self.wrong('SHELL needs its words in the form ["sh", "-c"]')
        self.shell = tuple(command.value)

    def _cmd(self, command: Any) -> None:
        self.command = self._start_command(command)

    def _entrypoint(self, command: Any) -> None:
        self.entrypoint = self._start_command(command)

    def _start_command(self, command: Any) -> tuple[str, ...]:
        if command.json or not command.value:
            return tuple(command.value)
        return (*self.shell, " ".join(command.value))

    def _flags(self, command: Any, known: frozenset[str]) -> list[tuple[str, str]]:
        flags = []
        for flag in command.flags:
            name, _, value = flag.removeprefix("--").partition("=")
            if name not in known:
                self.refuse(f"{command.cmd.upper()} --{name}")
            flags.append((name, value))
        return flags


def _parse(text: str, name: str) -> Sequence[Any]:
    try:
        import dockerfile
    except ImportError as error:
        raise UnsupportedByProvider(
            f"{name}: the local sandbox needs the package 'dockerfile' to read it: "
            "pip install 'pytest-harbor[local]'"
        ) from error
    try:
        return tuple(dockerfile.parse_string(text))
    except dockerfile.GoParseError as error:
        raise UnsupportedByProvider(f"{name}: {error}") from None


def this_platform() -> str:
    """This machine, as images call it: ``linux/amd64``."""
    return f"linux/{_MACHINES.get(platform.machine(), platform.machine())}"


def _platform_args() -> dict[str, str]:
    system, machine = this_platform().split("/")
    values = {"PLATFORM": this_platform(), "OS": system, "ARCH": machine}
    return {
        f"{side}{name}": value
        for side in ("TARGET", "BUILD")
        for name, value in values.items()
    }


def _without_tabs(text: str) -> str:
    return re.sub(r"^\t+", "", text, flags=re.MULTILINE)


def _short(text: str, most: int = 200) -> str:
    """An instruction on one line, for people."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."
