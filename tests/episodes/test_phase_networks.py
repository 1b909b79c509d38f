"""The networks of phases: when they are switched, and what is told (spec 3.12, Q21)."""

from __future__ import annotations

import pytest

from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.api import Capabilities
from pytest_harbor.sandboxes.environment import Network
from scripted_sandbox import OK
from task_folders import write_task

SWITCHES = Capabilities(True, isolation="none at all", switches_network=True)
ALLOWED = "network_mode = 'allowlist'\nallowed_hosts = ['a.org']\n"
CLOSED = "network_mode = 'no-network'\n"
TWO = "[[steps]]\nname = 'a'\n[[steps]]\nname = 'b'\n"
FILES = {
    "steps/a/instruction.md": "",
    "steps/b/instruction.md": "",
    "steps/b/workdir/setup.sh": "",
}


class Worker:
    name = "worker"

    def __init__(self, calls):
        self.calls = calls
        self.networks = []

    def setup(self, sandbox):
        self.calls.append(("agent", "setup"))

    def run(self, turn):
        self.networks.append(turn.network)
        self.calls.append(("agent", "run"))

    def end_session(self, sandbox):
        self.calls.append(("agent", "end"))


@pytest.fixture
def phases(tmp_path, scripted, run_scripted):
    """Run a task; returns the order of what was done, and the result."""
    scripted.capabilities = SWITCHES
    passing = scripted.answer

    def answer(command):
        for word in ("setup.sh", "collect-me"):
            if word in command.text:
                scripted.calls.append(("phase", word))
                return OK
        if "test.sh" in command.text:
            scripted.calls.append(("phase", "verify"))
        return passing(command)

    scripted.answer = answer

    def run_it(toml, files=None):
        task = write_task(tmp_path / "task", toml, files=files or {})
        agent = Worker(scripted.calls)
        result = run_scripted(task, agent)
        kinds = ("set_network", "agent", "phase", "start")
        done = [
            "start" if kind == "start" else text
            for kind, text in scripted.calls
            if kind in kinds
        ]
        return done, result, agent

    return run_it


HOOK = "[[verifier.collect]]\ncommand = 'collect-me'\n"
SEPARATE = "[verifier]\nenvironment_mode = 'separate'\n[verifier.environment]\ndocker_image = 'x'\n"


@pytest.mark.parametrize(
    ("toml", "files", "order"),
    [
        pytest.param(
            f"[agent]\n{CLOSED}{HOOK}",
            {},
            "start setup no-network run end public collect-me verify",
            id="the agent's",
        ),
        pytest.param(
            f"[verifier]\n{CLOSED}{HOOK}",
            {},
            "start setup run end no-network collect-me verify",
            id="the verifier's",
        ),
        pytest.param(
            f"[agent]\n{ALLOWED}[verifier]\n{CLOSED}",
            {},
            "start setup allowlist a.org run end no-network verify",
            id="both",
        ),
        pytest.param(
            f"[agent]\n{CLOSED}[verifier]\n{CLOSED}[environment]\n{CLOSED}",
            {},
            "start setup run end verify",
            id="the sandbox's own",
        ),
        pytest.param(
            f"[agent]\n{CLOSED}{TWO}",
            FILES,
            "start setup no-network run end public verify"
            " setup.sh no-network run end public verify",
            id="the agent's, of each step",
        ),
        pytest.param(
            f"[agent]\n{CLOSED}{SEPARATE}{HOOK}{TWO}",
            FILES,
            # What the agent left running gets none while another sandbox verifies.
            "start setup no-network run end collect-me start verify"
            " public setup.sh no-network run end collect-me start verify",
            id="the agent's, verified elsewhere",
        ),
        pytest.param(
            f"[agent]\n{CLOSED}{TWO}[steps.agent]\nnetwork_mode = 'public'\n",
            FILES,
            "start setup no-network run end public verify setup.sh run end verify",
            id="a step that may do more",
        ),
    ],
)
def test_each_phase_has_its_own(phases, toml, files, order):
    done, result, _ = phases(toml, files)
    assert " ".join(done) == order
    assert result.status == "graded"


def test_the_provider_is_told_before_it_starts(phases, scripted):
    phases(f"[agent]\n{ALLOWED}[verifier]\n{CLOSED}")
    [spec] = scripted.specs
    assert spec.own_network == Network("public")
    assert spec.phase_networks == (
        Network("allowlist", ("a.org",)),
        Network("no-network"),
    )


def test_the_agent_is_told_what_it_has(phases):
    assert phases(f"[agent]\n{ALLOWED}")[2].networks == ["allowlist"]


def test_a_sandbox_that_cannot_switch_is_refused(phases, scripted):
    scripted.capabilities = Capabilities(True)
    done, result, _ = phases(f"[agent]\n{CLOSED}")
    assert (done, result.status) == ([], "refused")
    assert "[agent].network_mode" in result.failure_reason
    assert "a scripted sandbox cannot be switched" in result.failure_reason


def test_what_was_refused_is_a_warning_of_its_turn(phases, scripted):
    scripted.refused = [("not in allowed_hosts: b.org:443",), ("c.org:80",)]
    [turn] = phases(f"[environment]\n{ALLOWED}")[1].turns
    assert turn.warnings == (
        "network in phase agent: not in allowed_hosts: b.org:443",
        "network in phase verify: c.org:80",
    )


def test_a_proxy_that_died_is_an_outage(phases, scripted):
    scripted.failures["network_refusals"] = [SandboxLost("egress proxy x is gone")] * 2
    result = phases(f"[environment]\n{ALLOWED}")[1]
    assert (result.status, result.reward) == ("outage", None)
    assert "egress proxy x is gone" in result.failure_reason
