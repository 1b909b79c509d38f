"""A model that follows a script, behind the wire formats of real providers.

OpenAI's chat completions and responses, Anthropic's messages and Gemini's
generateContent, whole or streamed, with tool calls and token usage. It checks the API
key, and fails as the providers do when the script says so.
"""

from __future__ import annotations

from model_server.conversation import Message, Request, Tool
from model_server.script import (
    Call,
    Fault,
    Run,
    Say,
    Scene,
    Together,
    Write,
)
from model_server.server import (
    CACHED_TOKENS,
    INPUT_TOKENS,
    KEY,
    MODEL,
    OUTPUT_TOKENS,
    ModelServer,
)

__all__ = [
    "CACHED_TOKENS",
    "INPUT_TOKENS",
    "KEY",
    "MODEL",
    "OUTPUT_TOKENS",
    "Call",
    "Fault",
    "Message",
    "ModelServer",
    "Request",
    "Run",
    "Say",
    "Scene",
    "Together",
    "Tool",
    "Write",
]
