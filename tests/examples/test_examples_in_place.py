"""examples/local where namespaces are forbidden: the first command of a plain container.

The container is a local sandbox of ours, in which this mode is asked for.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

import anyio
import pytest

from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.sandboxes.transfer_types import Upload

ROOT = Path(__file__).resolve().parents[2]
SITE = Path(sysconfig.get_path("purelib"))
NEEDED = ("anyio", "filelock", "pathspec", "pydantic", "pytest", "tomli")
COMMAND = (
    f"rm -rf /logs && cd /home && {sys.base_prefix}/bin/python3 -m pytest -v "
    "-p pytest_harbor.plugin -p no:cacheprovider -o harbor_local_mode=in-place "
)


def installed(names: Iterable[str], seen: set[str]) -> Iterator[Path]:
    """What distributions and those that they need put into site-packages."""
    for name in {re.split(r"[^\w.-]", name)[0].lower() for name in names} - seen:
        seen.add(name)
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # of another platform or an older Python
        tops = {path.parts[0] for path in found.files or ()}
        yield from (SITE / top for top in tops if top != ".." and (SITE / top).exists())
        needed = [line for line in found.requires or () if "extra ==" not in line]
        yield from installed(needed, seen)


pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="in-place mode needs root"),
    pytest.mark.slow,
]


def in_place(example, arguments):
    """Run pytest on an example, as the first command of a container."""

    async def run():
        provider = LocalProvider()
        try:
            if not (found := await provider.probe()).available:
                pytest.skip(found.reason)
            spec = EnvironmentSpec(network="no-network", workdir="/home")
            sandbox = await provider.start(spec, name="container", labels={})
            packages = set(installed(NEEDED, set()))
            await sandbox.upload(
                [
                    Upload(ROOT / "examples" / example, f"/home/{example}"),
                    *(
                        Upload(path, f"/opt/code/{path.name}")
                        for path in (ROOT / "pytest_harbor", *packages)
                    ),
                ]
            )
            return await sandbox.exec(
                COMMAND + arguments,
                env={"PYTHONPATH": "/opt/code", "PYTHONDONTWRITEBYTECODE": "1"},
                timeout_seconds=100,
            )
        finally:
            await provider.aclose()

    done = anyio.run(run)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "in-place" in done.stdout
    return done.stdout


def test_the_examples_are_green():
    output = in_place("local", "local")
    steps = ("01-batter", "02-oven", "03-frosting", "01-anything", "02-the-best")
    for step in steps:
        assert f"SUBPASSED[{step}]" in output


def test_a_command_line_agent_leaves_nothing():
    options = "--harbor-agent=scribe --harbor-turn-sessions=continue"
    agents = "-c agents/pyproject.toml --rootdir=agents agents"
    left = "ls -d /root/.scribe /opt/harbor-agents /app /logs 2>/dev/null"
    output = in_place("agents", f"{agents} {options} && ! {left}")
    assert "2 passed" in output
