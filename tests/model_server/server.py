"""The server: routes, keys, faults, and what was asked of it."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from typing_extensions import Self

from model_server import chat_completions, gemini, messages, responses
from model_server.conversation import Request
from model_server.script import Answer, Cue, Fault, Scene, find_cue, perform
from model_server.usage import CACHED_TOKENS, INPUT_TOKENS, OUTPUT_TOKENS, Usage

__all__ = ["CACHED_TOKENS", "INPUT_TOKENS", "KEY", "MODEL", "OUTPUT_TOKENS"]

KEY = "sk-scripted-0123456789abcdef"
MODEL = "scripted-model"
TITLE = "A scripted title"

_ROUTES: Mapping[str, ModuleType] = {
    "/v1/chat/completions": chat_completions,
    "/v1/responses": responses,
    "/v1/messages": messages,
}
_STATUS = {
    "rate_limit": 429,
    "auth": 401,
    "server_error": 500,
    "overloaded": 529,
    "too_long": 400,
}
_WORDS = {
    "rate_limit": "Rate limit reached for requests",
    "auth": "Incorrect API key provided",
    "server_error": "The server had an error while processing your request",
    "overloaded": "Overloaded",
    "too_long": "prompt is too long: your input exceeds the context window",
}


class ModelServer:
    """Serves on a port of its own from ``with`` to the end of it.

    ``url`` has no path; clients add ``/v1``. Without ``key`` every key is good. A request
    without tools is an aside (a title, a summary) and gets a title, unless the client
    is ``toolless``: one whose model answers in text alone.
    """

    def __init__(
        self,
        *scenes: Scene,
        host: str = "127.0.0.1",
        key: str | None = KEY,
        toolless: bool = False,
    ) -> None:
        self.toolless = toolless
        self.scenes = list(scenes)
        self.host = host
        self.key = key
        self.requests: list[Request] = []
        self.problems: list[str] = []
        """What a client asked that the script or the API does not allow."""
        self.unknown_paths: list[str] = []
        self._spent: Counter[int] = Counter()
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer((self.host, 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def turns(self) -> list[Request]:
        """The requests of the agent's own loop: those that offer tools."""
        return [request for request in self.requests if not self.is_aside(request)]

    def is_aside(self, request: Request) -> bool:
        """True for what a CLI asks beside its loop."""
        return not request.tools and not self.toolless

    def wait_closing(self) -> None:
        """Return when the server closes."""
        self._closing.wait()

    def record(self, request: Request) -> int:
        """Keep a request; returns its number, from 1."""
        with self._lock:
            self.requests.append(request)
            return len(self.requests)

    def due_fault(self, cue: Cue) -> Fault | None:
        """The fault that comes now, counted down."""
        with self._lock:
            for fault in cue.faults:
                if fault.times is None or self._spent[id(fault)] < fault.times:
                    self._spent[id(fault)] += 1
                    return fault
        return None


def _handler_of(owner: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        server_of_models = owner

    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_models: ModelServer

    def log_message(self, *_: object) -> None:
        """Stay silent: the recorded requests tell more."""

    def do_HEAD(self) -> None:
        self._json(200, {})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/v1/models":
            self._json(
                200,
                {"object": "list", "data": [{"id": MODEL, "object": "model"}]},
            )
        else:
            self.server_of_models.unknown_paths.append(f"GET {self.path}")
            self._json(404, chat_completions.error(404, "not_found", self.path))

    def do_POST(self) -> None:
        owner = self.server_of_models
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))))
        path = urlsplit(self.path).path
        wire = gemini if gemini.PATH.match(path) else _ROUTES.get(path)
        if wire is None:
            self._post_elsewhere(path, body)
            return
        if owner.key is not None and self._key() != owner.key:
            self._fail(wire, "auth", None)
            return
        try:
            request = wire.read(path, dict(self.headers.items()), body)
        except (KeyError, TypeError) as error:
            owner.problems.append(f"{path}: {error!r}")
            self._json(400, wire.error(400, "invalid_request_error", repr(error)))
            return
        number = owner.record(request)
        if owner.is_aside(request):
            self._send(wire, Answer(TITLE), request, number, None)
            return
        cue = find_cue(owner.scenes, request)
        answer = self._scripted(wire, cue, request, number)
        if answer is None:
            return
        fault = owner.due_fault(cue) if cue else None
        self._send(wire, answer, request, number, fault)

    def _scripted(
        self, wire: ModuleType, cue: Cue | None, request: Request, number: int
    ) -> Answer | None:
        problem = "no scene for this conversation"
        if cue is not None:
            try:
                return perform(cue.act, request.tools, f"call{number:08d}")
            except LookupError as error:
                problem = str(error)
        self.server_of_models.problems.append(problem)
        self._json(400, wire.error(400, "invalid_request_error", problem))
        return None

    def _post_elsewhere(self, path: str, body: Mapping[str, Any]) -> None:
        if path == "/v1/messages/count_tokens":
            self._json(200, {"input_tokens": INPUT_TOKENS})
        elif path.endswith(":countTokens"):
            self._json(200, {"totalTokens": INPUT_TOKENS})
        else:
            self.server_of_models.unknown_paths.append(f"POST {path}")
            self._json(404, chat_completions.error(404, "not_found", path))

    def _key(self) -> str | None:
        for name in ("x-api-key", "x-goog-api-key"):
            if found := self.headers.get(name):
                return found
        return (self.headers.get("authorization") or "").removeprefix("Bearer ")

    def _send(
        self,
        wire: ModuleType,
        answer: Answer,
        request: Request,
        number: int,
        fault: Fault | None,
    ) -> None:
        if fault is not None and fault.kind == "hang":
            self.server_of_models.wait_closing()
            self.close_connection = True
            return
        if fault is not None and fault.kind != "cut":
            self._fail(wire, fault.kind, fault)
            return
        usage = Usage()
        if not request.streams:
            whole = wire.whole(answer, request, usage, number)
            self._json(200, whole, cut=fault is not None)
            return
        self._stream(
            list(wire.stream(answer, request, usage, number)), cut=fault is not None
        )

    def _fail(self, wire: ModuleType, kind: str, fault: Fault | None) -> None:
        status = _STATUS[kind]
        after = fault.retry_after if fault is not None else None
        headers = {"retry-after": after} if after and status == 429 else {}
        self._json(status, wire.error(status, kind, _WORDS[kind]), headers)

    def _json(
        self,
        status: int,
        data: Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        cut: bool = False,
    ) -> None:
        text = json.dumps(data).encode()
        self._head(
            status,
            {
                "content-type": "application/json",
                "content-length": str(len(text)),
                **(headers or {}),
            },
        )
        if self.command != "HEAD":
            self._write([text[: len(text) // 2] if cut else text])
        if cut:
            self.close_connection = True

    def _stream(self, events: Sequence[bytes], *, cut: bool) -> None:
        self._head(
            200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
        )
        kept = events[: len(events) // 2] if cut else events
        chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in kept]
        if cut:
            self.close_connection = True
        else:
            chunks.append(b"0\r\n\r\n")
        self._write(chunks)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _write(self, parts: Sequence[bytes]) -> None:
        try:
            for part in parts:
                self.wfile.write(part)
                self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            # A client that left is no mistake of the server's.
            self.close_connection = True
