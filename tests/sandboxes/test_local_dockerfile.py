"""Dockerfiles built on the local sandbox: real builds, on the host's userland and others."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import (
    BuildFailed,
    SandboxStartFailed,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.local.provider import LocalProvider
from sandboxes.conformance import Bench

IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="several users need root")
BUSYBOX = Path("/bin/busybox")


@pytest.fixture
def cache(cache_folder):
    return cache_folder / "pytest-harbor" / "images"


@pytest.fixture(scope="module")
def rootfs(tmp_path_factory):
    """A root file system of busybox alone."""
    if not BUSYBOX.exists():
        pytest.skip("no busybox-static here")
    top = tmp_path_factory.mktemp("rootfs") / "tree"
    for folder in ("bin", "etc", "dev"):
        (top / folder).mkdir(parents=True)
    shutil.copy(BUSYBOX, top / "bin/busybox")
    for name in ("sh", "sleep", "cat", "ls", "id", "test", "mkdir", "readlink", "true"):
        (top / "bin" / name).symlink_to("busybox")
    (top / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nagent:x:77:78::/home/agent:/bin/sh\n"
    )
    (top / "etc/group").write_text("root:x:0:\nstaff:x:79:\n")
    subprocess.run(["tar", "-cf", top.parent / "tree.tar", "-C", top, "."], check=True)
    return top


@pytest.fixture(scope="module")
def bench(rootfs):
    images = [
        ("debian:*", "host"),
        ("tree:*", str(rootfs)),
        ("tar:*", str(rootfs.parent / "tree.tar")),
        ("nowhere:*", "/no/such/folder"),
        ("empty:*", str(rootfs.parent)),
    ]
    spec = EnvironmentSpec(network="no-network")
    with Bench(LocalProvider(images=images), spec) as bench:
        found = bench.portal.call(bench.provider.probe)
        if not found.available:
            pytest.skip(found.reason)
        yield bench


@pytest.fixture
def context(tmp_path):
    """Writes a build context; with a comment of its own, no two tests share a layer."""

    def write(dockerfile, **files):
        folder = tmp_path / "environment"
        folder.mkdir(exist_ok=True)
        (folder / "Dockerfile").write_text(textwrap.dedent(dockerfile))
        for name, text in files.items():
            (folder / name.replace("__", "/")).parent.mkdir(exist_ok=True)
            (folder / name.replace("__", "/")).write_text(text)
        return folder

    return write


@pytest.fixture
def ask(bench):
    """Starts a sandbox, runs a command in it, and stops it."""

    def ask(folder, command="true", *, provider=None, **changes):
        told = changes.pop("told", [])
        spec = EnvironmentSpec(
            build_context=folder, **{"network": "no-network", **changes}
        )

        async def main():
            kept = provider or bench.provider
            box = await kept.start(spec, name="test", labels={}, tell=told.append)
            try:
                return await box.exec(command, timeout_seconds=30)
            finally:
                await box.stop()

        return bench.portal.call(main)

    return ask


def lines(result):
    assert result.ok, result.output
    return result.stdout.splitlines()


def half_made(cache):
    return [path.name for path in cache.glob("*.making")]


@as_root
def test_what_a_dockerfile_says_is_there(context, ask, cache):
    folder = context(
        """
        FROM debian:bookworm-slim
        ARG NAME=you
        ENV GREETING="hello $NAME" PATH=/srv/app/bin:$PATH
        RUN mkdir -p /usr/local/share/made && echo "$GREETING" > /usr/local/share/made/it \\
            && useradd --create-home agent && rm /usr/bin/head
        WORKDIR /srv
        WORKDIR app
        COPY --chown=agent:staff tree/ data/
        COPY --chmod=755 tool bin/
        USER agent
        RUN id -un > /tmp/who; pwd >> /tmp/who; env | cut -d= -f1 | sort | tr '\\n' ' ' >> /tmp/who
        """,
        tree__a="a",
        tree__b="b",
        tool="#!/bin/sh\necho tool\n",
    )
    (folder / "tree/link").symlink_to("a")
    os.environ["HARBOR_SECRET"] = "seen"
    try:
        result = ask(
            folder,
            "pwd; id -un; echo $GREETING; tool; cat /usr/local/share/made/it; "
            "stat -c '%U:%G %a' data/a bin/tool; readlink data/link; test -e /usr/bin/head; "
            "echo $?; cat /tmp/who; stat -c %a /tmp /logs/verifier",
            env={"SECRET": "of the task"},
        )
    finally:
        del os.environ["HARBOR_SECRET"]
    names = "GREETING HOME NAME PATH PWD USER "
    expected = ["/srv/app", "agent", "hello you", "tool", "hello you"]
    expected += ["agent:staff 644", "root:root 755", "a", "1"]
    assert lines(result) == [*expected, "agent", "/srv/app", f"{names}1777", "777"]
    assert half_made(cache) == []
    assert not Path("/srv/app").exists()


def test_the_task_wins_over_the_dockerfile(context, ask):
    folder = context("FROM debian:12\nENV A=1 B=2\nWORKDIR /one\nUSER root\n")
    found = ask(folder, "pwd; echo $A $B", workdir="/two", env={"B": "3"})
    assert lines(found) == ["/two", "1 3"]


COUNTED = """
FROM debian:12
RUN cat /proc/sys/kernel/random/uuid > /first
COPY a /
RUN cat /proc/sys/kernel/random/uuid > /second
"""
SHOW = "cat /first /second /a"


def test_layers_are_built_once_and_from_a_change_on(context, ask):
    folder = context(COUNTED, a="1\n", ignored="1")
    told = []
    first = lines(ask(folder, SHOW, told=told))
    assert sum("building" in line for line in told) == 2
    (folder / "ignored").write_text("2")
    assert lines(ask(folder, SHOW)) == first
    (folder / "a").write_text("2\n")
    changed = lines(ask(folder, SHOW))
    assert changed[0] == first[0]
    assert changed[1] != first[1]
    assert changed[2] == "2"


def test_what_was_prepared_is_not_built_again(context, ask, bench):
    spec = EnvironmentSpec(
        build_context=context("FROM debian:12\nRUN echo once > /it\n")
    )
    told: list[str] = []

    async def prepare():
        await bench.provider.prepare(spec, name="test", labels={}, tell=told.append)

    bench.portal.call(prepare)
    assert told
    later: list[str] = []
    assert lines(ask(spec.build_context, "cat /it", told=later)) == ["once"]
    assert later == []


def test_force_builds_anew_once_in_a_session(context, ask, bench):
    folder = context(COUNTED, a="forced\n")
    first = lines(ask(folder, SHOW))
    later = LocalProvider(images=[("debian:*", "host")])
    try:
        forced = lines(ask(folder, SHOW, force_build=True, provider=later))
        assert not set(first[:2]) & set(forced[:2])
        assert lines(ask(folder, SHOW, force_build=True, provider=later)) == forced
    finally:
        bench.portal.call(later.aclose)


def test_processes_build_a_layer_once(context, cache):
    folder = context(COUNTED, a="shared\n")
    code = f"""
    import anyio
    from pathlib import Path
    from pytest_harbor.sandboxes.environment import EnvironmentSpec
    from pytest_harbor.sandboxes.local.provider import LocalProvider

    async def main():
        provider = LocalProvider(images=[("debian:*", "host")])
        spec = EnvironmentSpec(build_context=Path({str(folder)!r}))
        box = await provider.start(spec, name="x", labels={{}})
        print((await box.exec({SHOW!r})).stdout)
        await provider.aclose()

    anyio.run(main)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    said = [run.communicate(timeout=100)[0] for run in runs]
    assert said[0] == said[1]
    assert b"shared" in said[0]


