"""Downloads that a task file names (task-steps spec 5): to a file, within a limit."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import anyio

from pytest_harbor.errors import ProtocolError, ServerRefused, ServerTimeout
from pytest_harbor.protocols import connections
from pytest_harbor.protocols.addresses import proxy_for, shown
from pytest_harbor.protocols.excerpts import excerpt
from pytest_harbor.protocols.extras import needs

DOWNLOAD_SECONDS: Final = 600.0
_MAX_REDIRECTS: Final = 10
_EXCERPT_BYTES: Final = 4096


async def download(
    url: str,
    target: Path,
    *,
    max_bytes: int,
    timeout_seconds: float = DOWNLOAD_SECONDS,
) -> int:
    """Fetch an http or https URL into a file; returns its size in bytes.

    Redirects are followed, to other servers, too: the author of the task chose the URL.

    Raises:
        ServerRefused: the server answers with an error.
        ServerTimeout, ServerUnreachable: it does not answer, or not to the end.
        ProtocolError: more than ``max_bytes``, or no http URL.
        OSError: the file cannot be written.
        MissingExtra: httpx is not installed.
    """
    with needs("agents", "downloading"):
        import httpx
    if not url.startswith(("http://", "https://")):
        raise ProtocolError(f"{shown(url)}: only http and https can be downloaded")
    client = httpx.AsyncClient(
        verify=connections.trust(url),
        trust_env=False,
        proxy=proxy_for(url),
        follow_redirects=True,
        max_redirects=_MAX_REDIRECTS,
        timeout=timeout_seconds,
    )
    try:
        with anyio.fail_after(timeout_seconds):
            async with client, client.stream("GET", url) as response:
                return await _save(response, url, target, max_bytes)
    except TimeoutError as error:
        raise ServerTimeout(
            f"GET {shown(url)}: not done in {timeout_seconds:g} s", url=url
        ) from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        ours = connections.failure(error, "GET", url)
        raise ours or ProtocolError(f"GET {shown(url)}: {error}", url=url) from error


async def _save(response: object, url: str, target: Path, max_bytes: int) -> int:
    import httpx

    assert isinstance(response, httpx.Response)
    if response.status_code >= 300:
        said = b""
        async for chunk in response.aiter_bytes():
            said += chunk
            if len(said) > _EXCERPT_BYTES:
                break
        raise ServerRefused(
            f"GET {shown(url)} answered {response.status_code}: "
            f"{excerpt(said) or '(nothing)'}",
            url=url,
            status=response.status_code,
        )
    size = 0
    async with await anyio.open_file(target, "wb") as file:
        async for chunk in response.aiter_bytes():
            size += len(chunk)
            if size > max_bytes:
                raise ProtocolError(
                    f"GET {shown(url)}: larger than {max_bytes} bytes", url=url
                )
            await file.write(chunk)
    return size
