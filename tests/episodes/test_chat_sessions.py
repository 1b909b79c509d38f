"""The chat agent in real sandboxes: one session over three steps, and what stays secret."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from model_server import INPUT_TOKENS, KEY, MODEL, ModelServer, Run, Say, Scene
from pytest_harbor.agents.chat import ChatAgent
from pytest_harbor.agents.trajectory import read_trajectory
from task_folders import write_steps_task, write_task

TOKEN = "sesame-open-11"
VERIFY = """
cp /logs/agent/trajectory.json /logs/verifier/seen.json
test "$(cat /app/log)" = "$(cat /tests/expected)" || exit 1
echo 1 > /logs/verifier/reward.txt
"""
SCENES = (
    Scene("Do a.", Run("echo a >> log"), Say("Did a.")),
    Scene("Do b.", Run("echo b >> log"), Run("true"), Say("Did b.")),
    Scene("Do c.", Run("echo c >> log"), Say("Did c.")),
)
REQUESTS = (2, 3, 2)


@pytest.fixture
def three_steps(tmp_path: Path) -> Path:
    files = {
        f"steps/{name}/tests/expected": "\n".join("abc"[: number + 1]) + "\n"
        for number, name in enumerate("abc")
    }
    files |= {f"steps/{name}/tests/test.sh": VERIFY for name in "abc"}
    return write_steps_task(tmp_path / "task", *"abc", test=None, files=files)


@pytest.mark.parametrize("sessions", ["fresh", "continue"])
def test_three_steps(run_local, three_steps: Path, sessions: str) -> None:
    with ModelServer(*SCENES) as server:
        result = run_local(
            three_steps,
            ChatAgent(model=MODEL),
            settings={"turn_sessions": sessions, "retries": 0},
            environ={"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY},
        )
    assert (result.status, result.reward) == ("graded", 1.0), result.failure_reason
    assert not server.problems
    assert [turn.input_tokens for turn in result.turns] == [
        number * INPUT_TOKENS for number in REQUESTS
    ]
    told = [
        entry["content"]
        for entry in server.turns[-1].body["messages"]
        if entry["role"] == "user"
    ]
    if sessions == "fresh":
        assert told == ["Do c."]
        assert result.trajectory is None
        assert all(turn.trajectory for turn in result.turns)
    else:
        assert told == ["Do a.", "Do b.", "Do c."]
        whole = read_trajectory(json.loads(result.trajectory.read_text()))
        metrics = whole.final_metrics
        assert metrics.total_prompt_tokens == sum(REQUESTS) * INPUT_TOKENS
        assert not any(turn.trajectory for turn in result.turns)
    for turn, requests in zip(result.turns, REQUESTS, strict=True):
        # Each verifier sees its own turn alone (spec 12.5).
        seen = json.loads((turn.logs / "verifier/seen.json").read_text())
        steps = read_trajectory(seen).steps
        assert [step.message for step in steps if step.source == "user"] == [
            f"Do {turn.name}."
        ]
        assert len([s for s in steps if s.source == "agent"]) == requests
        assert turn.agent_steps == requests


@pytest.fixture
def talkative_server() -> Iterator[str]:
    """A server that refuses everybody, and tells the token that it was shown."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = f"not you with {self.headers['Authorization']}".encode()
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    server.shutdown()
    thread.join()
    server.server_close()


def test_keys_and_headers_are_masked(
    run_local, tmp_path: Path, talkative_server: str
) -> None:
    toml = (
        '[[environment.mcp_servers]]\nname = "notes"\ntransport = "http"\n'
        f'url = "{talkative_server}"\n'
        'headers = { Authorization = "Bearer ${NOTES_TOKEN}" }\n'
    )
    # Whatever way the model has come to know it.
    scene = Scene("Do it.", Run(f"echo {KEY} | tee told"), Say(f"It is {KEY}."))
    with ModelServer(scene) as server:
        result = run_local(
            write_task(tmp_path / "task", toml),
            ChatAgent(model=MODEL),
            environ={
                "OPENAI_BASE_URL": f"{server.url}/v1",
                "OPENAI_API_KEY": KEY,
                "NOTES_TOKEN": TOKEN,
            },
        )
    [turn] = result.turns
    assert turn.response == "It is ***."
    assert [text for text in turn.warnings if "'notes' is left out" in text]
    files = [path for path in (tmp_path / "logs").rglob("*") if path.is_file()]
    assert {"chat.json", "shell.txt", "trajectory.json"} <= {f.name for f in files}
    everything = repr(result) + "".join(f.read_text() for f in files)
    assert "not you with Bearer ***" in everything
    assert KEY not in everything
    assert TOKEN not in everything


@pytest.mark.docker
def test_in_a_container_without_network(run_docker, tmp_path: Path, toml: str) -> None:
    """The model is asked from here: nothing of it is in the container."""
    scene = Scene("Do it.", Run("id -u; env; echo done >made"), Say("Done."))
    check = 'test "$(cat /app/made)" = done && echo 1 > /logs/verifier/reward.txt'
    with ModelServer(scene) as server:
        result = run_docker(
            write_task(
                tmp_path / "task",
                f'{toml}network_mode = "no-network"\n[agent]\nuser = 1000\n',
                test=check,
            ),
            ChatAgent(model=MODEL),
            environ={"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY},
        )
    assert result.reward == 1.0, result
    [told] = [
        m["content"] for m in server.turns[-1].body["messages"] if m["role"] == "tool"
    ]
    assert told.startswith("1000\n")
    assert KEY not in told
    assert "OPENAI" not in told
