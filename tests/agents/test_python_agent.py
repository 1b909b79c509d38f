"""How Python agents are called."""

from __future__ import annotations

import sys
import threading

import anyio
import pytest

from pytest_harbor.agents.api import AgentResult, AgentTurn
from pytest_harbor.agents.python_agent import close_agent, run_agent, set_up_agent
from pytest_harbor.errors import AgentError, SandboxLost
from pytest_harbor.sandboxes.api import ExecResult
from pytest_harbor.sandboxes.sync import SyncSandbox
from pytest_harbor.sandboxes.transfer_types import Download, Upload
from scripted_sandbox import ScriptedProvider, ScriptedSandbox


@pytest.fixture
def sandbox():
    answer = lambda command: ExecResult(0, command.text, "")
    return ScriptedSandbox(ScriptedProvider(answer=answer), "box")


@pytest.fixture
def turn(sandbox, tmp_path):
    return AgentTurn("Do it.", sandbox, "task", 0, "alice", 5.0, tmp_path)


def agent_of(run, **methods):
    return type("Agent", (), {"name": "mine", "run": run, **methods})()


def test_async_agent_stays_in_the_loop(turn):
    async def run(self, given):
        assert given is turn
        result = await given.sandbox.exec("hello")
        return AgentResult(text=f"{result.stdout} {threading.get_ident()}")

    result = anyio.run(run_agent, agent_of(run), turn)
    assert result.text == f"hello {threading.get_ident()}"


def test_plain_agent_gets_a_thread_and_a_sync_sandbox(turn, tmp_path):
    def run(self, given):
        box = given.sandbox
        assert isinstance(box, SyncSandbox)
        assert threading.current_thread() is not threading.main_thread()
        assert (box.id, box.provider, box.workdir) == ("box", "scripted", "/app")
        assert given.user == "alice"
        box.upload([Upload(b"data", "/app/file")])
        [got] = box.download([Download("/app/file", tmp_path / "copy")])
        assert got.status == "ok"
        return AgentResult(text=box.exec(["echo", "hi"], user="bob").stdout)

    result = anyio.run(run_agent, agent_of(run), turn)
    assert result.text == "echo hi"
    assert (tmp_path / "copy").read_bytes() == b"data"
    assert turn.sandbox.owner.commands[-1].user == "bob"


def test_plain_function_may_return_a_coroutine(turn):
    async def work():
        return AgentResult(text="later")

    assert (
        anyio.run(run_agent, agent_of(lambda self, turn: work()), turn).text == "later"
    )


def test_none_is_an_empty_result(turn):
    assert (
        anyio.run(run_agent, agent_of(lambda self, turn: None), turn) == AgentResult()
    )


def test_another_type_is_refused(turn):
    with pytest.raises(AgentError, match="run returned str, expected AgentResult"):
        anyio.run(run_agent, agent_of(lambda self, turn: "done"), turn)


def test_abandoned_agent_cannot_touch_the_sandbox_any_more(turn):
    """A thread cannot be stopped, but its sandbox can be taken away."""
    begun, go_on, ended = (threading.Event() for _ in range(3))
    seen = []

    def run(self, given):
        begun.set()
        go_on.wait(10)
        try:
            given.sandbox.exec("too late")
        except AgentError as error:
            seen.append(str(error))
        ended.set()

    async def main():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_agent, agent_of(run), turn)
            await anyio.to_thread.run_sync(begun.wait, 10)
            tasks.cancel_scope.cancel()
        go_on.set()
        await anyio.to_thread.run_sync(ended.wait, 10)

    anyio.run(main)
    assert seen == ["the turn is over; its sandbox takes no more calls"]
    assert turn.sandbox.owner.commands == []


@pytest.mark.parametrize("is_async", [True, False])
def test_exceptions(turn, tmp_path, is_async):
    error = ValueError("bad plan")

    async def run_async(self, turn):
        raise error

    def run_plain(self, turn):
        raise error

    with pytest.raises(AgentError, match=r"^ValueError: bad plan$") as caught:
        anyio.run(run_agent, agent_of(run_async if is_async else run_plain), turn)
    assert caught.value.kind == "agent_run_error"
    assert "raise error" in (tmp_path / "exception.txt").read_text()


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("where", ["run", "setup", "close"])
def test_sys_exit_ends_the_agent_and_nothing_else(turn, tmp_path, where, is_async):
    async def leave_async(self, *args):
        sys.exit(3)

    def leave_plain(self, *args):
        sys.exit(3)

    leave = leave_async if is_async else leave_plain
    agent = agent_of(**{"run": lambda self, turn: None, where: leave})

    async def main():
        if where == "close":
            return await close_agent(agent)
        calling = {
            "run": lambda: run_agent(agent, turn),
            "setup": lambda: set_up_agent(agent, turn.sandbox, tmp_path),
        }
        with pytest.raises(AgentError, match=r"^SystemExit: 3$") as caught:
            await calling[where]()
        assert caught.value.kind == "agent_run_error"
        return (tmp_path / "exception.txt").read_text()

    assert "SystemExit: 3" in anyio.run(main)


@pytest.mark.parametrize(
    "error", [AgentError("slow down", "agent_request_failed", 429), SandboxLost("gone")]
)
def test_what_says_what_it_is_passes_through(turn, error):
    def run(self, turn):
        raise error

    with pytest.raises(type(error)) as caught:
        anyio.run(run_agent, agent_of(run), turn)
    assert caught.value is error


@pytest.mark.parametrize("is_async", [True, False])
def test_setup_and_close_are_optional_and_of_either_kind(sandbox, tmp_path, is_async):
    calls = []

    async def setup_async(self, box):
        calls.append((await box.exec("ready?")).stdout)

    def setup_plain(self, box):
        calls.append(box.exec("ready?").stdout)

    async def close_async(self):
        calls.append("closed")

    def close_plain(self):
        calls.append("closed")

    agent = agent_of(
        lambda self, turn: None,
        setup=setup_async if is_async else setup_plain,
        close=close_async if is_async else close_plain,
    )
    anyio.run(set_up_agent, agent, sandbox, tmp_path)
    assert anyio.run(close_agent, agent) is None
    assert calls == ["ready?", "closed"]
    plain = agent_of(lambda self, turn: None)
    anyio.run(set_up_agent, plain, sandbox, tmp_path)
    assert anyio.run(close_agent, plain) is None


def test_closing_that_fails_is_told_and_fails_nothing():
    def close(self):
        raise OSError("socket")

    agent = agent_of(lambda self, turn: None, close=close)
    assert anyio.run(close_agent, agent) == "closing the agent failed: OSError: socket"


def test_many_blocking_agents_do_not_wait_for_each_others_threads(turn):
    """More than the event loop's own threads, which sandboxes need."""
    barrier = threading.Barrier(45)

    def run(self, given):
        barrier.wait(10)

    async def main():
        async with anyio.create_task_group() as group:
            for _ in range(45):
                group.start_soon(run_agent, agent_of(run), turn)

    anyio.run(main)
    assert not barrier.broken
