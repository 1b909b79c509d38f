"""Where a server is called, whatever its card says of itself, and by which way."""

from __future__ import annotations

import ipaddress
import urllib.request
from urllib.parse import urlsplit, urlunsplit


def origin(url: str) -> str:
    """``scheme://host:port`` of a URL.

    Raises:
        ValueError: it is no http or https URL, or has no host.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url!r} is no http or https URL")
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


def join(base_url: str, path: str) -> str:
    """``path`` below ``base_url``: a base of ``http://h/agents/a`` keeps its folder."""
    return f"{base_url.rstrip('/')}/{path.lstrip('/')}"


def below(base_url: str, declared: str) -> str:
    """The URL that a card declares, reached where we reach the card.

    Of an absolute URL the path and query count, not the host: a server in a sandbox
    knows itself as ``0.0.0.0`` or ``localhost``, and one that is up to no good would
    send us to somebody else. A path that already starts with the base's folder is not
    put below it twice.
    """
    parts = urlsplit(declared)
    if not parts.scheme and not parts.netloc:
        return join(base_url, declared)
    folder = urlsplit(base_url).path.rstrip("/")
    path = parts.path or "/"
    if folder and not (path + "/").startswith(folder + "/"):
        path = folder + path
    root = urlsplit(origin(base_url))
    return urlunsplit((root.scheme, root.netloc, path, parts.query, ""))


def is_local(url: str) -> bool:
    """Whether a URL is of this machine or a private network, where no proxy belongs.

    True for ``localhost``, names without a dot, and loopback, private and link-local
    addresses: the addresses that sandboxes have.
    """
    host = (urlsplit(url).hostname or "").lower()
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".localhost", ".internal"))
    return address.is_loopback or address.is_private or address.is_link_local


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for ``url``; None for sandboxes and localhost."""
    parts = urlsplit(url)
    if is_local(url) or urllib.request.proxy_bypass(parts.hostname or ""):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"


def shown(url: str) -> str:
    """The URL for a message: without user, password, query and fragment."""
    parts = urlsplit(url)
    return urlunsplit(
        (parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")
    )
