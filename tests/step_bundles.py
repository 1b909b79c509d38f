"""Makes bundle folders with step tasks for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_harbor.tasks.steps.load import load_step_task
from pytest_harbor.tasks.steps.task import StepTask

# A lending desk: an env with its data, two agents, a check and a skill.
LIBRARY: Mapping[str, str] = {
    "envs/library/env.toml": (
        'command = ["python", "server.py"]\nenvironment_name = "library"\n'
    ),
    "agents/clerk/agent.toml": 'command = ["python", "agent.py"]\n',
    "agents/reader/Dockerfile": "FROM scratch\n",
    "artifacts/shelves/artifact.toml": (
        'type = "environment"\nenvironment_name = "library"\n'
    ),
    "artifacts/shelves/shelves.json": "{}",
    "artifacts/rules/rules.md": "No food.",
    "artifacts/maps/north.txt": "n",
    "artifacts/maps/more/south.txt": "s",
    "artifacts/check_loan/check_loan.py": "def verify(mcp_url): return []\n",
    "artifacts/image/Dockerfile": "FROM scratch\n",
    "skills/fines/SKILL.md": (
        '---\nname: fines\ndescription: "How fees are worked out"\n---\nTen cents.\n'
    ),
}


def write_bundle(
    root: Path,
    *,
    tasks: Mapping[str, Any] | None = None,
    files: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write the library's bundle and return its folder.

    ``tasks`` become ``tasks/<name>.json``, as JSON or, if they are text, as they are.
    ``files`` are further files (and win), by their path inside the folder.
    """
    content: dict[str, str | bytes] = dict(LIBRARY)
    for name, steps in (tasks or {}).items():
        raw = isinstance(steps, (str, bytes))
        content[f"tasks/{name}.json"] = steps if raw else json.dumps(steps)
    for name, text in {**content, **(files or {})}.items():
        path = root / name
        if name in LIBRARY and name not in (files or {}) and path.exists():
            continue  # a folder that several tests share
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return root


def load_steps(
    root: Path,
    steps: Sequence[Any] | Mapping[str, Any] | str | bytes,
    *,
    files: Mapping[str, str | bytes] | None = None,
    **options: Any,
) -> StepTask:
    """Write ``steps`` as the task ``t`` of the library's bundle, and load it."""
    write_bundle(root, tasks={"t": steps}, files=files)
    return load_step_task(root / "tasks/t.json", **options)


def env_up(**fields: Any) -> dict[str, Any]:
    """A ``deploy_env`` of the library."""
    return {"id": "up", "type": "deploy_env", "env_id": "library", **fields}


def agent_up(**fields: Any) -> dict[str, Any]:
    """A ``deploy_agent`` of the clerk."""
    return {
        "id": "clerk-up",
        "type": "deploy_agent",
        "a2a_agent_id": "clerk",
        "agent_name": "clerk",
        **fields,
    }


def ask(**fields: Any) -> dict[str, Any]:
    """A ``prompt_agent`` for the clerk."""
    return {
        "id": "ask",
        "type": "prompt_agent",
        "agent_name": "clerk",
        "prompt_id": "reply",
        "prompt": "Hello.",
        **fields,
    }


def grade(**fields: Any) -> dict[str, Any]:
    """A ``rubrics_verifier`` of the reply."""
    return {
        "id": "grade",
        "type": "rubrics_verifier",
        "prompt_id": "reply",
        "verifier_id": "manners",
        "criteria": [{"id": "kind", "criterion": "The clerk is kind."}],
        **fields,
    }


def take(**fields: Any) -> dict[str, Any]:
    """A ``collect_artifacts`` from the clerk."""
    return {
        "id": "take",
        "type": "collect_artifacts",
        "agent_name": "clerk",
        **fields,
    }


def load(**fields: Any) -> dict[str, Any]:
    """A ``load_artifact`` without target and source."""
    return {"id": "load", "type": "load_artifact", **fields}