@pytest.mark.parametrize(
    ("dockerfile", "line", "text"),
    [
        ("RUN echo one; echo two >&2; exit 3", 2, "ended with exit code 3\none\ntwo"),
        ("RUN true\nRUN no-such-command", 3, "ended with exit code 127"),
        (
            "RUN echo 'E: Could not open lock file /var/lib/dpkg/lock-frontend'; exit 100",
            2,
            "hint: apt finds no packages in this machine's own userland",
        ),
        ("USER nobody-here\nRUN id", 3, "'nobody-here' is not in /etc/passwd"),
        ('RUN ["no-such"]', 2, "ended with exit code 127"),
        ("COPY --chown=nobody-here a /", 2, "no 'nobody-here' in the image"),
        ("RUN touch /x\nCOPY a /x/a", 3, "File exists"),
        ("COPY d /etc/passwd", 2, "File exists"),
    ],
)
def test_a_failing_instruction_is_told(context, ask, cache, dockerfile, line, text):
    folder = context(f"FROM debian:12\n{dockerfile}\n", a="1", d__x="1")
    with pytest.raises(BuildFailed) as caught:
        ask(folder)
    assert str(caught.value).startswith(f"environment/Dockerfile, line {line}: ")
    assert text in str(caught.value)
    assert caught.value.is_final
    assert half_made(cache) == []


