"""Which services a Compose file defines, as far as a check needs to know (X26)."""

from __future__ import annotations

import re

# Only the names of the services matter here, and only to name a misspelt one before
# anything starts. Compose itself reads the file later, so this knows block style alone
# and says "unknown" for everything else rather than refuse what Compose accepts.
KEY = re.compile(
    r"""(?P<indent> *)(?P<quote>["']?)(?P<name>[^\s"'#:{}&*]+)(?P=quote)\s*:(?P<rest>\s.*|)$"""
)


def service_names(text: str) -> frozenset[str] | None:
    """The names under ``services:``, or ``None`` when they cannot be told."""
    names: set[str] = set()
    indent: int | None = None
    in_services = seen = False
    for line in text.removeprefix("\ufeff").splitlines():
        content = line.split(" #", 1)[0].rstrip()
        if not content.strip() or content.lstrip().startswith("#"):
            continue
        if content.strip() in ("---", "..."):
            continue
        depth = len(content) - len(content.lstrip(" "))
        match = KEY.match(content)
        if depth == 0:
            if match is None or match["name"] == "include":
                return None
            in_services = match["name"] == "services"
            seen |= in_services
            if in_services and match["rest"].strip():
                return None
        elif in_services and (indent is None or depth == indent):
            if match is None or match["name"] == "<<":
                return None
            indent = depth
            names.add(match["name"])
    return frozenset(names) if seen else None
