"""One option or ini key, and how its text becomes a value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

Parse: TypeAlias = Callable[[str], Any]


def text(value: str) -> str:
    """Text that is not blank."""
    if not value.strip():
        raise ValueError("a name")
    return value.strip()


def number(value: str) -> float:
    """A number."""
    try:
        return float(value)
    except ValueError:
        raise ValueError("a number") from None


def integer(value: str) -> int:
    """A whole number."""
    try:
        return int(value)
    except ValueError:
        raise ValueError("a whole number") from None


def switch(value: str) -> bool:
    """On or off."""
    lowered = value.strip().lower()
    if lowered in {"1", "true", "yes", "on"}:
        return True
    if lowered in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError("true or false")


def names(value: str) -> tuple[str, ...]:
    """Names, separated by commas or lines, each once."""
    given = [name.strip() for name in value.replace("\n", ",").split(",")]
    given = [name for name in given if name]
    if not given:
        raise ValueError("NAME[,NAME]")
    if len(set(given)) < len(given):
        raise ValueError("each name once")
    return tuple(given)


def lines(value: str) -> tuple[str, ...]:
    """Lines that are not blank."""
    return tuple(line.strip() for line in value.splitlines() if line.strip())


def pairs(value: str) -> dict[str, str]:
    """``KEY=VALUE``, one a line; the last of two with the same key counts."""
    found = {}
    for line in lines(value):
        key, sign, given = line.partition("=")
        if not sign or not key.strip():
            raise ValueError("KEY=VALUE")
        found[key.strip()] = given.strip()
    return found


def targets(value: str) -> tuple[tuple[str, str], ...]:
    """As :func:`pairs`, in their order, and none of them empty."""
    try:
        found = pairs(value)
    except ValueError:
        raise ValueError("pattern = target") from None
    if not all(found.values()):
        raise ValueError("pattern = target")
    return tuple(found.items())


def one_of(*allowed: str) -> Parse:
    """One of the words that are allowed."""

    def parse(value: str) -> str:
        if value not in allowed:
            raise ValueError(" or ".join(allowed))
        return value

    return parse


class Option(NamedTuple):
    """One setting: ``--harbor-<name>`` (unless ``ini_only``) and ini ``harbor_<name>``.

    ``parse`` turns text into the value; its ``ValueError`` says what was expected. A
    named tuple, as a dataclass takes a millisecond of every pytest session to make.
    """

    name: str
    parse: Parse
    help: str
    metavar: str | None = None
    field: str = ""
    ini_only: bool = False
    is_repeated: bool = False
    """May be typed several times; the ini key has a line for each."""

    @property
    def flag(self) -> str:
        """As it is typed on the command line."""
        return "--harbor-" + self.name

    @property
    def key(self) -> str:
        """The ini key, and the attribute of ``config.option``."""
        return "harbor_" + self.name.replace("-", "_")

    @property
    def setting(self) -> str:
        """The field of :class:`Settings`."""
        return self.field or self.name.replace("-", "_")
