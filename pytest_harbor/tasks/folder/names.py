"""Names that the format restricts: steps, services, hosts, HTTP headers."""

from __future__ import annotations

import ipaddress
import re
import unicodedata

STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SERVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
LABEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
HOST_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")

# Names that Windows reserves, with or without an extension (spec 1.3): a folder with
# such a name cannot be checked out there.
RESERVED = frozenset(
    {"con", "prn", "aux", "nul"}
    | {f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)}
)
MAX_NAME_BYTES = 255


def step_name_problem(name: str) -> str | None:
    """Why ``name`` cannot be a step's name (spec 1.3), or ``None``."""
    if not STEP_NAME.fullmatch(name):
        return (
            f"step name '{name}': use letters, digits, '.', '_', '-', "
            "starting with a letter or digit"
        )
    if name.endswith("."):
        return f"step name '{name}': must not end with '.'"
    if name.split(".", 1)[0].lower() in RESERVED:
        return f"step name '{name}': is reserved on Windows; choose another"
    if len(name.encode()) > MAX_NAME_BYTES:
        return f"step name '{name[:40]}...': is longer than {MAX_NAME_BYTES} bytes"
    return None


def folded(name: str) -> str:
    """The form in which two step names collide on a case-insensitive file system."""
    return unicodedata.normalize("NFC", name).casefold()


def is_label(name: str) -> bool:
    """True for an ``org/name`` label (spec 3.1)."""
    return bool(LABEL_NAME.fullmatch(name)) and ".." not in name


def normal_host(entry: str) -> str | None:
    """An ``allowed_hosts`` entry in its normal form, or ``None`` if it is none.

    Host names, ``*.`` patterns, IP addresses and CIDR ranges; no URL, port or
    path (spec 3.12).
    """
    host = entry.strip().lower().removesuffix(".")
    try:
        ipaddress.ip_network(host, strict=False)
    except ValueError:
        labels = host.removeprefix("*.").split(".")
        return host if all(map(HOST_LABEL.fullmatch, labels)) else None
    return host
