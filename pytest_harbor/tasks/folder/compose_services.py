"""What of a Compose file matters before Compose itself reads it: names.

Of its services, to name a misspelt one (X26), and of the host's variables that it asks for.
"""

from __future__ import annotations

import re

# ``$$`` is a dollar sign; a default may name further variables.
VARIABLE = re.compile(r"(?<!\$)(?:\$\$)*\$\{?(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
# ``environment: [TOKEN]`` and ``environment: {TOKEN: }`` pass the host's value on. A word in
# capitals elsewhere does no harm: Compose makes nothing of it.
PASSED_ON = re.compile(
    r"""^\s*(?:-\s+)?(?P<quote>["']?)(?P<name>[A-Z_][A-Z0-9_]*)(?P=quote)\s*:?\s*$""",
    re.MULTILINE,
)

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


def variable_names(text: str) -> tuple[str, ...]:
    """The variables that the file names, each once; a few more do no harm."""
    names = [match["name"] for match in VARIABLE.finditer(text)]
    names += [match["name"] for match in PASSED_ON.finditer(text)]
    return tuple(dict.fromkeys(names))
