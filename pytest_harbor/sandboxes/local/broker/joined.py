"""The way into a sandbox, and who its users are.

A process that joins the namespaces of a sandbox arrives with every capability, so it gives
them up before it touches any file there.
"""

# ruff: noqa: PTH102, PTH120  # system calls inside a sandbox, not a Path of ours

from __future__ import annotations

import os
import resource
import stat
from dataclasses import dataclass

from pytest_harbor.sandboxes.local.broker import kernel

PASSWD = "/etc/passwd"  # noqa: S105  # a file name
GROUP = "/etc/group"
ROOT_HOME = "/root"
LAST_ID = 2**32 - 2  # the one above means "leave it" in system calls
_ID_DIGITS = 10
_MAX_ACCOUNT_BYTES = 1024 * 1024


class NoSuchUser(Exception):
    """The sandbox does not know a user."""


@dataclass(frozen=True)
class Account:
    """Whom a command runs as, by the sandbox's own files."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def enter(pidfd: int | None, namespaces: int) -> None:
    """Join the sandbox behind ``pidfd`` (``None``: stay here), without privileges.

    Raises:
        OSError: the sandbox is gone.
    """
    if pidfd is not None:
        kernel.setns(pidfd, namespaces)
    kernel.drop_privileges()
    os.umask(0o022)
    # A core pattern that pipes would start a program on the host.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def find_account(user: str | int | None) -> Account:
    """Look a user up in the sandbox's passwd and group files.

    Not with ``pwd``: that loads the name service's libraries, which an agent may have
    replaced. A number needs no entry.

    Raises:
        NoSuchUser: a name without an entry, or a number that no user can have.
    """
    if user in (None, 0, "root", "0"):
        return Account("root", 0, 0, (), ROOT_HOME)
    assert user is not None
    number = parse_id(str(user))
    if number is None and (isinstance(user, int) or user.isdecimal()):
        raise NoSuchUser(f"user {user!r}: uids are 0 to {LAST_ID}")
    for fields in _lines(PASSWD, 7):
        if number is None and fields[0] != user:
            continue
        uid, gid = parse_id(fields[2]), parse_id(fields[3])
        if uid is None or gid is None or number not in (None, uid):
            continue
        groups = [gid, *_groups_of(fields[0])]
        return Account(fields[0], uid, gid, tuple(dict.fromkeys(groups)), fields[5])
    if number is None:
        raise NoSuchUser(f"user {user!r} is not in {PASSWD} of the sandbox")
    return Account(str(number), number, 0, (), "/")


def _groups_of(name: str) -> list[int]:
    numbers = [
        parse_id(fields[2])
        for fields in _lines(GROUP, 4)
        if name in fields[3].split(",")
    ]
    return [number for number in numbers if number is not None]


def parse_id(text: str) -> int | None:
    """A uid or gid, ``None`` when it is none that the kernel knows."""
    is_short = text.isascii() and text.isdigit() and len(text) <= _ID_DIGITS
    return int(text) if is_short and int(text) <= LAST_ID else None


def _lines(path: str, fields: int) -> list[list[str]]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return []
        text = os.read(descriptor, _MAX_ACCOUNT_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    finally:
        os.close(descriptor)
    rows = (line.split(":") for line in text.splitlines())
    return [row for row in rows if len(row) == fields]


def forget_groups() -> None:
    """Leave the groups of whoever runs the tests."""
    if not os.getgroups():
        return
    try:
        os.setgroups([])
    except PermissionError:
        return  # one-uid mode: the kernel forbids it there


def make_home(account: Account) -> None:
    """Give an account below ``/home`` its home folder, as a container image has it."""
    if os.path.dirname(account.home) != "/home":
        return
    try:
        os.mkdir(account.home, 0o755)
        os.chown(account.home, account.uid, account.gid, follow_symlinks=False)
    except OSError:
        return
