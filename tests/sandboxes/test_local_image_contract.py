"""The contract once more, in a sandbox that was started from a built image."""

from __future__ import annotations

import os

import pytest

from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider
from sandboxes.conformance import CASES, Bench, case_id

DOCKERFILE = "FROM debian:12\nRUN mkdir -p /app /srv/made\nWORKDIR /app\n"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    context = tmp_path_factory.mktemp("context")
    (context / "Dockerfile").write_text(DOCKERFILE)
    other = "nobody" if os.geteuid() == 0 else None
    spec = EnvironmentSpec(build_context=context, network="no-network")
    provider = LocalProvider(images=[("debian:*", "host")])
    with Bench(provider, spec, other_user=other) as bench:
        found = bench.portal.call(bench.provider.probe)
        if not found.available:
            pytest.skip(found.reason)
        yield bench


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_contract(case, bench, tmp_path):
    bench.run(case, tmp_path)
