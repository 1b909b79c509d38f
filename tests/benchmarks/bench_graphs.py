"""Measures step tasks: what the engine adds to each step, and how soon servers answer.

::

    python tests/benchmarks/bench_graphs.py            # ten rounds of each
    python tests/benchmarks/bench_graphs.py --rounds 3

A server's start is compared with the same command on this host, without a sandbox, in the same
rounds: what is left is the sandbox, the port and the wait for the card.
"""

# ruff: noqa: T201 - a script that prints its table
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from graph_runs import SERVERS, Library
from pytest_harbor.graphs.context import Put
from pytest_harbor.graphs.ports import reserve_port
from pytest_harbor.graphs.run import run
from pytest_harbor.graphs.steps.api import StepRun, StepType
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.tasks.steps.load import load_step_task
from pytest_harbor.tasks.steps.step import Step
from step_bundles import agent_up, ask, env_up, load, take

STEPS = 50
SCRIPTED = 'command = ["python", "-m", "pytest_harbor.agents.scripted"]\n'
MAIL = """\
from pytest_harbor.env import Environment

env = Environment("mail", state={"inbox": []})

@env.tool
def search(query: str) -> list[dict]:
    "Messages that hold the query."
    return [m for m in env.state["inbox"] if query in str(m)]

env.run()
"""


async def nothing(step: Step, step_run: StepRun) -> None:
    """A step whose work is one write to the context."""
    step_run.write(Put("done", step.id, True))


async def trivial_steps(root: Path, *, chain: bool) -> float:
    """Seconds per step of a task of trivial steps."""
    file = root / "tasks" / "t.json"
    file.parent.mkdir(parents=True)
    steps = [{"id": f"s{n}", "type": "nothing"} for n in range(STEPS)]
    if not chain:
        steps = [{**step, "depends_on": []} for step in steps]
    file.write_text(json.dumps(steps))
    task = load_step_task(file, step_types={"nothing": Step})
    started = time.perf_counter()
    result = await run(
        task,
        {},
        lambda _: None,
        logs=root / "logs",
        step_types={"nothing": StepType(Step, nothing)},
    )
    assert result.outcome == "unscored", result
    return (time.perf_counter() - started) / STEPS


def on_this_host(script: Path, config: Mapping[str, Any], variable: str) -> float:
    """Seconds from the start of a server's process to its first answer, unsandboxed."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "server.py")
        copy.write_text(script.read_text().replace("/app/artifact", folder))
        copy.with_name("config.json").write_text(json.dumps(config))
        port = reserve_port()
        card = "agent-env.json" if variable == "MCP" else "agent-card.json"
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, str(copy)],
            env={
                **os.environ,
                f"{variable}_HOST": "127.0.0.1",
                f"{variable}_PORT": str(port),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while True:
                try:
                    url = f"http://127.0.0.1:{port}/.well-known/{card}"
                    urllib.request.urlopen(url).read()
                    return time.perf_counter() - started
                except OSError:  # noqa: PERF203 - it is asked until it answers
                    time.sleep(0.005)
        finally:
            process.kill()
            process.wait()


async def in_a_sandbox(root: Path, provider: LocalProvider, kind: str) -> float:
    """Seconds that a run reports for one deployment: sandbox, server, card."""
    library = Library(root, {"local": provider})
    library.env()
    library.agent()
    result = await library.run(env_up() if kind == "env" else agent_up())
    assert result.outcome == "unscored", result
    (event,) = [one for one in library.events if one.kind == "deployed"]
    return float(str(event.data["seconds"]))


async def six_steps(root: Path, provider: LocalProvider) -> float:
    """Seconds of the format's example: env, inbox, assistant, reply, rubric, collect."""
    library = Library(root, {"local": provider})
    answers = [
        {
            "do": [
                {"call": "search", "arguments": {"query": "atlas"}, "save": "found"},
                {"write": "/app/artifact/answer.txt", "text": "got {{found}}"},
            ],
            "answer": "Answered.",
        }
    ]
    grades = {"results": [{"id": "c1", "score": 1, "justification": "It did."}]}
    library.files |= {
        "envs/mail/env.toml": (
            'command = ["python", "server.py"]\nenvironment_name = "mail"\n'
        ),
        "envs/mail/server.py": MAIL,
        "artifacts/inbox/artifact.toml": (
            'type = "environment"\nenvironment_name = "mail"\n'
        ),
        "artifacts/inbox/inbox.json": '{"inbox": [{"text": "the atlas"}]}',
        "agents/clerk/agent.toml": SCRIPTED,
        "agents/clerk/script.json": json.dumps({"answers": answers}),
        "agents/judge/agent.toml": SCRIPTED,
        "agents/judge/script.json": json.dumps({"answers": [{"answer": grades}]}),
    }
    result = await library.run(
        env_up(env_id="mail", depends_on=[]),
        load(env_id="mail", artifact_id="inbox", depends_on=["up"]),
        agent_up(env_ids=["mail"], depends_on=["up"]),
        ask(),
        {
            "id": "grade",
            "type": "rubrics_verifier",
            "prompt_id": "reply",
            "verifier_id": "manners",
            "judge_a2a_agent_id": "judge",
            "criteria": [{"id": "kind", "criterion": "The clerk answers."}],
            "depends_on": ["ask"],
        },
        take(depends_on=["ask"]),
    )
    assert result.outcome == "passed", result
    return result.seconds


async def measure(rounds: int) -> None:
    """Print the table."""
    times: dict[str, list[float]] = {}
    provider = LocalProvider()
    try:
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as name:
                root = Path(name)
                plain = {"env": "plain_env.py", "agent": "plain_agent.py"}
                row = {
                    "chain of 50 steps, per step": await trivial_steps(
                        root / "chain", chain=True
                    ),
                    "50 steps at once, per step": await trivial_steps(
                        root / "fan", chain=False
                    ),
                }
                for kind, script in plain.items():
                    variable = "MCP" if kind == "env" else "A2A"
                    row[f"{kind} on this host"] = await anyio.to_thread.run_sync(
                        on_this_host, SERVERS / script, {}, variable
                    )
                    row[f"{kind} in a local sandbox"] = await in_a_sandbox(
                        root / kind, provider, kind
                    )
                row["six steps, whole run"] = await six_steps(root / "six", provider)
            for key, value in row.items():
                times.setdefault(key, []).append(value)
    finally:
        await provider.aclose()
    for key, values in times.items():
        low, middle = min(values) * 1000, statistics.median(values) * 1000
        print(f"{key:<32} median {middle:9.1f} ms   min {low:9.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    anyio.run(measure, parser.parse_args().rounds)
