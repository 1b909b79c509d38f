"""An agent's card and its extensions (spec 12), written without our code."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

URN = "urn:agentenv:"


class Extended:
    """``posted``: what was sent, as (path, body). ``refuses``: answer 422 to the next."""

    def __init__(
        self, names=("mcp-config", "skill-config", "agent-config", "trajectory")
    ):
        self.posted: list[tuple[str, dict]] = []
        self.refuses = False
        self.takes_name = True
        self._names = names

    def card(self) -> dict:
        add = {"required": ["url"], "optional": ["headers"]}
        if self.takes_name:
            add["optional"] = ["headers", "name"]
        methods = {
            "mcp-config": {"add": {"request": add}},
            "skill-config": {"add": {"request": {"required": ["name"]}}},
            "agent-config": {"set": {"request": {"supported": ["model", "effort"]}}},
            "trajectory": {"get": {"request": {"required": ["task_id"]}}},
        }
        extensions = [
            {
                "uri": f"{URN}{name}/v1",
                "params": {"endpoint": f"/ext/{name}", "methods": methods[name]},
            }
            for name in self._names
        ]
        return {
            "name": "extended",
            "url": "/a2a",
            "capabilities": {"extensions": extensions},
        }

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/agent.json", self._card),
                Route("/ext/{name}", self._post, methods=["POST"]),
                Route("/ext/mcp-config", self._list, methods=["GET"]),
            ]
        )

    async def _card(self, _request):
        return JSONResponse(self.card())

    async def _post(self, request):
        body = await request.json()
        name = request.path_params["name"]
        self.posted.append((name, body))
        if self.refuses:
            return PlainTextResponse("no such\nthing", status_code=422)
        if name == "trajectory":
            if body["task_id"] == "lost":
                return JSONResponse({"else": 1})
            return JSONResponse({"trajectory": [{"step": 1}]})
        return JSONResponse({"ok": True}, status_code=201)

    async def _list(self, _request):
        return JSONResponse(
            {"mcp_servers": {"mail": {"url": "u", "has_headers": False}}}
        )
