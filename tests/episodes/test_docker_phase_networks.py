"""Whole episodes in containers whose network changes with the phase."""

from __future__ import annotations

from functools import partial

import pytest

from task_folders import write_task

pytestmark = [pytest.mark.docker, pytest.mark.slow]

ASK = """
python3 - <<'END' >> /tmp/found
import os, urllib.error, urllib.request
print(len(os.listdir("/sys/class/net")) - 1)
try:
    urllib.request.urlopen("http://name.test/", timeout=5)
except urllib.error.HTTPError as error:
    print(error.code)
except OSError:
    print("no way")
END
"""
VERIFY = f"""{ASK}
cat /tmp/found
echo 1 > /logs/verifier/reward.txt
"""


@pytest.fixture(scope="module")
def provider(portal, python_image):
    from pytest_harbor.sandboxes.docker.provider import DockerProvider

    provider = DockerProvider(egress_image=python_image)
    yield provider
    portal.call(provider.aclose)


def test_agent_and_verifier_have_networks_of_their_own(
    portal, provider, python_image, tmp_path
):
    from episode_runs import run_folder

    task = write_task(
        tmp_path / "task",
        "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['other.test']\n"
        "[verifier]\nnetwork_mode = 'no-network'\n"
        f"[environment]\ndocker_image = '{python_image}'\n",
        files={"solution/solve.sh": ASK, "tests/test.sh": VERIFY},
    )
    run = partial(run_folder, provider, task, "oracle", logs=tmp_path / "logs")
    result = portal.call(run)
    assert (result.status, result.reward) == ("graded", 1)
    [turn] = result.turns
    told = (turn.logs / "verifier" / "test-stdout.txt").read_text().splitlines()
    assert told == ["1", "403", "0", "no way"]
    assert turn.warnings == (
        "network in phase agent: not in allowed_hosts, so refused: name.test:80",
    )
