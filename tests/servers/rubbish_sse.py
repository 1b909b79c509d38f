"""An MCP server over SSE that opens its stream well and then misbehaves, one way a folder.

``/<way>/sse`` is the stream, ``/<way>/post`` takes messages. ``/<way>-list`` does so when
its tools are asked for, ``/<way>-call`` when one is called.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
import threading

from servers.rubbish import Served, served


class Handler(http.server.BaseHTTPRequestHandler):
    released: threading.Event
    asked: list[str]
    streams: dict[str, queue.Queue]

    @property
    def way(self) -> str:
        return self.path.strip("/").partition("/")[0]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        mine = self.streams[self.way] = queue.Queue()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.end_headers()
        self._event(f"/{self.way}/post", "endpoint")
        with contextlib.suppress(OSError):
            while not self.released.is_set():
                try:
                    text = mine.get(timeout=0.05)
                except queue.Empty:
                    continue
                if text is None:
                    return
                self._event(text)

    def do_POST(self) -> None:
        self.asked.append(self.path)
        body = self.rfile.read(int(self.headers["content-length"]))
        message = json.loads(body)
        way, _, when = self.way.partition("-")
        if "id" not in message:
            self._accept()
        elif message["method"] == WHEN[when]:
            getattr(self, way)(message["id"])
        else:
            self._accept()
            self._say(message["id"], result=GOOD[message["method"]])

    def _event(self, data: str, name: str = "message") -> None:
        if self.way in ENDPOINTS and name == "endpoint":
            text = ENDPOINTS[self.way]
        else:
            text = f"event: {name}\r\ndata: {data}\r\n\r\n"
        self.wfile.write(text.encode())

    def _accept(self) -> None:
        self.send_response(202)
        self.send_header("content-length", "0")
        self.end_headers()

    def _answer(self, status: int, text: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text.encode())

    def _say(self, number: object, **what: object) -> None:
        text = json.dumps({"jsonrpc": "2.0", "id": number, **what})
        self.streams[self.way].put(text)

    def refused(self, number: object) -> None:
        self._answer(500, "stack\n\ttrace\x1b[31m here")

    def redirect(self, number: object) -> None:
        self._answer(307, "", location="http://elsewhere.example/steal?t=1")

    def circle(self, number: object) -> None:
        self._answer(307, "", location=self.path)

    def hang_up(self, number: object) -> None:
        self.close_connection = True
        self.connection.close()

    def silent(self, number: object) -> None:
        self._accept()

    def never(self, number: object) -> None:
        self.released.wait(60)

    def ended(self, number: object) -> None:
        self._accept()
        self.streams[self.way].put(None)

    def garbage(self, number: object) -> None:
        self._accept()
        self.streams[self.way].put('{"jsonrpc": "2.0", "resu')

    def huge(self, number: object) -> None:
        self._accept()
        self._say(number, result={"text": "x" * 2_000_000})

    def error(self, number: object) -> None:
        self._accept()
        self._say(number, error={"code": -32000, "message": "no room"})

    def shapeless(self, number: object) -> None:
        self._accept()
        self._say(number, result={"tools": 7})

    def elsewhere(self, number: object) -> None:
        self._accept()
        self._say(number, result=GOOD["initialize"])

    unnamed = unended = elsewhere

    def log_message(self, *args) -> None:
        pass


WHEN = {"": "initialize", "list": "tools/list", "call": "tools/call"}
GOOD = {
    "initialize": {
        "protocolVersion": "2024-11-05",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "rogue", "version": "1"},
    },
    "tools/list": {"tools": [{"name": "fall", "inputSchema": {"type": "object"}}]},
}
ENDPOINTS = {
    # What it knows itself as, in a container.
    "elsewhere": "event: endpoint\ndata: http://0.0.0.0:8000/elsewhere/post\n\n",
    "unnamed": ": ping\n\n",
    "unended": "event: endpoint\ndata: " + "/x" * 2_000_000,
}


def misbehaving_sse() -> Served:
    """The server of this module."""
    return served(Handler, streams={})
