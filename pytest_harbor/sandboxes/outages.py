"""What the tools of a build say of a network that fails them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NO_NETWORK: Final = re.compile(
    r"temporary failure (?:resolving|in name resolution)|could not resolve"
    r"|name or service not known|bad address|getaddrinfo|EAI_AGAIN|ENOTFOUND|ECONN[A-Z]+"
    r"|ETIMEDOUT|could not connect to|unable to connect to|failed to establish a new connection"
    r"|connection (?:timed out|refused|reset|broken|aborted)|read timed out|handshake timeout"
    r"|network is unreachable|no route to host|max retries exceeded|hash sum mismatch"
    r"|\b(?:429 +too many|50[0234] +(?:internal|bad|service|gateway))|status code 50[0234]"
    r"|curl: \((?:5|6|7|18|28|35|52|55|56|92)\)|unexpected disconnect|remote end hung up"
    r"|no space left on device",
    re.IGNORECASE,
)
"""Words of apt, pip, npm, git, curl and wget."""


def tell_of_no_network(lines: Iterable[str]) -> bool:
    """True when the last lines of a build's log blame the network (or a full disk)."""
    return any(_NO_NETWORK.search(line) for line in lines)
