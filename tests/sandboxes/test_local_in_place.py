"""In-place mode, proved inside a local sandbox: that is a container of its own."""

from __future__ import annotations

import compileall
import json
import os
import py_compile
import shutil
import sys
import sysconfig
import textwrap
from pathlib import Path

import anyio
import pytest

import pytest_harbor
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.sandboxes.transfer_types import Upload

LIBRARIES = (
    "anyio",
    "exceptiongroup",
    "filelock",
    "idna",
    "sniffio",
    "typing_extensions.py",
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="several users need root")
SITE = Path(sysconfig.get_path("purelib"))
PRELUDE = """
import json, os, signal, sys, time
import anyio
from pathlib import Path
from pytest_harbor.errors import *
from pytest_harbor.sandboxes.environment import *
from pytest_harbor.sandboxes.install_script import *
from pytest_harbor.sandboxes.transfer_types import *
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.sandboxes.local import inplace

SPEC = EnvironmentSpec()
def there(): return sorted(p for p in inplace.PLACES if os.path.exists(p))
def report(**facts): print(json.dumps(facts), flush=True)
def live(mark):
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                line = (entry / "cmdline").read_bytes().replace(bytes(1), b" ")
            except OSError:
                continue
            found += line.startswith(mark.encode())
    return found
"""


@pytest.fixture(scope="module")
def container_files(tmp_path_factory):
    """Our code and what it needs, compiled once and not by every script."""
    code = tmp_path_factory.mktemp("code")
    package = Path(pytest_harbor.__file__).parent
    found = [SITE / name for name in LIBRARIES if (SITE / name).exists()]
    for path in (package, *found):
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        copy(path, code / path.name)
    # Neither times nor places of the files are the same in the container.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(code, quiet=1, force=True, invalidation_mode=unchecked)
    return [Upload(code, "/opt/code")]


def in_container(container_files, *scripts, user=None):
    """Run scripts one after another in one container; their last lines, as JSON."""

    async def run():
        provider = LocalProvider()
        try:
            if not (found := await provider.probe()).available:
                pytest.skip(found.reason)
            spec = EnvironmentSpec(network="no-network", workdir="/home")
            sandbox = await provider.start(spec, name="container", labels={})
            await sandbox.upload(container_files)
            await sandbox.exec("rm -rf /logs")
            results = []
            for script in scripts:
                code = f"{PRELUDE}\n{textwrap.dedent(script)}"
                done = await sandbox.exec(
                    [f"{sys.base_prefix}/bin/python3", "-c", code],
                    env={"PYTHONPATH": "/opt/code", "PYTHONDONTWRITEBYTECODE": "1"},
                    timeout_seconds=60,
                    user=user,
                )
                lines = done.stdout.splitlines()
                assert lines, done
                results.append(json.loads(lines[-1]))
            return results
        finally:
            await provider.aclose()

    return anyio.run(run)


@pytest.mark.slow
def test_episode_uses_the_real_folders_and_takes_them_back(container_files):
    (facts,) = in_container(
        container_files,
        """
        os.mkdir("/app"); os.chmod("/app", 0o750)
        async def main():
            provider = LocalProvider(mode="in-place")
            found = await provider.probe()
            box = await provider.start(SPEC, name="t", labels={})
            during = there()
            await box.upload([Upload(b"#!/bin/sh\\necho 1 > /logs/verifier/reward.txt",
                                     "/tests/test.sh")], empty=["/tests"])
            done = await box.exec("sh /tests/test.sh; echo x > x; pwd; setsid sleep 3100 &")
            reward = await box.read_text("/logs/verifier/reward.txt")
            slow = await box.exec("(setsid sleep 3200 &); sleep 3200", timeout_seconds=1)
            kept, killed = live("sleep 3100"), live("sleep 3200")
            other = await box.exec("id -un", user="nobody")
            await box.stop()
            await box.stop()
            report(mode=found.mode, concurrent=found.concurrent, during=during,
                   out=done.stdout, reward=reward, timed_out=slow.timed_out, kept=kept,
                   killed=killed, other=other.stdout, after=there(),
                   app=os.listdir("/app"), app_mode=os.stat("/app").st_mode & 0o777,
                   left=live("sleep 3100"))
            await provider.aclose()
        anyio.run(main)
        """,
    )
    if os.geteuid() == 0:
        assert facts.pop("other") == "nobody\n"
    assert facts == {
        "mode": "in-place, root",
        "concurrent": False,
        "during": ["/app", "/logs"],
        "out": "/app\n",
        "reward": "1\n",
        "timed_out": True,
        "kept": 1,
        "killed": 0,
        "after": ["/app"],
        "app": [],
        "app_mode": 0o750,
        "left": 0,
    }


