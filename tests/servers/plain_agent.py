"""An A2A 0.3 agent on the standard library alone: it starts at once, and keeps a diary.

Runs in a sandbox as ``python plain_agent.py``; ``config.json`` beside it says how it is.
What it is told goes to ``/app/artifact/diary.jsonl``.
"""

# ruff: noqa: T201 - its log
from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CONFIG = json.loads(Path(__file__).with_name("config.json").read_text())
DIARY = Path("/app/artifact/diary.jsonl")
TAKES = CONFIG.get("takes", ["system_prompt", "model", "name", "role"])
SUPPORTED = {"methods": {"set": {"request": {"supported": TAKES}}}}
EXTENSIONS = {
    "mcp-config": {"methods": {"add": {"request": {"supported": ["url", "name"]}}}},
    "skill-config": {},
    "agent-config": SUPPORTED,
}


def card() -> dict:
    return {
        "name": "plain",
        "protocolVersion": "0.3.0",
        "url": "http://0.0.0.0/a2a",
        "preferredTransport": "JSONRPC",
        "version": "1",
        "description": "",
        "skills": [],
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "capabilities": {
            "extensions": [
                {
                    "uri": f"urn:agentenv:{name}/v1",
                    "params": {"endpoint": f"/ext/{name}", **params},
                }
                for name, params in EXTENSIONS.items()
                if name not in CONFIG.get("lacks", [])
            ]
        },
        **CONFIG.get("card", {}),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(*((card(), 200) if self.path.endswith("card.json") else ({}, 404)))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with DIARY.open("a") as diary:
            diary.write(json.dumps([self.path, body]) + "\n")
        if self.path in CONFIG.get("refuses", []):
            self.answer({"error": "not today"}, 400)
        elif self.path == "/a2a":
            self.answer(self.message(body))
        else:
            self.answer({})

    def message(self, body: dict) -> dict:
        if CONFIG.get("exits_when_asked"):
            print("cannot go on", flush=True)
            os._exit(7)
        message = {
            "kind": "message",
            "role": "agent",
            "messageId": "m1",
            "parts": [{"kind": "text", "text": CONFIG.get("answer", "yes")}],
        }
        return {"jsonrpc": "2.0", "id": body["id"], "result": message}

    def answer(self, body: object, status: int = 200) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


if "exit" in CONFIG:
    print(CONFIG.get("says", ""), flush=True)
    sys.exit(CONFIG["exit"])
DIARY.parent.mkdir(parents=True, exist_ok=True)
ENVIRON = {**os.environ, "KEY_BACKWARDS": os.environ.get("KEY", "")[::-1]}
DIARY.write_text(json.dumps(["env", ENVIRON]) + "\n")
where = (os.environ["A2A_HOST"], int(os.environ["A2A_PORT"]))
ThreadingHTTPServer(where, Handler).serve_forever()
