"""What a local sandbox must not reach, and what must be gone when its owner dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import pytest

import pytest_harbor
from pytest_harbor.errors import SandboxUnavailable, UnsupportedByProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits
from pytest_harbor.sandboxes.local.broker.kernel import KEPT_CAPABILITIES
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.sandboxes.transfer_types import Upload
from sandboxes.conformance import Bench

IS_ROOT = os.geteuid() == 0
KEPT_MASK = sum(1 << number for number in KEPT_CAPABILITIES.values())
PYTHON = f"{sys.base_prefix}/bin/python3"
as_root = pytest.mark.skipif(not IS_ROOT, reason="several users need root")


@pytest.fixture(scope="module")
def bench():
    with Bench(LocalProvider(), EnvironmentSpec(network="no-network")) as bench:
        found = bench.portal.call(bench.provider.probe)
        if not found.available:
            pytest.skip(found.reason)
        yield bench


@pytest.fixture(scope="module")
def shared_box(bench):
    sandbox = bench.portal.call(bench.start)
    yield sandbox
    bench.portal.call(sandbox.stop)


@pytest.fixture
def fresh_box(bench):
    sandbox = bench.portal.call(bench.start)
    yield sandbox
    bench.portal.call(sandbox.stop)


@pytest.fixture
def run(bench):
    def run(sandbox, command, **options):
        options.setdefault("timeout_seconds", 30)

        async def call():
            return await sandbox.exec(command, **options)

        return bench.portal.call(call)

    return run


def test_host_folders_are_not_there(shared_box, run, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("host secret")
    checkout = Path(pytest_harbor.__file__).parent
    for path in (secret, checkout, Path("/var/lib/dpkg"), Path("/sys/kernel")):
        assert not run(shared_box, ["test", "-e", str(path)]).ok, path
    listing = run(shared_box, "ls -A /home /srv /mnt /media /run/* /var/lib; true")
    words = [line for line in listing.stdout.split() if not line.endswith(":")]
    assert words == []


def test_root_home_shows_the_interpreter_at_most(shared_box, run):
    shown = run(shared_box, "ls -A /root").stdout.split()
    assert set(shown) <= {Path(sys.base_prefix).parts[2]}
    assert not run(shared_box, ["test", "-e", "/root/.ssh"]).ok


def test_password_hashes_and_keys_stay_at_home(shared_box, run):
    shadow = run(shared_box, "cat /etc/shadow").stdout
    assert "root:*:" in shadow
    assert "$" not in shadow
    found = run(shared_box, "grep -rl 'PRIVATE KEY-----' /etc; true").stdout
    assert found == ""


@pytest.mark.parametrize("user", [None, pytest.param("nobody", marks=as_root)])
def test_commands_have_a_containers_capabilities_at_most(shared_box, run, user):
    status = run(shared_box, "cat /proc/self/status", user=user).stdout
    values = dict(line.split(":", 1) for line in status.splitlines())
    assert int(values["CapBnd"], 16) == KEPT_MASK
    assert int(values["CapEff"], 16) == (KEPT_MASK if user is None else 0)
    assert int(values["CapInh"], 16) == int(values["CapAmb"], 16) == 0
    assert values["NoNewPrivs"].strip() == "1"


def test_capabilities_cannot_be_gained_again(shared_box, run):
    script = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        everything = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF, 0xFFFFFFFF, 0] * 2)
        print(libc.capset(header, everything),
              libc.mount(b"none", b"/mnt", b"tmpfs", 0, None),
              libc.unshare(0x20000))
        """
    result = run(shared_box, [PYTHON, "-c", textwrap.dedent(script)])
    assert result.stdout == "-1 -1 -1\n"


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/swappiness",
        "/proc/sysrq-trigger",
    ],
)
def test_kernel_settings_are_read_only(shared_box, run, path):
    if not Path(path).exists():
        pytest.skip("not on this kernel")
    before = Path(path).read_bytes() if path.startswith("/proc/sys/") else b""
    # What was there is written back: a hole must not hurt whoever runs this.
    result = run(shared_box, f"cat > {path}", stdin=before)
    assert result.exit_code != 0
    assert "Read-only" in result.stderr or "denied" in result.stderr


def test_kernel_settings_stay_so_in_namespaces_of_the_agents_own(shared_box, run):
    inner = (
        "mount -o remount,bind,rw /proc/sys; umount /proc/sys;"
        " mount -t proc proc /mnt && cat /proc/sys/kernel/core_pattern"
        " > /mnt/sys/kernel/core_pattern && echo WRITTEN;"
        " cat /proc/sys/kernel/core_pattern > /tmp/p;"
        " cat /tmp/p > /proc/sys/kernel/core_pattern && echo WRITTEN"
    )
    result = run(shared_box, ["unshare", "-Urmpf", "--", "sh", "-c", inner])
    assert "WRITTEN" not in result.stdout


