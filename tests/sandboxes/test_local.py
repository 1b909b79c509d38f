"""The local provider: the shared contract, and what only namespaces can promise."""

from __future__ import annotations

import os

import pytest

from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider
from sandboxes.conformance import CASES, Bench, case_id


@pytest.fixture(scope="module")
def bench():
    other = "nobody" if os.geteuid() == 0 else None
    spec = EnvironmentSpec(network="no-network")
    with Bench(LocalProvider(), spec, other_user=other) as bench:
        found = bench.portal.call(bench.provider.probe)
        if not found.available:
            pytest.skip(found.reason)
        yield bench


@pytest.mark.parametrize("case", CASES, ids=case_id)
def test_contract(case, bench, tmp_path):
    bench.run(case, tmp_path)
