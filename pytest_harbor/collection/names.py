"""Which folder names node IDs, terminals and XML can hold, and how others are shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

SEPARATORS: Final = ("[", "]", "::")
"""What node IDs are made of."""

_UNPRINTABLE: Final = re.compile(
    "[\0-\x1f\x7f-\x9f"  # control characters: ESC drives the terminal of who looks
    "\u2028-\u202e\u2066-\u2069"  # line separators, and what turns text around
    "\ud800-\udfff"  # bytes that are no UTF-8, as Python has them
    "\ufffe\uffff]"  # not in XML
)


def shown(text: str) -> str:
    """``text`` with codes in place of what cannot be printed; still tells names apart."""
    return _UNPRINTABLE.sub(lambda found: f"#x{ord(found[0]):02X}", text)


def problem(folder: Path, root: Path) -> str:
    """Why a task in ``folder`` cannot be an item; empty when it can.

    Folders above, up to ``root``, are part of a node ID too.
    """
    for sign in SEPARATORS:
        if sign in folder.name:
            return _rename(folder.name, sign, "pytest's node IDs")
    inner = folder.relative_to(root) if folder.is_relative_to(root) else folder
    for part in reversed(inner.parts):
        if found := _UNPRINTABLE.search(part):
            return _rename(part, found[0], "reports and XML")
    return ""


def _rename(name: str, sign: str, where: str) -> str:
    # ascii() and not repr(): nothing odd may get into the message either.
    return (
        f"folder name {name!a} has {sign!a}, which {where} cannot hold; "
        f"rename the folder"
    )