def test_the_kernel_has_room_for_so_many_layers(context, ask):
    runs = "".join(f"RUN true {number}\n" for number in range(200))
    with pytest.raises(
        UnsupportedByProvider, match="200 RUN instructions are too many"
    ):
        ask(context(f"FROM debian:12\n{runs}"))


def test_a_network_that_fails_a_command_is_an_outage(context, ask):
    folder = context(
        "FROM debian:12\nRUN echo 'curl: (6) Could not resolve host'; exit 6\n"
    )
    with pytest.raises(SandboxStartFailed, match="line 2") as caught:
        ask(folder)
    assert not caught.value.is_final


def test_a_build_has_its_time(context, ask, cache):
    folder = context("FROM debian:12\nRUN sleep 1000 & sleep 1000\n")
    with pytest.raises(SandboxStartFailed, match=r"line 2.*longer than its 1 s"):
        ask(folder, start_timeout_seconds=1)
    assert half_made(cache) == []


def test_a_run_has_network_and_the_task_has_none(context, ask):
    folder = context("FROM debian:12\nRUN readlink /proc/self/ns/net > /built\n")
    built, running = lines(ask(folder, "cat /built; readlink /proc/self/ns/net"))
    assert built == str(Path("/proc/self/ns/net").readlink())
    assert running != built