def test_own_folders_hold_no_more_than_the_limit(bench, run):
    async def start():
        return await bench.start(limits=Limits(storage_mib=3))

    sandbox = bench.portal.call(start)
    try:
        for folder in ("/app", "/tmp", "/logs/agent"):
            result = run(sandbox, f"head -c 4000000 /dev/zero > {folder}/x")
            assert "No space left" in result.stderr
            assert run(sandbox, f"rm {folder}/x; echo x > {folder}/y").ok
    finally:
        bench.portal.call(sandbox.stop)


def test_public_network_is_the_hosts(bench, run):
    def names(text):
        return {line.split(":")[0].strip() for line in text.splitlines()[2:]}

    async def start():
        return await bench.start(network="public")

    sandbox = bench.portal.call(start)
    try:
        inside = run(sandbox, ["cat", "/proc/net/dev"]).stdout
    finally:
        bench.portal.call(sandbox.stop)
    assert names(inside) == names(Path("/proc/net/dev").read_text())


def test_writes_do_not_reach_the_host(fresh_box, run):
    name = f"harbor-test-{os.getpid()}"
    result = run(
        fresh_box,
        f"for d in /usr /usr/bin /usr/local/bin /usr/lib /etc /opt; do"
        f" echo x > $d/{name} || exit 1; done; echo x > /usr/bin/env; rm /etc/passwd",
    )
    assert result.exit_code == 0 or not IS_ROOT, result
    for folder in ("/usr", "/usr/bin", "/usr/local/bin", "/etc", "/opt"):
        assert not Path(folder, name).exists()
    assert Path("/usr/bin/env").stat().st_size > 2
    assert Path("/etc/passwd").exists()


def test_writes_do_not_reach_other_sandboxes(bench, fresh_box, run):
    run(fresh_box, "echo x > /usr/mine; echo x > /etc/mine")
    other = bench.portal.call(bench.start)
    try:
        assert not run(other, "test -e /usr/mine || test -e /etc/mine").ok
    finally:
        bench.portal.call(other.stop)


def test_interpreter_is_shown_read_only(shared_box, run):
    result = run(shared_box, ["python3", "-c", "print(6 * 7)"])
    assert result.stdout == "42\n"
    target = f"{sys.base_prefix}/bin/harbor-test"
    run(shared_box, f"touch {target}")
    assert not Path(target).exists()


@as_root
def test_interpreter_can_be_used_by_every_user(shared_box, run):
    assert run(shared_box, [PYTHON, "-c", "print(1)"], user="nobody").stdout == "1\n"


def test_our_own_processes_cannot_be_looked_into(shared_box, run):
    script = """
        import ctypes, os
        libc = ctypes.CDLL(None)
        ours = [1, os.getppid()]
        for pid in ours:
            print(libc.ptrace(16, pid, None, None), end=" ")
            names = ["mem", "environ", "root/etc/passwd", "cwd/etc/passwd"]
            names += [f"fd/{number}" for number in range(40)]
            for name in names:
                try:
                    open(f"/proc/{pid}/{name}", "rb").read(1)
                    print("OPEN", name, pid, end=" ")
                except OSError:
                    pass
        """
    result = run(shared_box, [PYTHON, "-c", textwrap.dedent(script)])
    assert result.stdout == "-1 -1 ", result


def test_our_own_processes_are_not_called_python(shared_box, run):
    result = run(shared_box, "cat /proc/$PPID/comm; tr '\\0' ' ' < /proc/$PPID/cmdline")
    assert "python" not in result.stdout
    assert result.stdout.startswith("harbor-")


def test_command_inherits_its_streams_only(shared_box, run):
    result = run(shared_box, "for f in /proc/self/fd/*; do echo ${f##*/}; done")
    # the shell's own descriptor of the folder may be among them
    assert set(result.stdout.split()) - {"3"} == {"0", "1", "2"}


@as_root
@pytest.mark.parametrize(
    "plant", ["mkfifo /etc/passwd", "mkdir /etc/passwd", "ln -s /dev/zero /etc/passwd"]
)
def test_hostile_passwd_neither_hangs_nor_fools(fresh_box, run, plant):
    assert run(fresh_box, f"rm /etc/passwd && {plant}").ok
    with pytest.raises(UnsupportedByProvider, match="nobody"):
        run(fresh_box, "id -u", user="nobody")
    assert run(fresh_box, "echo $(id -u)", user=0).stdout == "0\n"


