"""The chat agent solves example tasks, with a model that follows a script."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_server import KEY, MODEL, ModelServer, Run, Say, Scene

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "local"


def solving(task: str, words: str) -> Scene:
    """A model that looks around, then does what the reference solution does."""
    solution = (EXAMPLES / task / "solution" / "solve.sh").read_text()
    script = f"cat > /tmp/solve.sh <<'SOLVE'\n{solution}\nSOLVE\nbash /tmp/solve.sh"
    return Scene(words, Run("ls -la"), Run(script), Say("It is done."))


def test_three_tasks(run_pytest):
    scenes = (
        solving("guest-list", "Tidy the guest list"),
        solving("leap-years", "The library that lost a day"),
        solving("parcel-labels", "Print the parcel labels"),
    )
    tasks = [EXAMPLES / name for name in ("guest-list", "leap-years", "parcel-labels")]
    with ModelServer(*scenes) as server:
        run = run_pytest(
            *tasks,
            *("--harbor-agent", "chat", "--harbor-model", MODEL),
            env={"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": KEY},
        )
    assert run.code == 0, run.output
    assert [record["reward"] for record in run.records] == [1.0, 1.0, 1.0]
    for record in run.records:
        (turn,) = record["turns"]
        assert turn["response"] == "It is done."
        assert turn["input_tokens"] > 0
    everything = "".join(
        path.read_text(errors="replace")
        for path in run.results.rglob("*")
        if path.is_file()
    )
    assert KEY not in everything + run.output


def test_no_model_and_no_key(run_pytest):
    run = run_pytest(EXAMPLES / "guest-list", "--harbor-agent", "chat")
    assert run.code == 1
    assert "agent 'chat' needs a model: give --harbor-model NAME" in run.output
    assert "agent 'chat' needs OPENAI_API_KEY" in run.output
    assert "Traceback" not in run.output
