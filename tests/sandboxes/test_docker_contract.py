"""The Docker provider keeps the contract that every provider keeps."""

from __future__ import annotations

import docker
import pytest

from pytest_harbor.sandboxes.docker.install import AGENT_LABEL
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from sandboxes.conformance import CASES, INSTALL_NAME, Bench, case_id

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def bench(docker_image):
    spec = EnvironmentSpec(image=docker_image, network="no-network")
    with Bench(DockerProvider(), spec, other_user="agent") as bench:
        yield bench
    client = docker.from_env()
    label = f"{AGENT_LABEL}={INSTALL_NAME}"
    for image in client.images.list(filters={"label": label}):
        client.images.remove(image.id, force=True)
    client.close()


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_contract(case, bench, tmp_path):
    bench.run(case, tmp_path)