@as_root
def test_user_added_later_is_known_with_groups_and_home(fresh_box, run):
    run(
        fresh_box,
        "echo 'agent:x:4321:4321::/home/agent:/bin/sh' >> /etc/passwd;"
        " echo 'agent:x:4321:' >> /etc/group; echo 'extra:x:4322:x,agent' >> /etc/group",
    )
    result = run(fresh_box, 'id -u; id -G; echo "$HOME $USER"; touch ~/x', user="agent")
    assert result.stdout.splitlines() == ["4321", "4321 4322", "/home/agent agent"]
    assert result.ok


def test_agent_that_kills_all_keeps_its_sandbox(fresh_box, run):
    run(fresh_box, "kill -9 -1; kill -9 1; true")
    assert run(fresh_box, "echo alive").stdout == "alive\n"


@pytest.mark.parametrize("pause", ["", "sleep 0.3; "])
def test_tree_dies_with_its_supervisor(fresh_box, run, pause):
    run(fresh_box, "setsid sleep 4099 >/dev/null 2>&1 &")
    script = f"setsid sleep 4100 & {pause}kill -9 $PPID; sleep 4100"
    result = run(fresh_box, script, timeout_seconds=20)
    assert result.exit_code == 137
    left = run(fresh_box, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout
    assert "sleep 4100" not in left
    assert "sleep 4099" in left


def test_zombies_are_collected(fresh_box, run):
    run(fresh_box, "(sleep 0.1 &) ; (setsid sleep 0.1 &)")
    script = "sleep 0.4; cat /proc/[0-9]*/status | grep -c '^State:.Z'"
    assert run(fresh_box, script).stdout == "0\n"


def test_fifty_at_once(bench):
    async def fifty():
        alive = []

        async def one(number):
            sandbox = await bench.start()
            result = await sandbox.exec(f"echo {number}")
            alive.append(int(result.stdout))
            await sandbox.stop()

        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, number)
        return sorted(alive)

    assert bench.portal.call(fifty) == list(range(50))


