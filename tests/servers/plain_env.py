"""An env server on the standard library alone: it starts at once, and misbehaves on order.

Runs in a sandbox as ``python plain_env.py``; ``config.json`` beside it says how it is.
"""

# ruff: noqa: T201 - its log
from __future__ import annotations

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

CONFIG = json.loads(Path(__file__).with_name("config.json").read_text())
NAME = CONFIG.get("card_name") or os.environ.get("ENVIRONMENT_NAME", "plain")
TOOLS = CONFIG.get("tools", ["look", "stop"])
STATE: list[str] = []


def card() -> dict:
    return {
        "name": NAME,
        "protocolVersion": "1.0",
        "url": "/agentenv",
        "preferredTransport": "JSONRPC",
        "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
        "capabilities": CONFIG.get("capabilities", {}),
    }


def mcp(request: dict) -> dict | None:
    method = request["method"]
    if "id" not in request:
        return None
    if method == "initialize":
        result = {
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": NAME, "version": "1"},
        }
    elif method == "tools/list":
        schema = {"type": "object"}
        result = {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
    elif method == "tools/call":
        if request["params"]["name"] == "stop":
            print("told to stop", flush=True)
            os._exit(3)
        result = {"content": [{"type": "text", "text": json.dumps(STATE)}]}
    else:
        return error(request, -32601, f"no method {method}")
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


def error(request: dict, code: int, message: str, data: object = None) -> dict:
    body = {"code": code, "message": message, "data": data}
    return {"jsonrpc": "2.0", "id": request["id"], "error": body}


def data_plane(request: dict) -> dict:
    method = request["method"]
    broken = CONFIG.get("broken", {})
    if method in broken:
        code = method.removeprefix("data/") + "_failed"
        return error(request, -32000, broken[method], {"code": code})
    result: dict = {}
    if method == "data/reset":
        STATE.clear()
    elif method == "data/add":
        for part in request["params"]["parts"]:
            place = unquote(urlsplit(part["file"]["uri"]).path)
            STATE.append(Path(place).read_text())
    else:
        result = {"parts": [{"kind": "data", "data": {"state": STATE}}]}
    return {"jsonrpc": "2.0", "id": request["id"], "result": result}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/.well-known/agent-env.json" and CONFIG.get("card", True):
            self.answer(card())
        else:
            self.answer(None, 404)

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        request = json.loads(self.rfile.read(length))
        if self.path == "/mcp":
            answer = mcp(request)
            self.answer(answer, 200 if answer else 202)
        else:
            self.answer(data_plane(request))

    def answer(self, body: object, status: int = 200) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


print("starting", flush=True)
if "exit" in CONFIG:
    print(CONFIG.get("says", ""), flush=True)
    sys.exit(CONFIG["exit"])
if CONFIG.get("sleeps"):
    time.sleep(600)
where = (os.environ["MCP_HOST"], int(os.environ["MCP_PORT"]))
ThreadingHTTPServer(where, Handler).serve_forever()
