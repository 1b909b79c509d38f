"""``env_outcome_verifier``: an author's check, in a process of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.checks import row_problems, run_check
from step_bundles import agent_up, ask, env_up, load

ROWS = '[{"id": "a", "result": True}]'


def check(tmp_path: Path, code: str, *, run=None, seconds: float = 60):
    file = tmp_path / "check_it.py"
    file.write_text(code)
    log = tmp_path / "logs" / "check.log"

    async def go():
        return await run_check(
            file, "http://mcp", run, log=log, timeout_seconds=seconds
        )

    return anyio.run(go)


def test_a_check_may_be_async_or_not_and_take_the_run(tmp_path):
    code = (
        "import anyio\n"
        "async def verify(mcp_url, run):\n"
        "    await anyio.sleep(0)\n"
        "    print('looking')\n"
        "    return [\n"
        "        {'id': 'url', 'result': mcp_url == 'http://mcp', 'weight': 2},\n"
        "        {'id': 'run', 'result': run.reply == 'r' and run.trajectory == [1],\n"
        "         'score': 0.5, 'description': 'd'},\n"
        "    ]\n"
    )
    run = {"prompt": "p", "reply": "r", "trajectory": [1], "structured_output": None}
    assert check(tmp_path, code, run=run) == [
        {"id": "url", "result": True, "weight": 2, "score": 1.0},
        {"id": "run", "result": True, "score": 0.5, "description": "d"},
    ]
    assert (tmp_path / "logs" / "check.log").read_text() == "looking\n"
    plain = f"def verify(mcp_url):\n    return {ROWS}\n"
    assert check(tmp_path, plain) == [{"id": "a", "result": True, "score": 1.0}]


def test_it_is_another_process_without_the_runners_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    code = (
        "import os, sys\n"
        "def verify(mcp_url):\n"
        "    assert 'pytest' not in sys.modules\n"
        "    return [{'id': str(os.getpid()), 'result': 'OPENAI_API_KEY' in os.environ}]\n"
    )
    (row,) = check(tmp_path, code)
    assert row["id"] != str(os.getpid())
    assert row["result"] is False


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "def verify(mcp_url):\n    return {}['x']\n",
            "check check_it.py: KeyError: 'x' (line 2: return {}['x'])",
        ),
        ("1 +\n", "check check_it.py: SyntaxError: invalid syntax"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named"),
        (
            "x = 1\n",
            "check check_it.py: AttributeError: check_it.py defines no function",
        ),
        (
            "def verify(url):\n    print('bye'); raise SystemExit(4)\n",
            "check check_it.py: its process ended with exit code 4\nbye",
        ),
        ("def verify(url):\n    import os; os._exit(9)\n", "exit code 9"),
        ("def verify(url):\n    return 'yes'\n", "it returned str, not a list of rows"),
        ("def verify(url):\n    return [object()]\n", "not JSON serializable"),
    ],
)
def test_a_check_that_fails_is_an_error_and_no_score(tmp_path, code, message):
    with pytest.raises(StepError) as caught:
        check(tmp_path, code)
    assert message in str(caught.value)
    assert caught.value.kind == "verifier_error"


@pytest.mark.slow
def test_it_has_its_time_and_leaves_nothing(tmp_path):
    code = (
        "import os, subprocess, time\n"
        "def verify(mcp_url):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    open({str(tmp_path / 'child')!r}, 'w').write(str(child.pid))\n"
        "    time.sleep(600)\n"
    )
    with pytest.raises(StepError, match=r"took more than 2 s"):
        check(tmp_path, code, seconds=2)
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    # It was killed; a busy machine may take a moment to let it die.
    until = time.monotonic() + 30
    while is_alive(child):
        assert time.monotonic() < until
        time.sleep(0.01)


def is_alive(stat: Path) -> bool:
    try:
        state = stat.read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # whoever adopted it has not noticed yet


@pytest.mark.parametrize(
    ("rows", "problems"),
    [
        ([], []),
        ([{"id": "a", "result": True, "score": 0, "weight": -1}], []),
        (None, ["it returned NoneType, not a list of rows"]),
        (["a"], ["row 0 is no object"]),
        ([{"result": True}], ["row 0 has no id"]),
        ([{"id": "", "result": True}], ["row 0 has no id"]),
        ([{"id": "a", "result": 1}], ["row 0 has no result that is true or false"]),
        (
            [{"id": "a", "result": True}, {"id": "a", "result": True}],
            ["two rows have the id 'a'"],
        ),
        ([{"id": "a", "result": True, "score": "1"}], ["row 0: score is no number"]),
        (
            [{"id": "a", "result": True, "weight": float("nan")}],
            ["row 0: weight is no number"],
        ),
    ],
)
def test_rows(rows, problems):
    assert list(row_problems(rows)) == problems


CHECK = """\
import json
from pytest_harbor.protocols import mcp

