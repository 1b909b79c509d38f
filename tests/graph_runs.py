"""Runs step tasks of a bundle with plain servers, for tests: real servers, real sandboxes."""

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

SERVERS = Path(__file__).with_name("servers")


@dataclass
class Library:
    """A bundle in a folder, and providers to run its tasks with."""

    root: Path
    providers: Mapping[str, Provider]
    files: dict[str, str | bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def env(self, name: str = "library", **config: Any) -> None:
        """An env whose server is ``servers/plain_env.py``."""
        folder = f"envs/{name}"
        self.files[f"{folder}/env.toml"] = (
            'command = ["python", "server.py"]\n'
            f'environment_name = "{config.pop("wanted_name", name)}"\n'
        )
        self.files[f"{folder}/server.py"] = (SERVERS / "plain_env.py").read_text()
        self.files[f"{folder}/config.json"] = json.dumps(config)

    def agent(self, name: str = "clerk", **config: Any) -> None:
        """An agent whose server is ``servers/plain_agent.py``."""
        folder = f"agents/{name}"
        self.files[f"{folder}/agent.toml"] = 'command = ["python3", "agent.py"]\n'
        self.files[f"{folder}/agent.py"] = (SERVERS / "plain_agent.py").read_text()
        self.files[f"{folder}/config.json"] = json.dumps(config)

    async def run(self, *steps: Mapping[str, Any], **options: Any) -> StepRunResult:
        """Run steps as one task."""
        types = options.get("step_types", {})
        load = {
            key: options.pop(key) for key in ("seed", "overrides") if key in options
        }
        task = load_steps(
            self.root / "bundle",
            list(steps),
            files=self.files,
            step_types={name: kind.model for name, kind in types.items()},
            **load,
        )
        return await run(
            task,
            self.providers,
            self.events.append,
            logs=self.root / "logs",
            **{"environ": {}, **options},
        )
