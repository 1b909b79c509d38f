"""A server that misbehaves: each way of doing so is a folder, ``/huge``, ``/never``, ...

``/<way>/`` has good cards of an agent and an env, whose endpoints misbehave;
``/<way>-card/`` misbehaves from the card on.
"""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import threading
from collections.abc import Iterator

BOMB = gzip.compress(b" " * 5_000_000)
AGENT_CARD = {"name": "rogue", "url": "rpc", "protocolVersion": "0.3.0"}
ENV_CARD = {"name": "rogue", "url": "rpc"}


class Handler(http.server.BaseHTTPRequestHandler):
    released: threading.Event
    asked: list[str]

    def do_POST(self) -> None:
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(size)
        self.request_id = json.loads(body).get("id") if body[:1] == b"{" else None
        self.asked.append(self.path)
        way, _, rest = self.path.strip("/").partition("/")
        if way.endswith("-card") or ".well-known" not in rest:
            getattr(self, way.removesuffix("-card"))()
        else:
            env = rest.endswith("agent-env.json")
            card = dict(ENV_CARD if env else AGENT_CARD)
            card["url"] = f"/{way}/{card['url']}"
            self._say(card)

    do_GET = do_DELETE = do_POST  # noqa: N815 - names that the base class looks up

    def _say(self, value, *, status=200, kind="application/json", **headers) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, content in headers.items():
            self.send_header(name.replace("_", "-"), content)
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, result) -> None:
        self._say({"jsonrpc": "2.0", "id": self.request_id, "result": result})

    def html(self) -> None:
        self._say(b"<html><body>Welcome to nginx</body></html>", kind="text/html")

    def half(self) -> None:
        self._say(b'{"jsonrpc": "2.0", "resu')

    def deep(self) -> None:
        self._say(b"[" * 100_000)

    def array(self) -> None:
        self._say([1, 2, 3])

    def nothing(self) -> None:
        self._say({"jsonrpc": "2.0", "id": self.request_id})

    def shapeless(self) -> None:
        self._answer({"kind": "task", "id": 7, "status": "fine"})

    def text(self) -> None:
        self._answer("all good")

    def wrong_id(self) -> None:
        self.request_id = "somebody-else"
        self._answer({})

    def error(self) -> None:
        refusal = {"code": -32000, "message": "no room", "data": {"code": "add_failed"}}
        self._say({"jsonrpc": "2.0", "id": self.request_id, "error": refusal})

    def status500(self) -> None:
        self._say(b"stack\n\ttrace\x1b[31m here", status=500, kind="text/plain")

    def status404(self) -> None:
        self._say(b"nobody here", status=404, kind="text/plain")

    def redirect(self) -> None:
        self._say(b"", status=307, location="http://elsewhere.example/steal?t=1")

    def circle(self) -> None:
        self._say(b"", status=307, location=self.path)

    def zipped(self) -> None:
        self._say(BOMB, content_encoding="gzip")

    def huge(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.released.is_set():
                self.wfile.write(b" " * 1_000_000)

    def never(self) -> None:
        self.released.wait(60)

    def drip(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        with contextlib.suppress(OSError):
            while not self.released.wait(0.05):
                self.wfile.write(b" ")

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    def log_message(self, *args) -> None:
        pass


Served = contextlib.AbstractContextManager[tuple[str, list[str]]]
"""The server's base URL, and the paths that were asked for."""


def misbehaving() -> Served:
    """The server of this module."""
    return served(Handler)


@contextlib.contextmanager
def served(
    kind: type[http.server.BaseHTTPRequestHandler], **state: object
) -> Iterator[tuple[str, list[str]]]:
    """Serve on loopback with a handler that has ``state``, ``released`` and ``asked``."""
    own = {"released": threading.Event(), "asked": [], **state}
    handler = type("Rubbish", (kind,), own)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.handle_error = lambda *_: None  # what hangs up breaks its own answer
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", own["asked"]
    finally:
        own["released"].set()
        server.shutdown()
        thread.join()
        server.server_close()