OWNER = """
import json, os, sys, anyio
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local.provider import LocalProvider

async def main():
    provider = LocalProvider()
    await provider.probe()
    box = await provider.start(EnvironmentSpec(network="no-network"), name="t", labels={})
    await box.spawn("setsid sleep 4200 & sleep 4201")
    ready = provider._base
    print(json.dumps([ready.broker._process.pid, str(ready.folder)]), flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""


def _children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def _processes_below(pid):
    pending, found = [pid], []
    while pending:
        one = pending.pop()
        found.append(one)
        try:
            children = Path(f"/proc/{one}/task/{one}/children").read_text().split()
        except OSError:
            continue
        pending += [int(child) for child in children]
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_killed_owner_leaves_nothing(bench, how):
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with owner:
        broker, folder = json.loads(owner.stdout.readline())
        processes = _processes_below(broker)
        assert len(processes) >= 5
        assert Path(folder).exists()
        owner.send_signal(how)
        owner.wait(20)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        left = [pid for pid in processes if _is_alive(pid)]
        if not left and not Path(folder).exists():
            break
        time.sleep(0.01)
    assert not left
    assert not Path(folder).exists()


def _is_alive(pid):
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_sweep_removes_folders_of_dead_owners_only(bench, tmp_path, monkeypatch):
    from pytest_harbor.sandboxes.local import shelf as module
    from pytest_harbor.sandboxes.owner import Owner

    monkeypatch.setattr(module, "shelves", lambda: [tmp_path])
    now = Owner.current()
    dead = Owner(now.place, now.pid, now.start_ticks + 1)
    for name, owner in {"dead": dead, "alive": now}.items():
        folder = tmp_path / f"{module.FOLDER_PREFIX}{name}"
        (folder / "etc").mkdir(parents=True)
        (folder / "owner").write_text(str(owner))
    (tmp_path / f"{module.FOLDER_PREFIX}unknown").mkdir()
    half = tmp_path / f"{module.FOLDER_PREFIX}half-removed"
    half.mkdir()
    os.utime(half, (0, 0))
    gone = tmp_path / f"{module.FOLDER_PREFIX}gone"
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda *a: [gone, *glob(*a)])  # removed meanwhile
    assert module.sweep_folders() == 2
    left = sorted(
        path.name.removeprefix(module.FOLDER_PREFIX) for path in tmp_path.iterdir()
    )
    assert left == ["alive", "unknown"]


def test_closing_the_provider_ends_everything(tmp_path):
    async def main():
        provider = LocalProvider()
        if not (await provider.probe()).available:
            pytest.skip("no namespaces")
        sandbox = await provider.start(
            EnvironmentSpec(network="no-network"), name="t", labels={}
        )
        await sandbox.spawn("sleep 4300")
        ready = provider._base
        processes = _processes_below(ready.broker._process.pid)
        await provider.aclose()
        await provider.aclose()
        with pytest.raises(SandboxUnavailable, match="closed"):
            await provider.start(EnvironmentSpec(), name="t", labels={})
        return processes, ready.folder

    processes, folder = anyio.run(main)
    assert len(processes) >= 4
    assert not [pid for pid in processes if _is_alive(pid)]
    assert not folder.exists()


def test_nothing_grows_with_the_number_of_sandboxes(bench):
    async def episodes(number):
        for _ in range(number):
            sandbox = await bench.start()
            await sandbox.exec("true")
            process = await sandbox.spawn("true")
            await process.wait()
            await sandbox.stop()

    def counts():
        broker = bench.provider._base.broker._process.pid
        return [
            len(bench.provider._sandboxes),
            len(list(Path("/proc/self/fd").iterdir())),
            len(list(Path(f"/proc/{broker}/fd").iterdir())),
        ]

    bench.portal.call(episodes, 2)
    before = counts()
    bench.portal.call(episodes, 10)
    after = counts()
    # The broker may have one or two ended processes still to collect.
    assert all(now <= then + 2 for now, then in zip(after, before, strict=True))


def test_two_processes_serve_a_sandbox_however_much_is_asked(bench, fresh_box):
    broker = bench.provider._base.broker._process.pid

    async def ask(number):
        for _ in range(number):
            await fresh_box.exec("true")
            await fresh_box.upload([Upload(b"x", "/tmp/x")])
            assert await fresh_box.read_bytes("/tmp/x") == b"x"

    bench.portal.call(ask, 1)
    before = set(_children(broker))
    bench.portal.call(ask, 5)
    assert set(_children(broker)) == before

    async def ask_at_once():
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask, 2)

    bench.portal.call(ask_at_once)
    bench.portal.call(ask, 1)
    deadline = time.monotonic() + 10
    while len(_children(broker)) > len(before) and time.monotonic() < deadline:
        time.sleep(0.01)  # those that were too many still end
    assert len(_children(broker)) == len(before)


def test_an_agent_that_keeps_making_the_file_is_not_in_the_way(bench, fresh_box):
    """A file made between our look and our writing must not fail a transfer."""

    async def race():
        loop = await fresh_box.spawn(
            "while :; do echo bad > /tmp/race; rm -f /tmp/race; done"
        )
        for _ in range(100):
            await fresh_box.upload([Upload(b"ours", "/tmp/race")])
        await loop.kill()
        await fresh_box.upload([Upload(b"ours", "/tmp/race")])
        return await fresh_box.read_bytes("/tmp/race")

    assert bench.portal.call(race) == b"ours"


def test_a_process_that_was_killed_is_replaced(bench, fresh_box):
    broker = bench.provider._base.broker._process.pid
    bench.portal.call(fresh_box.read_bytes, "/etc/passwd")
    names = {
        int(pid): Path(f"/proc/{pid}/comm").read_text() for pid in _children(broker)
    }
    workers = [pid for pid, name in names.items() if name == "harbor-broker\n"]
    assert workers
    for pid in workers:
        os.kill(pid, signal.SIGKILL)

    async def ask():
        result = await fresh_box.exec("echo there")
        return result.stdout, await fresh_box.read_bytes("/etc/hostname") is not None

    while any(_is_alive(pid) for pid in workers):
        time.sleep(0.01)
    assert bench.portal.call(ask) == ("there\n", True)


def test_probing_twice_at_once_is_probing_once():
    async def main():
        provider = LocalProvider()
        found = []

        async def probe():
            found.append(await provider.probe())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(probe)
            tasks.start_soon(probe)
        await provider.aclose()
        return found

    first, second = anyio.run(main)
    assert first is second


def test_upload_does_not_follow_links_into_our_own_descriptors(fresh_box, bench, run):
    run(fresh_box, "ln -s /proc/self/fd/0 /in; ln -s /proc/self/fd /fds")
    for target in ("/in/x", "/fds/3/x"):

        async def upload(target=target):
            await fresh_box.upload([Upload(b"x", target)])

        with pytest.raises(OSError, match="cannot copy"):
            bench.portal.call(upload)


def test_a_tree_that_somebody_else_removes_too_is_removed(tmp_path, monkeypatch):
    from pytest_harbor.sandboxes.local.broker import files

    for name in "one", "two", "three":
        (tmp_path / "tree" / name / "deep").mkdir(parents=True)
        (tmp_path / "tree" / name / "file").touch()
    unlink, raced = os.unlink, []

    def too_late(name, *, dir_fd):
        if name == "file" and not raced:
            raced.append(name)
            unlink(name, dir_fd=dir_fd)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(files.os, "unlink", too_late)
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        files.remove(parent, "tree")
    finally:
        os.close(parent)
    assert raced
    assert not (tmp_path / "tree").exists()