@pytest.mark.slow
def test_second_sandbox_waits_for_the_first(container_files):
    (facts,) = in_container(
        container_files,
        """
        order = []
        async def episode(provider, name):
            box = await provider.start(SPEC, name=name, labels={})
            order.append(f"{name} in"); empty = not os.listdir("/app")
            await box.exec(f"touch {name}; sleep 0.2")
            order.append(f"{name} out" if empty else "dirty")
            await box.stop()
        async def main():
            one, two = LocalProvider(mode="in-place"), LocalProvider(mode="in-place")
            await one.probe(); await two.probe()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(episode, one, "a")
                tasks.start_soon(episode, one, "b")
                tasks.start_soon(episode, two, "c")
            await one.aclose(); await two.aclose()
            report(order=order, after=there())
        anyio.run(main)
        """,
    )
    order = facts["order"]
    assert sorted(order) == ["a in", "a out", "b in", "b out", "c in", "c out"]
    for entered, left in zip(order[::2], order[1::2], strict=True):
        assert entered.split()[0] == left.split()[0]
    assert facts["after"] == []


@pytest.mark.slow
def test_places_that_hold_something_are_refused(container_files):
    (facts,) = in_container(
        container_files,
        """
        os.mkdir("/solution"); Path("/solution/mine").write_text("precious")
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            try:
                await provider.start(SPEC, name="t", labels={})
            except UnsupportedByProvider as error:
                text = str(error)
            os.remove("/solution/mine")
            box = await provider.start(SPEC, name="t", labels={})
            await provider.aclose()
            report(text=text, after=there())
        anyio.run(main)
        """,
    )
    assert "/solution already holds something" in facts["text"]
    assert facts["after"] == ["/solution"]


@pytest.mark.slow
def test_installed_software_is_copied_in_and_taken_back(container_files):
    (facts,) = in_container(
        container_files,
        """
        script = "date +%N >$AGENT_PREFIX/made; echo echo works >$AGENT_PREFIX/bin/x"
        install = InstallScript("tool", script, env={"AGENT_VERSION": "1"})
        os.environ["XDG_CACHE_HOME"] = "/cache"
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            made, texts = [], []
            for _ in range(2):
                spec = EnvironmentSpec(install=install)
                box = await provider.start(spec, name="t", labels={})
                made.append(await box.read_text("/opt/harbor-agents/tool/made"))
                done = await box.exec("sh /opt/harbor-agents/tool/bin/x")
                await box.exec("echo bad >/opt/harbor-agents/tool/made")
                texts.append(done.stdout)
                await box.stop()
            os.makedirs("/opt/harbor-agents/tool/mine")
            try:
                await provider.start(spec, name="t", labels={})
            except UnsupportedByProvider as error:
                refused = str(error)
            await provider.aclose()
            report(made=made, texts=texts, after=there(), refused=refused,
                   left=os.listdir("/opt/harbor-agents/tool"))
        anyio.run(main)
        """,
    )
    assert facts["texts"] == ["works\n"] * 2
    assert facts["made"][0] == facts["made"][1] != "bad\n"
    assert facts["after"] == []
    assert "/opt/harbor-agents/tool already holds something" in facts["refused"]
    assert facts["left"] == ["mine"]


@pytest.mark.slow
def test_network_is_refused_by_name(container_files):
    (facts,) = in_container(
        container_files,
        """
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            try:
                provider.check(EnvironmentSpec(network="no-network"), ())
            except UnsupportedByProvider as error:
                report(text=str(error), after=there())
            await provider.aclose()
        anyio.run(main)
        """,
    )
    assert "no-network" in facts["text"]
    assert "in-place" in facts["text"]


@pytest.mark.slow
def test_killed_owner_leaves_nothing_after_the_next_start(container_files):
    killed, after = in_container(
        container_files,
        """
        pid = os.fork()
        if pid == 0:
            async def main():
                provider = LocalProvider(mode="in-place")
                await provider.probe()
                box = await provider.start(SPEC, name="t", labels={})
                await box.spawn("echo x > /app/x; setsid sleep 3300")
                while not (await box.exec(["test", "-e", "/app/x"])).ok:
                    pass
                os.kill(os.getpid(), signal.SIGKILL)
            anyio.run(main)
        os.waitpid(pid, 0)
        deadline = time.monotonic() + 20
        while live("sleep 3300") and time.monotonic() < deadline:
            time.sleep(0.02)
        report(left=live("sleep 3300"), there=there())
        """,
        """
        async def main():
            provider = LocalProvider(mode="in-place")
            removed = (await provider.sweep()).removed
            again = (await provider.sweep()).removed
            report(removed=len(removed) > 0, there=there(), again=len(again))
        anyio.run(main)
        """,
    )
    assert killed == {"left": 0, "there": ["/app", "/logs"]}
    assert after == {"removed": True, "there": [], "again": 0}


