"""Tasks, sandboxes and agents in ordinary tests."""

from __future__ import annotations

import pytest

GUEST_LIST = "../local/guest-list"


@pytest.mark.harbor(GUEST_LIST, agent="oracle", min_reward=0.5)
def test_reference_solution(harbor_episode):
    assert harbor_episode.reward > 0.5
    assert harbor_episode.turns[0].reward_file == "txt"


@pytest.mark.harbor("../local/night-shift")
def test_artifacts_are_kept(harbor_episode):
    turn = harbor_episode.turns[0]
    assert turn.artifact("app/report.md").read_text().startswith("# Night shift")
    assert not turn.artifact("evidence/scratch.tmp").exists()


@pytest.mark.harbor(GUEST_LIST, agent="my_agents:ShellAgent")
def test_an_agent_in_python(harbor_episode):
    assert harbor_episode.reward == 1.0
    assert harbor_episode.turns[0].response == "The guest list is clean."
    assert harbor_episode.turns[0].input_tokens == 412


@pytest.mark.harbor(GUEST_LIST, agent="my_agents:LazyAgent", min_reward=0.0)
def test_a_lazy_agent_gets_nothing(harbor_episode):
    assert harbor_episode.reward == 0.0


@pytest.mark.harbor(GUEST_LIST)
def test_by_hand(harbor_sandbox, harbor_task):
    assert harbor_task.id == "guest-list"
    assert harbor_sandbox.exec("test -f guests.csv").exit_code == 0
    assert harbor_sandbox.exec(["wc", "-l", "guests.csv"]).stdout.startswith("9")
