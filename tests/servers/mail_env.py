"""An environment as its author writes it; run as a program by the tests."""

from __future__ import annotations

import anyio

from pytest_harbor.env import Environment

env = Environment("mail", state={"inbox": []})


@env.tool
def email_search(query: str) -> list[dict]:
    """Messages that hold the query."""
    return [message for message in env.state["inbox"] if query in str(message)]


@env.tool
async def wait(seconds: float) -> str:
    """Take some time."""
    print("waiting", flush=True)  # noqa: T201 - read by the test
    await anyio.sleep(seconds)
    return "done"


if __name__ == "__main__":
    env.run()