def test_links_of_an_image_lead_nowhere_outside(context, ask, tmp_path):
    """bubblewrap would make folders and mounts where these lead to."""
    outside = f"../../../../oldroot{tmp_path}"
    folder = context(
        f"""
        FROM debian:12
        RUN ln -s {outside}/app /app && ln -s {outside}/logs /logs2 \\
            && rm -rf /logs /mnt /opt/x && ln -s {outside}/logs /logs \\
            && mkdir -p /home/x && ln -s {outside} /home/x/y \\
            && mkdir -p {tmp_path} && ln -s {tmp_path} /app2
        WORKDIR /app2/inner
        COPY a .
        """,
        a="1",
    )
    read_only = tmp_path / "shown"
    read_only.mkdir()
    result = ask(
        folder,
        f"pwd; ls /logs; ls -d {read_only}; cat /app2/inner/a",
        read_only_folders=(read_only,),
        workdir="/app2/inner",
    )
    assert result.stdout.split()[1:4] == ["agent", "artifacts", "verifier"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["environment", "shown"]


@as_root
def test_places_that_are_mounted_cannot_be_replaced(context, ask, tmp_path):
    mounted = Path("/opt/harbor-agents/tool")
    folder = context(
        f"""
        FROM debian:12
        RUN mkdir -p {mounted.parent} && ln -s ../../../../oldroot{tmp_path} {mounted}
        """
    )
    install = InstallScript("tool", "echo made > $AGENT_PREFIX/file")
    result = ask(folder, f"cat {mounted}/file; test -L {mounted}", install=install)
    assert (result.stdout, result.exit_code) == ("made\n", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["environment"]


def test_the_host_keeps_its_files(context, ask):
    before = Path("/usr/bin").stat().st_mtime_ns, Path("/etc").stat().st_mtime_ns
    folder = context(
        "FROM debian:12\nRUN touch /usr/bin/new-tool /etc/new-file; echo x >> /etc/profile\n"
    )
    assert ask(folder, "ls /usr/bin/new-tool /etc/new-file; tail -n1 /etc/profile").ok
    assert (
        Path("/usr/bin").stat().st_mtime_ns,
        Path("/etc").stat().st_mtime_ns,
    ) == before
    # What the sandbox itself writes is not kept.
    assert ask(folder, "touch /usr/bin/later /later").ok
    assert not ask(folder, "ls /usr/bin/later || ls /later").ok


@as_root
@pytest.mark.parametrize("base", ["tree:1", "tar:1"])
def test_a_root_file_system_of_its_own(context, ask, base, rootfs):
    folder = context(
        f"""
        FROM {base}
        ENV A=1
        RUN mkdir -p /srv && id -u agent > /srv/uid
        WORKDIR /srv
        COPY --chown=agent file .
        """,
        file="content\n",
    )
    found = ask(
        folder,
        "cat uid file; ls -ln file; ls /; test -e /usr/bin/env; echo $?; echo $PATH; "
        "test -s /etc/resolv.conf || echo empty; ls -d /logs/agent /dev/null",
    )
    said = lines(found)
    assert said[:2] == ["77", "content"]
    assert said[2].split()[2:4] == ["77", "78"]
    assert "app" not in said
    assert said[-4:-2] == [
        "1",
        "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    ]
    assert not (rootfs / "srv").exists()


@as_root
def test_devices_of_a_root_file_system_are_refused(context, ask, rootfs):
    try:
        (rootfs / "dev").mkdir(exist_ok=True)
        for place in ("dev/null", "disk"):
            os.mknod(rootfs / place, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no devices can be made here")
    try:
        with pytest.raises(SandboxStartFailed, match="disk is a device"):
            ask(context("FROM tree:1\n"))
    finally:
        (rootfs / "disk").unlink()
        (rootfs / "dev/null").unlink()


def test_docker_image_uses_the_same_lines(bench):
    async def main():
        spec = EnvironmentSpec(image="tree:1", network="no-network", workdir="/w")
        bench.provider.check(spec, ["agent"])
        box = await bench.provider.start(spec, name="test", labels={})
        try:
            return await box.exec("pwd; ls /usr; cat /etc/passwd")
        finally:
            await box.stop()

    assert bench.portal.call(main).stdout.startswith("/w\nroot:x:0")


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("nowhere:1", "/no/such/folder: No such file"),
        ("empty:1", "it has no /bin/sh"),
    ],
)
def test_a_target_that_is_no_root_file_system(context, ask, base, why):
    with pytest.raises(SandboxStartFailed, match=why):
        ask(context(f"FROM {base}\n"))


def test_a_user_of_the_image_alone(context, bench, ask):
    folder = context("FROM tree:1\nUSER agent\n")
    spec = EnvironmentSpec(build_context=folder)
    if not IS_ROOT:
        with pytest.raises(UnsupportedByProvider, match="one uid"):
            bench.provider.check(spec, ())
        return
    bench.provider.check(spec, ["agent"])
    assert lines(ask(folder, "id -u; id -g")) == ["77", "78"]
    with pytest.raises(UnsupportedByProvider, match="'nobody-here' is not in"):
        ask(folder, user="nobody-here")


def test_notes_and_the_start_command_reach_the_sandbox(context, bench):
    folder = context('FROM debian:12\nVOLUME /data\nCMD ["serve"]\n')

    async def main():
        spec = EnvironmentSpec(build_context=folder)
        box = await bench.provider.start(spec, name="test", labels={})
        try:
            return tuple(box.warnings), await box.start_command()
        finally:
            await box.stop()

    [note], command = bench.portal.call(main)
    assert note.endswith("ignores VOLUME (line 2)")
    assert command == ("serve",)


@as_root
def test_in_place_mode_refuses_images():
    provider = LocalProvider(mode="in-place", images=[("*", "host")])

    async def main():
        await provider.probe()
        try:
            provider.check(EnvironmentSpec(image="debian:12"), ())
        finally:
            await provider.aclose()

    with pytest.raises(UnsupportedByProvider, match=r"docker_image.*in-place"):
        anyio.run(main)


def test_what_dead_owners_left_half_built_is_swept(cache, bench):
    dead = subprocess.run(
        [
            sys.executable,
            "-c",
            "from pytest_harbor.sandboxes.owner import Owner; print(Owner.current())",
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    folder = cache / "key.x.making"
    (folder / "work/work").mkdir(parents=True)
    (folder / "work/work").chmod(0)
    (folder / "owner").write_text(dead)
    swept = bench.portal.call(bench.provider.sweep)
    assert "half-built image" in swept.removed
    assert not folder.exists()


@pytest.mark.slow
def test_an_owner_killed_in_a_build_leaves_nothing(context, cache, bench):
    folder = context("FROM debian:12\nRUN touch /started && exec sleep 987654\n")
    code = f"""
    import anyio
    from pathlib import Path
    from pytest_harbor.sandboxes.environment import EnvironmentSpec
    from pytest_harbor.sandboxes.local.provider import LocalProvider

    provider = LocalProvider(images=[("debian:*", "host")])
    spec = EnvironmentSpec(build_context=Path({str(folder)!r}))

    async def main():
        await provider.start(spec, name="x", labels={{}})

    anyio.run(main)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    try:
        wait_until(lambda: any(cache.glob("*.making/files/*/started")))
    finally:
        owner.kill()
        owner.wait()
    swept = bench.portal.call(bench.provider.sweep)
    assert "half-built image" in swept.removed
    assert half_made(cache) == []
    left = ["pgrep", "-f", "sleep 987654"]
    wait_until(lambda: subprocess.run(left, check=False).returncode == 1)


def wait_until(is_so, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
