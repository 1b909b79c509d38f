"""Whose fault it is that an image cannot be had, from what the daemon and tools say.

A name that does not exist, or a build whose own command failed, fails again however often it
is tried: *final*. A registry or a network that does not answer is an outage, and tried again.
Of a pull, what nobody knows is an outage; of a build, it is the author's, for a build is
the author's program. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_harbor.sandboxes.outages import tell_of_no_network

_NO_ANSWER = re.compile(
    r"toomanyrequests|rate limit|\b429\b"
    r"|time-?out\b|timed out|deadline exceeded|context canceled"
    r"|(?:unexpected|: ) ?EOF\b|connection (?:refused|reset|closed|broken)|broken pipe"
    r"|no such host|server misbehaving|temporary failure|name resolution"
    r"|network is unreachable|no route to host|proxyconnect"
    r"|\b(?:status|status code|HTTP status|error):? 5\d\d\b|\b50[0234] (?:Internal|Bad|Serv|Gate)"
    r"|filesystem layer verification failed|no space left on device",
    re.IGNORECASE,
)
"""A registry, proxy, network or disk that may do better the next time."""

_NOT_TO_BE_HAD = re.compile(
    r"manifest unknown|manifest for .* not found|name unknown|does not exist|: not found"
    r"|HTTP 404|access to the resource is denied|access denied|unauthorized|\bdenied\b"
    r"|no basic auth|authentication required|insufficient_scope|authorization failed"
    r"|invalid reference|repository name|no match(?:ing manifest)? for"
    r"|HTTP response to HTTPS client|x509:",
    re.IGNORECASE,
)
"""What stays so until a person changes the name, the rights or the registry's setting."""

_UNREADABLE = re.compile(
    r"parse error|unknown (?:instruction|flag)|requires BuildKit|syntax error"
    r"|requires at least|must be absolute|forbidden path|failed to compute cache key"
    r"|file not found in build context|no such file or directory|COPY failed",
    re.IGNORECASE,
)
"""A Dockerfile, or a build context, that cannot be built by anybody."""

_COMMAND_FAILED = re.compile(
    r"returned a non-zero code|did not complete successfully|executor failed running",
    re.IGNORECASE,
)


def is_final_pull(text: str) -> bool:
    """True when a pull fails with ``text`` every time."""
    return bool(_NOT_TO_BE_HAD.search(text)) and not _NO_ANSWER.search(text)


def is_command(failure: str) -> bool:
    """True when a command of the Dockerfile failed, and not the building of it."""
    return bool(_COMMAND_FAILED.search(failure))


def is_final_build(failure: str, last_lines: Sequence[str]) -> bool:
    """True when a build fails so every time.

    ``failure`` is the builder's own message, ``last_lines`` the end of its log.
    """
    if is_command(failure):
        return not tell_of_no_network(last_lines)
    if _UNREADABLE.search(failure):
        return True
    return not _NO_ANSWER.search(failure)