async def verify(mcp_url, run):
    async with mcp.connect(mcp_url) as session:
        state = json.loads((await session.call_tool("look")).text)
    return [
        {"id": "loaded", "result": state == ["{}"]},
        {"id": "said", "result": run.reply == "yes", "weight": 3},
        {"id": "never", "result": False},
    ]
"""


def verify(**fields):
    return {
        "id": "check",
        "type": "env_outcome_verifier",
        "env_id": "library",
        "file_artifact_id": "check_loan",
        "verifier_id": "lent",
        **fields,
    }


@pytest.mark.slow
def test_a_check_looks_at_the_env_itself(run_steps, library):
    library.files["artifacts/check_loan/check_loan.py"] = CHECK
    result = run_steps(
        env_up(),
        load(env_id="library", artifact_id="shelves"),
        agent_up(),
        ask(),
        verify(prompt_id="reply", score_aggregator="weighted_average"),
        {
            "id": "all",
            "type": "aggregate_verifiers",
            "verifier_ids": ["lent"],
            "verifier_id": "total",
            "score_aggregator": "any_pass",
        },
    )
    assert result.failure_reason is None
    entry = result.context.metadata["verifications"]["lent"]
    assert set(entry) == {"results", "score"}
    assert [row["result"] for row in entry["results"]] == [True, True, False]
    assert result.scores == {"lent": 0.8, "total": 1.0}
    assert result.reward == 1.0, "that of the one aggregate"
    assert result.outcome == "scored_below"
    assert result.step("check").scores == {"lent": 0.8}
    total = result.context.metadata["verifications"]["total"]
    assert [row["id"] for row in total["results"]] == [
        "lent.loaded",
        "lent.said",
        "lent.never",
    ]


def test_a_check_that_fails_leaves_no_score(run_steps, library):
    library.files["artifacts/check_loan/check_loan.py"] = "raise ValueError('no')\n"
    result = run_steps(env_up(), verify())
    assert "check check_loan.py: ValueError: no" in result.step("check").error
    assert result.reward is None
    assert result.is_infrastructure


def test_a_check_needs_its_env(run_steps, library):
    down = {"id": "down", "type": "teardown_sandboxes", "env_ids": ["library"]}
    result = run_steps(env_up(), down, verify())
    assert result.step("check").error == (
        "the sandbox of env 'library' is gone: it was stopped"
    )


def test_teardown_stops_and_never_fails(run_steps, library):
    library.agent("auditor", exit=1)
    result = run_steps(
        env_up(),
        agent_up(),
        agent_up(
            id="a",
            a2a_agent_id="auditor",
            agent_name="auditor",
            fail_task_on_error=False,
        ),
        {
            "id": "down",
            "type": "teardown_sandboxes",
            "agent_names": ["clerk", "auditor"],
            "env_ids": ["library"],
        },
        {"id": "more", "type": "teardown_sandboxes", "agent_names": ["clerk"]},
        ask(fail_task_on_error=False),
    )
    down = result.step("down")
    assert down.status == "passed"
    assert down.warnings == (
        "Agent with name 'auditor' not found in context.deployed_agents",
    )
    assert result.step("more").warnings == ("agent 'clerk' was stopped before",)
    sandboxes = {
        result.context.deployed_agents[0].sandbox_id,
        result.context.deployed_envs[0].sandbox_id,
    }
    assert set(result.context.metadata["torn_down_sandbox_ids"]) == sandboxes
    assert "was stopped" in result.step("ask").error
    assert result.warnings == ()
