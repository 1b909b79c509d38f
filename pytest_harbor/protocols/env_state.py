"""What ``data/add`` does to a state by default: read parts, merge. Pure but for the reading.

A part brings a JSON object: as data, as text, or as the content of a file. It is added to
the state: lists grow, objects are merged, other values are replaced.
"""

from __future__ import annotations

import base64
import binascii
import json
import urllib.parse
import urllib.request
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pytest_harbor.protocols.connections import MAX_BODY_BYTES
from pytest_harbor.protocols.reply import Part

_DOWNLOAD_SECONDS: Final = 60.0
_KINDS: Final = {"list": list, "object": dict, "string": str, "boolean": bool}


class Refusal(ValueError):
    """Raised for what the caller did wrong; the text alone is told."""


class BadPart(Refusal):
    """Raised when a part cannot be read or does not fit the state."""


def read_bytes(part: Part) -> bytes:
    """The content of a file part, or the text of a text part.

    Raises:
        BadPart: it has none, is not there, or is larger than 64 MiB.
    """
    if part.get("kind") == "text":
        return str(part["text"]).encode()
    file = part.get("file")
    if not isinstance(file, Mapping):
        raise BadPart("the part holds no file")
    if "bytes" in file:
        try:
            return base64.b64decode(str(file["bytes"]), validate=True)
        except binascii.Error as error:
            raise BadPart(f"`bytes` is not base64: {error}") from None
    uri = str(file.get("uri", ""))
    parts = urllib.parse.urlsplit(uri)
    try:
        if parts.scheme == "file":
            return _limited(Path(urllib.parse.unquote(parts.path)).open("rb"), uri)
        if parts.scheme in ("http", "https"):
            answer = urllib.request.urlopen(uri, timeout=_DOWNLOAD_SECONDS)  # noqa: S310
            return _limited(answer, uri)
    except OSError as error:
        raise BadPart(f"{uri} cannot be read: {error}") from None
    raise BadPart(f"{uri or 'a file without uri and bytes'} cannot be read")


def _limited(stream: Any, name: str) -> bytes:
    with stream:
        content: bytes = stream.read(MAX_BODY_BYTES + 1)
    if len(content) > MAX_BODY_BYTES:
        raise BadPart(f"{name} is larger than {MAX_BODY_BYTES // 1024 // 1024} MiB")
    return content


def read_json(part: Part) -> Any:
    """The JSON of a part of any kind.

    Raises:
        BadPart: as :func:`read_bytes`; or it is no JSON.
    """
    if part.get("kind") == "data":
        return part["data"]
    try:
        return json.loads(read_bytes(part))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadPart):
            raise
        raise BadPart(f"{_name(part)} is no JSON: {error}") from None


def _name(part: Part) -> str:
    file = part.get("file")
    if not isinstance(file, Mapping):
        return "the text"
    return str(file.get("name") or file.get("uri") or "the file")


def merged(state: Any, added: Any, *, where: str = "") -> Any:
    """``state`` with ``added`` in it; neither is changed.

    Raises:
        BadPart: a list, object or text would replace a value of another kind, or (at the
            top, when the state has keys) a key is not one of the state's.
    """
    if isinstance(state, dict) and isinstance(added, dict):
        if state and not where:
            _known(state, added)
        return {
            **state,
            **{
                key: merged(state[key], value, where=f"{where}.{key}".lstrip("."))
                if key in state
                else value
                for key, value in added.items()
            },
        }
    if isinstance(state, list) and isinstance(added, list):
        return [*state, *added]
    if state is not None and added is not None and _kind(state) != _kind(added):
        raise BadPart(
            f"{where or 'the state'} is {_article(state)}, the data has {_article(added)}"
        )
    return added


def _known(state: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    for key in added:
        if key not in state:
            near = get_close_matches(key, state, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise BadPart(
                f"the state has no {key!r}{hint} (it has: {', '.join(sorted(state))})"
            )


def _kind(value: object) -> str:
    for name, kind in _KINDS.items():
        if isinstance(value, kind):
            return name
    return "number"


def _article(value: object) -> str:
    kind = _kind(value)
    return f"an {kind}" if kind == "object" else f"a {kind}"