@pytest.mark.slow
def test_auto_falls_back_to_it_in_a_container_only(container_files):
    script = """
        import pytest_harbor.sandboxes.local.probing as probing
        def none(): raise SandboxUnavailable("no bubblewrap")
        probing.find_bwrap = none
        inplace._CONTAINER_FILES = ({marker!r},)
        inplace._CONTAINER_WORDS = ()
        async def main():
            provider = LocalProvider()
            found = await provider.probe()
            report(available=found.available, mode=found.mode, reason=found.reason)
            await provider.aclose()
        anyio.run(main)
        """
    inside, outside = in_container(
        container_files,
        script.format(marker="/etc/passwd"),
        script.format(marker="/no/such/marker"),
    )
    assert inside["mode"] == "in-place, root"
    assert outside == {"available": False, "mode": "", "reason": "no bubblewrap"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_normal_user_is_refused(container_files):
    (facts,) = in_container(
        container_files,
        """
        async def main():
            found = await LocalProvider(mode="in-place").probe()
            report(available=found.available, reason=found.reason)
        anyio.run(main)
        """,
        user="nobody",
    )
    assert facts["available"] is False
    assert "root" in facts["reason"]


@pytest.mark.slow
def test_workdir_elsewhere_is_a_place_too(container_files):
    (facts,) = in_container(
        container_files,
        """
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            spec = EnvironmentSpec(workdir="/srv/work")
            box = await provider.start(spec, name="t", labels={})
            done = await box.exec("pwd; touch x")
            await provider.aclose()
            report(out=done.stdout, after=os.path.exists("/srv/work"))
        anyio.run(main)
        """,
    )
    assert facts == {"out": "/srv/work\n", "after": False}


BROKER_IS_KILLED = """
    async def main():
        provider = LocalProvider(mode="in-place")
        await provider.probe()
        box = await provider.start(SPEC, name="t", labels={})
        await box.spawn("env -i setsid sleep 3400 & exec env -i setsid sleep 3400",
                        user=USER)
        while live("sleep 3400") < 2:
            await anyio.sleep(0.01)
        os.kill(provider._base.broker._process.pid, signal.SIGKILL)
        provider._base.broker._process.wait()
        left = live("sleep 3400")
        END
    anyio.run(main)
    """


@pytest.mark.slow
@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=as_root)])
def test_killed_broker_leaves_nothing_after_the_stop(container_files, user):
    end = "await box.stop(); report(left=left, after=live('sleep 3400'), there=there())"
    script = BROKER_IS_KILLED.replace("USER", repr(user)).replace("END", end)
    (facts,) = in_container(container_files, script)
    assert facts == {"left": 2, "after": 0, "there": []}


@pytest.mark.slow
def test_killed_broker_and_owner_leave_nothing_to_the_next(container_files):
    end = "report(left=left); os.kill(os.getpid(), signal.SIGKILL)"
    script = BROKER_IS_KILLED.replace("USER", "None").replace("END", end)
    facts, after = in_container(
        container_files,
        script,
        """
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            before = live("sleep 3400")
            box = await provider.start(SPEC, name="t", labels={})
            report(before=before, after=live("sleep 3400"))
            await provider.aclose()
        anyio.run(main)
        """,
    )
    assert facts == {"left": 2}
    assert after == {"before": 2, "after": 0}


def test_strange_processes_are_spared(container_files):
    (facts,) = in_container(
        container_files,
        """
        import subprocess
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            box = await provider.start(SPEC, name="t", labels={})
            strange = subprocess.Popen(["sleep", "3500"], start_new_session=True)
            await box.stop()
            report(left=strange.poll())
            strange.kill()
            await provider.aclose()
        anyio.run(main)
        """,
    )
    assert facts == {"left": None}


@pytest.mark.slow
def test_workdir_that_leads_elsewhere_deletes_nothing(container_files):
    (facts,) = in_container(
        container_files,
        """
        os.mkdir("/precious"); Path("/precious/file").write_text("x")
        async def main():
            provider = LocalProvider(mode="in-place")
            await provider.probe()
            refused = 0
            for workdir in "/new/../precious", "/app/../precious", "precious":
                try:
                    box = await provider.start(EnvironmentSpec(workdir=workdir),
                                               name="t", labels={})
                    await box.stop()
                except UnsupportedByProvider as error:
                    refused += "workdir" in str(error)
            box = await provider.start(EnvironmentSpec(workdir="//app/./x/"), name="t",
                                       labels={})
            cwd = (await box.exec("pwd")).stdout
            await provider.aclose()
            report(refused=refused, kept=os.listdir("/precious"), cwd=cwd, there=there())
        anyio.run(main)
        """,
    )
    assert facts == {"refused": 3, "kept": ["file"], "cwd": "/app/x\n", "there": []}
