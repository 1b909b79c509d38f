"""A chat-completions endpoint that answers from a list, and notes what it was asked."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


class Model:
    """``answers``: per request a text, a message, or a status with an error body."""

    def __init__(self) -> None:
        self.answers: list = []
        self.requests: list[dict] = []
        self.keys: list[str] = []

    def app(self) -> Starlette:
        path = "/v1/chat/completions"
        return Starlette(routes=[Route(path, self._complete, methods=["POST"])])

    async def _complete(self, request) -> Response:
        self.requests.append(await request.json())
        self.keys.append(request.headers["authorization"].removeprefix("Bearer "))
        answer = self.answers.pop(0)
        if isinstance(answer, tuple):
            status, body = answer
            return JSONResponse(body, status_code=status)
        message = answer if isinstance(answer, dict) else {"content": answer}
        return JSONResponse(
            {
                "id": "c1",
                "object": "chat.completion",
                "created": 1,
                "model": "served-model",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", **message},
                    }
                ],
                "usage": {
                    "prompt_tokens": 11,
                    "completion_tokens": 5,
                    "total_tokens": 16,
                    "prompt_tokens_details": {"cached_tokens": 8},
                },
            }
        )
