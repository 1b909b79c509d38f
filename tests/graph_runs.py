"""Runs step tasks of the library's bundle, for tests: real servers in real sandboxes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_harbor.events import Event
from pytest_harbor.graphs.result import StepRunResult
from pytest_harbor.graphs.run import run
from pytest_harbor.sandboxes.api import Provider
from step_bundles import load_steps

SERVER = """\
from pytest_harbor.env import Environment

env = Environment("library", state={"shelves": {}, "loans": []})

@env.tool
def find(title: str) -> str:
    "On which shelf a book stands."
    return env.state["shelves"].get(title, "nowhere")

@env.tool
def lend(title: str, reader: str) -> str:
    "Lend a book."
    env.state["loans"].append({"title": title, "reader": reader})
    return "lent"

env.run()
"""
AGENT_TOML = 'command = ["python", "-m", "pytest_harbor.agents.scripted"]\n'
FILES: Mapping[str, str] = {
    "envs/library/server.py": SERVER,
    "artifacts/shelves/shelves.json": '{"shelves": {"Atlas": "north wall"}}',
    "agents/clerk/agent.toml": AGENT_TOML,
    "agents/clerk/script.json": json.dumps({"answers": [{"answer": "Good day."}]}),
}


@dataclass
class Library:
    """A bundle in a folder, and a provider to run its tasks with."""

    root: Path
    providers: Mapping[str, Provider]
    files: dict[str, str | bytes] = field(default_factory=lambda: dict(FILES))
    events: list[Event] = field(default_factory=list)

    async def run(self, *steps: Mapping[str, Any], **options: Any) -> StepRunResult:
        """Run steps as one task."""
        task = load_steps(self.root / "bundle", list(steps), files=self.files)
        return await run(
            task,
            self.providers,
            self.events.append,
            logs=self.root / "logs",
            **{"environ": {}, **options},
        )

    def script(self, *answers: Any, agent: str = "clerk") -> None:
        """What the agent answers."""
        text = json.dumps({"answers": list(answers)})
        self.files[f"agents/{agent}/script.json"] = text
