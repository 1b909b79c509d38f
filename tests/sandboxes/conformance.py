"""The contract of ``pytest_harbor.sandboxes.api``, as cases that any provider can run.

To run it against a provider, a test module needs this and no more::

    from sandboxes.conformance import CASES, Bench, case_id

    @pytest.fixture(scope="module")
    def bench():
        spec = EnvironmentSpec(image="...", network="no-network")
        with Bench(MyProvider(), spec, other_user="agent") as bench:
            yield bench

    @pytest.mark.parametrize("case", CASES, ids=case_id)
    def test_contract(case, bench, tmp_path):
        bench.run(case, tmp_path)

The sandbox needs ``sh`` (POSIX), the coreutils' usual commands or busybox's, and ``setsid``.
``other_user`` is a user besides root, or ``None`` where there is one only. Most cases
share one sandbox and leave it usable; those that break theirs start their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from pytest_harbor.errors import (
    InstallFailed,
    SandboxError,
    SandboxLost,
    TransferFailed,
)
from pytest_harbor.sandboxes.api import (
    MAX_CAPTURED_BYTES,
    VERIFIER_TOOLS,
    PipedProcess,
    Provider,
    Sandbox,
)
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.install_script import INSTALLED_VERSION, InstallScript
from pytest_harbor.sandboxes.transfer_types import (
    Download,
    Downloaded,
    TransferLimits,
    Upload,
)

PATIENCE_SECONDS = 60.0
"""No case may take longer, whatever the sandbox does."""


INSTALL_NAME = f"conformance-{os.getpid()}"
"""By this name a provider's tests find, and remove, what the cases had installed."""


class NotHere(Exception):
    """A case has nothing to test here. pytest's own skip would end the event loop."""


@dataclass
class Case:
    """One rule of the contract. ``own`` cases get a sandbox of their own."""

    function: Callable[[Context], Awaitable[None]]
    own: bool = False


@dataclass
class Context:
    """What a case works with."""

    sandbox: Sandbox
    bench: Bench
    tmp_path: Path
    started: list[Sandbox] = field(default_factory=list)

    async def start(self, **changes: Any) -> Sandbox:
        """One more sandbox, stopped when the case ends."""
        sandbox = await self.bench.start(**changes)
        self.started.append(sandbox)
        return sandbox

    async def sh(self, script: str, **options: Any) -> str:
        """Run a script that must succeed; its standard output, stripped."""
        result = await self.sandbox.exec(script, **options)
        assert result.ok, f"{script}: {result}"
        return result.stdout.strip()


@dataclass
class Bench:
    """A provider under test, in an event loop of its own."""

    provider: Provider
    spec: EnvironmentSpec
    other_user: str | None = None
    portal: BlockingPortal = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack)
    _shared: Sandbox | None = None

    def __enter__(self) -> Bench:  # noqa: PYI034  # Self is not in 3.10's typing
        self.portal = self._stack.enter_context(start_blocking_portal())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.portal.call(self._close)
        finally:
            self._stack.close()

    async def _close(self) -> None:
        if self._shared is not None:
            await self._shared.stop()
        await self.provider.aclose()

    async def start(self, **changes: Any) -> Sandbox:
        """A new sandbox of the spec with some fields changed."""
        spec = replace(self.spec, **changes)
        return await self.provider.start(spec, name="conformance", labels={"case": "1"})

    def run(self, case: Case, tmp_path: Path) -> None:
        """Run one case."""
        try:
            self.portal.call(self._run, case, tmp_path)
        except NotHere as reason:
            pytest.skip(str(reason))

    async def _run(self, case: Case, tmp_path: Path) -> None:
        with anyio.fail_after(PATIENCE_SECONDS):
            if case.own:
                sandbox = await self.start()
            else:
                sandbox = self._shared = self._shared or await self.start()
            context = Context(sandbox, self, tmp_path)
            if case.own:
                context.started.append(sandbox)
            try:
                await case.function(context)
            finally:
                for started in context.started:
                    await started.stop()


CASES: list[Case] = []


def case_id(case: Case) -> str:
    return case.function.__name__


def shared(function: Callable[[Context], Awaitable[None]]) -> Case:
    CASES.append(Case(function))
    return CASES[-1]


def own(function: Callable[[Context], Awaitable[None]]) -> Case:
    CASES.append(Case(function, own=True))
    return CASES[-1]


# Commands


@shared
async def string_is_run_by_sh(t: Context) -> None:
    result = await t.sandbox.exec("echo $((1 + 2)); echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "3\n", "err\n")
    assert not result.ok
    assert not result.timed_out
    assert not result.truncated
    assert 0 <= result.seconds < PATIENCE_SECONDS


@shared
async def list_is_run_as_it_is(t: Context) -> None:
    result = await t.sandbox.exec(["echo", "$HOME", "a  b", "*", ""])
    assert result.stdout == "$HOME a  b * \n"


@shared
async def signal_gives_128_and_its_number(t: Context) -> None:
    assert (await t.sandbox.exec("kill -9 $$")).exit_code == 137
    assert (await t.sandbox.exec("kill -TERM $$")).exit_code == 143


@shared
async def unknown_command_gives_127(t: Context) -> None:
    assert (await t.sandbox.exec(["no-such-command"])).exit_code == 127
    assert (await t.sandbox.exec("no-such-command")).exit_code == 127


@shared
async def unusable_command_gives_126(t: Context) -> None:
    await t.sh("echo echo > /tmp/plain; chmod 644 /tmp/plain")
    assert (await t.sandbox.exec(["/tmp/plain"])).exit_code == 126


@shared
async def host_environment_stays_out(t: Context) -> None:
    os.environ["CONFORMANCE_SECRET"] = "leaked"
    try:
        names = (await t.sh("env")).splitlines()
    finally:
        del os.environ["CONFORMANCE_SECRET"]
    assert not [line for line in names if "CONFORMANCE" in line]
    assert [line for line in names if line.startswith("PATH=")]


@own
async def environment_of_the_command_lies_over_that_of_the_sandbox(t: Context) -> None:
    sandbox = await t.start(env={"A": "spec", "B": "spec"})
    result = await sandbox.exec('echo "$A $B $C"', env={"B": "call", "C": "x y"})
    assert result.stdout == "spec call x y\n"


@shared
async def root_is_the_default_user(t: Context) -> None:
    assert await t.sh("id -u") == "0"
    assert await t.sh("id -u", user="root") == "0"
    assert await t.sh("id -u", user=0) == "0"


@shared
async def other_user_by_name_and_number(t: Context) -> None:
    if t.bench.other_user is None:
        raise NotHere("one user only")
    uid = await t.sh("id -u", user=t.bench.other_user)
    assert uid not in ("", "0")
    assert await t.sh("id -un", user=int(uid)) == t.bench.other_user
    assert await t.sh("id -u", user=12345) == "12345"
    assert (await t.sandbox.exec("echo x > /etc/passwd", user=int(uid))).exit_code != 0


@shared
async def other_user_may_write_where_every_user_must(t: Context) -> None:
    if t.bench.other_user is None:
        raise NotHere("one user only")
    await t.sh(
        "for d in /logs/agent /logs/verifier /logs/artifacts /tmp; do"
        " echo x > $d/of-other && rm $d/of-other || exit 1; done;"
        " echo x > /dev/stdout; echo x > /dev/stderr",
        user=t.bench.other_user,
    )


@own
async def default_user_can_be_switched(t: Context) -> None:
    if t.bench.other_user is None:
        raise NotHere("one user only")
    await t.sandbox.set_default_user(t.bench.other_user)
    assert await t.sh("id -un") == t.bench.other_user
    assert await t.sh("id -u", user=0) == "0"
    await t.sandbox.set_default_user(None)
    assert await t.sh("id -u") == "0"


@shared
async def working_directory_is_that_of_the_sandbox(t: Context) -> None:
    assert await t.sh("pwd") == t.sandbox.workdir
    assert await t.sh("pwd", cwd="/tmp") == "/tmp"


@own
async def working_directory_is_made(t: Context) -> None:
    sandbox = await t.start(workdir="/made/for you")
    assert (await sandbox.exec("pwd; touch x")).stdout == "/made/for you\n"
    assert sandbox.workdir == "/made/for you"
    if t.bench.other_user is not None:
        assert (await sandbox.exec("pwd; ls", user=t.bench.other_user)).ok


@shared
async def missing_working_directory_is_a_result(t: Context) -> None:
    result = await t.sandbox.exec("true", cwd="/no/such/folder")
    assert result.exit_code not in (0, None)
    assert result.output != ""


@shared
async def standard_input_is_given_or_empty(t: Context) -> None:
    data = bytes(range(256)) * 1000
    result = await t.sandbox.exec(["wc", "-c"], stdin=data)
    assert result.stdout.strip() == str(len(data))
    assert (await t.sandbox.exec(["cat"], timeout_seconds=10)).stdout == ""


@shared
async def commands_run_side_by_side(t: Context) -> None:
    results: dict[str, str] = {}

    async def meet(me: str, other: str) -> None:
        script = f"touch /tmp/{me}; until test -e /tmp/{other}; do sleep 0.05; done"
        results[me] = str((await t.sandbox.exec(script, timeout_seconds=20)).exit_code)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(meet, "one", "two")
        tasks.start_soon(meet, "two", "one")
    assert results == {"one": "0", "two": "0"}


# Output


@shared
async def odd_bytes_reach_the_log_unchanged(t: Context) -> None:
    odd = bytes(range(256)) + b"\xf0\x9f\x98" + b"\x1b[31m]]>\r\n\0"
    log = t.tmp_path / "log"
    log.write_bytes(b"before\n")
    result = await t.sandbox.exec(["cat"], stdin=odd, log=log)
    assert log.read_bytes() == b"before\n" + odd
    assert result.stdout == odd.decode(errors="replace")


@shared
async def both_streams_reach_the_log(t: Context) -> None:
    log = t.tmp_path / "log"
    await t.sandbox.exec("echo out; echo err >&2", log=log)
    assert sorted(log.read_text().splitlines()) == ["err", "out"]


@shared
async def standard_error_has_a_log_of_its_own(t: Context) -> None:
    log, errors = t.tmp_path / "log", t.tmp_path / "errors"
    script = "echo out; echo err >&2; echo more"
    result = await t.sandbox.exec(script, log=log, error_log=errors)
    assert (log.read_text(), errors.read_text()) == ("out\nmore\n", "err\n")
    assert (result.stdout, result.stderr) == ("out\nmore\n", "err\n")


@shared
async def big_output_is_capped_in_memory_and_whole_in_the_log(t: Context) -> None:
    log = t.tmp_path / "log"
    script = "echo first; head -c 10000000 /dev/zero | tr '\\0' x; echo; echo last"
    result = await t.sandbox.exec(script, log=log)
    assert log.stat().st_size == len("first\n") + 10_000_000 + len("\nlast\n")
    assert result.truncated
    assert result.stdout.startswith("first\nxxx")
    assert result.stdout.endswith("xxx\nlast\n")
    assert len(result.stdout) <= MAX_CAPTURED_BYTES + 200


@shared
async def background_process_that_holds_the_streams_does_not_delay(t: Context) -> None:
    start = time.monotonic()
    result = await t.sandbox.exec("sleep 30 & echo started")
    assert result.stdout == "started\n"
    assert time.monotonic() - start < 20
    await t.sandbox.exec("pkill sleep || killall sleep")


@shared
async def noisy_background_process_does_not_delay(t: Context) -> None:
    result = await t.sandbox.exec("yes & echo $! > /tmp/yes-pid; sleep 0.2; echo done")
    assert result.exit_code == 0
    await t.sandbox.exec("kill -9 $(cat /tmp/yes-pid)")


# Time


async def _leftovers(t: Context, mark: str) -> str:
    """Command lines of live processes with ``mark``, seen from inside."""
    result = await t.sandbox.exec(
        "for p in /proc/[0-9]*; do"
        "  state=$(sed -n 's/^State:[[:space:]]*\\(.\\).*/\\1/p' $p/status 2>/dev/null);"
        '  case "$state" in Z|X|"") continue;; esac;'
        f"  tr '\\0' ' ' < $p/cmdline 2>/dev/null | grep '[{mark[0]}]{mark[1:]}';"
        "done; true",
        timeout_seconds=30,
    )
    return result.stdout


TREES = {
    "plain": "sleep {n}",
    "ignores_term": "sleep {n} & trap '' TERM; sleep {n}",
    "new_session": "setsid sleep {n} & setsid sh -c 'trap \"\" TERM; sleep {n}' & sleep {n}",
    "double_fork": "(setsid sh -c '(sleep {n} &) ; sleep {n}' &) ; sleep {n}",
    "orphan": "(sleep {n} &) ; (setsid nohup sleep {n} >/dev/null 2>&1 &) ; sleep {n}",
}


def _timeout_case(name: str, tree: str, mark: int) -> None:
    async def timeout_kills_the_whole_tree(t: Context) -> None:
        start = time.monotonic()
        script = f"echo early; {tree.format(n=mark)}"
        result = await t.sandbox.exec(script, timeout_seconds=1)
        assert time.monotonic() - start < 30
        assert result.timed_out
        assert result.exit_code is None
        assert result.stdout == "early\n"
        assert await _leftovers(t, f"sleep {mark}") == ""

    timeout_kills_the_whole_tree.__name__ += f"_{name}"
    shared(timeout_kills_the_whole_tree)


for _number, (_name, _tree) in enumerate(TREES.items()):
    _timeout_case(_name, _tree, 3100 + _number)


@shared
async def timeout_keeps_forking_trees_from_escaping(t: Context) -> None:
    script = "f() { setsid sh -c 'sleep 3200' & sleep 0.01; f; }; f"
    result = await t.sandbox.exec(script, timeout_seconds=1)
    assert result.timed_out
    assert await _leftovers(t, "sleep 3200") == ""


@shared
async def daemon_survives_the_timeout_of_a_later_command(t: Context) -> None:
    await t.sh("setsid sleep 3300 >/dev/null 2>&1 </dev/null &")
    result = await t.sandbox.exec("sleep 3301", timeout_seconds=1)
    assert result.timed_out
    assert "sleep 3300" in await _leftovers(t, "sleep 330")
    assert "sleep 3301" not in await _leftovers(t, "sleep 330")


@shared
async def quick_command_ends_before_its_timeout(t: Context) -> None:
    result = await t.sandbox.exec("true", timeout_seconds=30)
    assert result.exit_code == 0
    assert not result.timed_out


@shared
async def cancelled_command_leaves_nothing(t: Context) -> None:
    with anyio.move_on_after(1) as scope:
        await t.sandbox.exec("setsid sleep 3400 & sleep 3400")
    assert scope.cancelled_caught
    assert await _leftovers(t, "sleep 3400") == ""


# Spawned processes


@shared
async def spawned_process_runs_on_and_is_waited_for(t: Context) -> None:
    log = t.tmp_path / "log"
    process = await t.sandbox.spawn(
        "echo up; until test -e /tmp/go; do sleep 0.05; done; exit 5", log=log
    )
    await t.sh("touch /tmp/go")
    result = await process.wait()
    assert result.exit_code == 5
    assert result.stdout == "up\n"
    assert log.read_text() == "up\n"
    assert await process.wait() == result


@shared
async def spawned_process_is_killed_with_its_tree(t: Context) -> None:
    process = await t.sandbox.spawn("(setsid sleep 3500 &); sleep 3500")
    await process.kill()
    assert await _leftovers(t, "sleep 3500") == ""
    await process.kill()
    assert (await process.wait()).exit_code != 0


@shared
async def spawned_process_that_prints_much_is_not_blocked(t: Context) -> None:
    process = await t.sandbox.spawn("head -c 3000000 /dev/zero; touch /tmp/printed")
    await t.sh("until test -e /tmp/printed; do sleep 0.05; done", timeout_seconds=20)
    assert (await process.wait()).truncated


async def _received(process: PipedProcess, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := await process.receive()):
        found += data
    return found


@shared
async def piped_process_is_talked_to(t: Context) -> None:
    log = t.tmp_path / "errors"
    process = await t.sandbox.spawn_piped(
        'echo "$GREETING" >&2; while read -r line; do echo "<$line>"; done',
        env={"GREETING": "hello"},
        log=log,
    )
    for line in (b"one", b"two"):
        await process.send(line + b"\n")
        assert await _received(process, 6) == b"<%s>\n" % line
    await process.kill()
    assert await process.receive() == b""
    assert log.read_text() == "hello\n"


@shared
async def piped_process_takes_and_gives_more_than_a_pipe_holds(t: Context) -> None:
    size = 3_000_000
    process = await t.sandbox.spawn_piped(["cat"])
    found: list[bytes] = []

    async def receive() -> None:
        found.append(await _received(process, size))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await process.send(bytes(range(250)) * (size // 250))
    await process.kill()
    assert found == [bytes(range(250)) * (size // 250)]


@shared
async def piped_process_that_ends_tells_how(t: Context) -> None:
    process = await t.sandbox.spawn_piped("read -r line; echo bye >&2; exit 5")
    await process.send(b"go\n")
    assert await process.receive() == b""
    result = await process.wait()
    assert (result.exit_code, result.stderr) == (5, "bye\n")
    await process.kill()
    assert await process.wait() == result
    missing = await t.sandbox.spawn_piped(["no-such-program"])
    assert (await missing.wait()).exit_code == 127
    await missing.kill()


@shared
async def piped_process_is_killed_with_its_tree(t: Context) -> None:
    process = await t.sandbox.spawn_piped("(setsid sleep 3700 &); echo up; sleep 3700")
    assert await _received(process, 3) == b"up\n"
    with anyio.move_on_after(0) as scope:
        await process.receive()
    assert scope.cancelled_caught
    with anyio.CancelScope() as cancelled:
        cancelled.cancel()
        await process.kill()
    assert await _leftovers(t, "sleep 3700") == ""
    await process.kill()
    assert (await process.wait()).exit_code != 0


@shared
async def piped_process_has_its_user(t: Context) -> None:
    other = t.bench.other_user
    if other is None:
        raise NotHere("one user only")
    script = "id -un; pwd; read -r line </dev/stdin; echo $line >/dev/stdout"
    process = await t.sandbox.spawn_piped(script, user=other, cwd="/")
    told = f"{other}\n/\nheard\n".encode()
    await process.send(b"heard\n")
    assert await _received(process, len(told)) == told
    await process.kill()


@shared
async def piped_process_is_killed_while_it_is_read(t: Context) -> None:
    process = await t.sandbox.spawn_piped("echo up; sleep 3600")
    assert await _received(process, 3) == b"up\n"
    ended: list[bytes] = []

    async def receive() -> None:
        ended.append(await process.receive())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await process.kill()
    assert ended == [b""]


@own
async def piped_process_ends_with_its_sandbox(t: Context) -> None:
    process = await t.sandbox.spawn_piped("echo up; sleep 3600")
    assert await _received(process, 3) == b"up\n"
    ended: list[bytes] = []

    async def receive() -> None:
        ended.append(await process.receive())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await t.sandbox.stop()
    assert ended == [b""]
    with contextlib.suppress(SandboxLost):
        await process.kill()
    assert await process.receive() == b""


# Files in


@shared
async def upload_of_a_folder_merges(t: Context) -> None:
    source = t.tmp_path / "source"
    (source / "sub" / "deep").mkdir(parents=True)
    (source / "new").write_text("new")
    (source / "sub" / "deep" / "file").write_text("deep")
    (source / "link").symlink_to("sub/deep/file")
    await t.sh(
        "mkdir -p /merge/sub; echo old > /merge/new; echo kept > /merge/sub/kept"
    )
    await t.sandbox.upload([Upload(source, "/merge")])
    assert await t.sh("cat /merge/new /merge/link /merge/sub/kept") == "newdeepkept"
    assert await t.sh("stat -c %u:%g /merge/new /merge/sub/deep") == "0:0\n0:0"


@shared
async def upload_makes_modes_readable_or_keeps_them(t: Context) -> None:
    source = t.tmp_path / "modes"
    source.mkdir(mode=0o700)
    for name, mode in {"secret": 0o600, "tool": 0o700, "test.sh": 0o600}.items():
        (source / name).write_text("#!/bin/sh\n")
        (source / name).chmod(mode)
    marked = frozenset({"test.sh"})
    await t.sandbox.upload([Upload(source, "/modes/r", executable=marked)])
    await t.sandbox.upload([Upload(source, "/modes/k", modes="keep")])
    script = "cd /modes && stat -c '%n %a' r/secret r/tool r/test.sh k/secret k/tool"
    assert (await t.sh(script)).splitlines() == [
        "r/secret 644",
        "r/tool 755",
        "r/test.sh 755",
        "k/secret 600",
        "k/tool 700",
    ]


@shared
async def upload_of_bytes_and_files_with_parents(t: Context) -> None:
    file = t.tmp_path / "file"
    file.write_text("file")
    uploads = [
        Upload(b"\0text", "/fresh/a/b/text"),
        Upload(file, "/fresh/name"),
        Upload(b"x", "/fresh/run", executable=frozenset({""})),
    ]
    await t.sandbox.upload(uploads)
    assert (
        await t.sh("cat /fresh/name; stat -c ' %s %a' /fresh/a/b/text") == "file 5 644"
    )
    assert await t.sh("stat -c %a /fresh/run /fresh/a") == "755\n755"


@shared
async def upload_leaves_out_what_is_excluded(t: Context) -> None:
    source = t.tmp_path / "all"
    (source / "out" / "below").mkdir(parents=True)
    (source / "in").write_text("in")
    (source / "gone").write_text("gone")
    excluded = frozenset({"out", "gone"})
    await t.sandbox.upload([Upload(source, "/excluded", exclude=excluded)])
    assert await t.sh("ls -A /excluded") == "in"


@shared
async def upload_replaces_a_link_and_not_its_target(t: Context) -> None:
    await t.sh("mkdir -p /lnk; echo safe > /tmp/safe; ln -sf /tmp/safe /lnk/file")
    await t.sandbox.upload([Upload(b"new", "/lnk/file")])
    assert await t.sh("cat /tmp/safe; cat /lnk/file") == "safe\nnew"


@shared
async def upload_is_blocked_by_a_folder_or_a_file_in_the_way(t: Context) -> None:
    await t.sh("mkdir -p /block/file; mkdir -p /block; echo x > /block/dir")
    with pytest.raises(TransferFailed) as folder_in_place:
        await t.sandbox.upload([Upload(b"x", "/block/file")])
    assert folder_in_place.value.blocked
    with pytest.raises(TransferFailed) as file_in_place:
        await t.sandbox.upload([Upload(b"x", "/block/dir/below")])
    assert file_in_place.value.blocked


@shared
async def upload_of_a_missing_source_fails(t: Context) -> None:
    with pytest.raises(TransferFailed) as missing:
        await t.sandbox.upload([Upload(t.tmp_path / "missing", "/x")])
    assert not missing.value.blocked


@shared
async def upload_of_many_files(t: Context) -> None:
    source = t.tmp_path / "many"
    source.mkdir()
    for number in range(500):
        (source / f"{number}").write_text("x" * number)
    await t.sandbox.upload([Upload(source, "/many")])
    assert await t.sh("ls /many | wc -l; cat /many/499 | wc -c") == "500\n499"


PLANTED = {
    "file_inside": "mkdir -p {d}; echo 1 > {d}/reward.json; echo 1 > {d}/.hidden",
    "tree_inside": "mkdir -p {d}/a/b/c; chmod 000 {d}/a/b; ln -s /etc {d}/a/etc",
    "file_in_place": "rm -rf {d}; echo 1 > {d}",
    "link_in_place": "rm -rf {d}; mkdir -p /planted; echo 1 > /planted/reward.json;"
    " ln -s /planted {d}",
    "link_to_nowhere": "rm -rf {d}; ln -s /no/where {d}",
    "unwritable": "mkdir -p {d}; echo 1 > {d}/reward.json; chmod 555 {d}; chmod 444 {d}/*",
    "immutable": "mkdir -p {d}; echo 1 > {d}/reward.json; chattr +i {d}/reward.json"
    " 2>/dev/null; true",
    "fifo": "mkdir -p {d}; rm -f {d}/reward.json; mkfifo {d}/reward.json",
    "odd_names": "mkdir -p {d}; cd {d}; touch -- -rf '...' \"$(printf 'a\\nb')\"",
    "gone": "rm -rf {d}",
}


def _emptying_case(name: str, plant: str) -> None:
    async def emptying_removes_what_was_planted(t: Context) -> None:
        for folder, mode in {"/logs/verifier": "777", "/tests": "755"}.items():
            await t.sh(plant.format(d=folder))
            await t.sandbox.upload([], empty=[folder])
            assert await t.sh(f"ls -A {folder}") == ""
            assert await t.sh(f"stat -c '%F %u %a' {folder}") == f"directory 0 {mode}"
        await t.sh("test -d /etc && test -s /etc/passwd; rm -rf /planted /tests")

    emptying_removes_what_was_planted.__name__ += f"_{name}"
    shared(emptying_removes_what_was_planted)


for _name, _plant in PLANTED.items():
    _emptying_case(_name, _plant)


@shared
async def emptying_does_not_follow_links(t: Context) -> None:
    await t.sh("mkdir -p /keep; echo x > /keep/file; rm -rf /tests; ln -s /keep /tests")
    await t.sandbox.upload([Upload(b"t", "/tests/test.sh")], empty=["/tests"])
    assert await t.sh("cat /keep/file; ls /keep; ls /tests") == "x\nfile\ntest.sh"
    await t.sh("rm -rf /tests")


@shared
async def emptying_a_deep_tree(t: Context) -> None:
    deep = "d/" * 1500
    await t.sh(f"cd /logs/agent && mkdir -p {deep} && touch {deep}f")
    await t.sandbox.upload([], empty=["/logs/agent"])
    assert await t.sh("ls -A /logs/agent") == ""


# Files out


async def _fetch(t: Context, source: str, **options: Any) -> tuple[Downloaded, Path]:
    target = t.tmp_path / f"out-{len(list(t.tmp_path.iterdir()))}"
    limits = options.pop("limits", None)
    wanted = Download(source, target, **options)
    (result,) = await t.sandbox.download([wanted], limits=limits)
    return result, target


@shared
async def download_of_a_file(t: Context) -> None:
    await t.sh("printf 'a\\0b' > /tmp/file")
    result, target = await _fetch(t, "/tmp/file")
    assert (result.status, result.kind) == ("ok", "file")
    assert target.read_bytes() == b"a\0b"


@shared
async def download_of_a_folder(t: Context) -> None:
    await t.sh(
        "rm -rf /get; mkdir -p /get/a/b /get/empty; echo x > /get/a/b/f;"
        " echo '#!' > /get/tool; chmod 4755 /get/tool; ln -s a/b/f /get/link"
    )
    result, target = await _fetch(t, "/get")
    assert (result.status, result.kind, result.dropped) == ("ok", "directory", ())
    assert (target / "a/b/f").read_text() == "x\n"
    assert (target / "link").read_text() == "x\n"
    assert (target / "empty").is_dir()
    assert (target / "tool").stat().st_mode & 0o7777 == 0o755


@shared
async def download_of_several_in_one_call(t: Context) -> None:
    await t.sh("rm -rf /two; mkdir -p /two/d; echo 1 > /two/f; echo 2 > /two/d/g")
    wanted = [
        Download("/two/f", t.tmp_path / "f"),
        Download("/two/missing", t.tmp_path / "m"),
        Download("/two/d", t.tmp_path / "d"),
    ]
    results = await t.sandbox.download(wanted)
    assert [result.status for result in results] == ["ok", "failed", "ok"]
    assert [result.source for result in results] == ["/two/f", "/two/missing", "/two/d"]
    assert [result.is_missing for result in results] == [False, True, False]
    assert (t.tmp_path / "d" / "g").read_text() == "2\n"
    assert not (t.tmp_path / "m").exists()


@shared
async def download_of_an_empty_folder_says_so(t: Context) -> None:
    await t.sh("rm -rf /none; mkdir /none")
    result, _ = await _fetch(t, "/none")
    assert (result.status, result.kind) == ("empty", "directory")


@shared
async def download_leaves_out_what_is_excluded(t: Context) -> None:
    await t.sh("rm -rf /ex; mkdir -p /ex/node_modules/a /ex/src; touch /ex/src/f.pyc")
    await t.sh("echo x > /ex/src/f.py; echo x > /ex/node_modules/a/b")
    result, target = await _fetch(t, "/ex", exclude=("*.pyc", "node_modules"))
    assert result.status == "ok"
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert found == ["src", "src/f.py"]


@shared
async def download_brings_nothing_from_outside(t: Context) -> None:
    secret = t.tmp_path / "secret"
    secret.write_text("host secret")
    await t.sh(
        "rm -rf /evil; mkdir -p /evil/sub; cd /evil;"
        f" ln -s {secret} absolute; ln -s ../../../../../..{secret} up;"
        " ln -s absolute chain; ln -s / root; ln -s root/etc/passwd through;"
        " echo fine > fine; ln fine hard; mkfifo pipe; ln -s loop loop"
    )
    result, target = await _fetch(t, "/evil")
    real = os.path.realpath  # Path.resolve() refuses a loop, which is harmless
    assert result.status == "ok"
    assert (target / "fine").read_text() == "fine\n"
    for path in target.rglob("*"):
        assert real(path).startswith(real(target))
        if path.is_file():
            assert "host secret" not in path.read_text()
    names = {path.name for path in target.iterdir()}
    assert not names & {"absolute", "up", "root", "pipe"}
    assert len(result.dropped) >= 4
    assert all(": " in reason for reason in result.dropped)


@shared
async def download_does_not_follow_a_link_as_source(t: Context) -> None:
    await t.sh("rm -f /linked; ln -s /etc/passwd /linked")
    result, target = await _fetch(t, "/linked")
    if result.status == "ok":
        assert "root:" in target.read_text()  # the sandbox's own file, never the host's
    assert not target.is_symlink()


@shared
async def download_of_a_fifo_fails_at_once(t: Context) -> None:
    await t.sh("rm -f /pipe; mkfifo /pipe")
    result, target = await _fetch(t, "/pipe")
    assert result.status == "failed"
    assert not target.exists()


@shared
async def download_stops_at_a_cap(t: Context) -> None:
    await t.sh("rm -rf /big; mkdir /big; head -c 300000 /dev/zero > /big/a")
    await t.sh("for n in 1 2 3 4 5 6; do echo $n > /big/f$n; done")
    for limits in (TransferLimits(max_bytes=100_000), TransferLimits(max_files=3)):
        try:
            result, target = await _fetch(t, "/big", limits=limits)
        except TransferFailed:
            continue
        assert result.status == "failed"
        assert "more than" in result.reason
        files = [path for path in target.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) <= 300_100


@shared
async def download_of_a_sparse_giant_stops_at_the_cap(t: Context) -> None:
    made = await t.sandbox.exec("truncate -s 1T /tmp/giant")
    if not made.ok:
        raise NotHere("no file of that size here")
    try:
        result, _ = await _fetch(
            t, "/tmp/giant", limits=TransferLimits(max_bytes=1_000_000)
        )
    except TransferFailed:
        return
    finally:
        await t.sh("rm -f /tmp/giant")
    assert result.status == "failed"


@shared
async def download_of_a_deep_tree_ends(t: Context) -> None:
    deep = "d/" * 400
    await t.sh(f"mkdir -p /deep/{deep} && echo x > /deep/f && touch /deep/{deep}g")
    result, target = await _fetch(t, "/deep")
    assert (target / "f").read_text() == "x\n"
    assert result.status == "ok"


@shared
async def text_of_a_file(t: Context) -> None:
    await t.sh("printf 'h\\303\\251\\377' > /tmp/text; rm -rf /tmp/dir; mkdir /tmp/dir")
    assert await t.sandbox.read_text("/tmp/text") == "h\xe9\ufffd"
    assert await t.sandbox.read_text("/tmp/text", max_bytes=1) == "h"
    assert await t.sandbox.read_text("/tmp/missing") is None
    assert await t.sandbox.read_text("/tmp/dir") is None


# Start and end


@own
async def folders_of_a_fresh_sandbox(t: Context) -> None:
    assert await t.sh("test ! -e /tests && echo none") == "none"
    assert (await t.sh("stat -c %a /logs/agent /logs/verifier /logs/artifacts")) == (
        "777\n777\n777"
    )
    assert (await t.sh("ls -A /logs/agent /logs/verifier")).split() == [
        "/logs/agent:",
        "/logs/verifier:",
    ]


@own
async def files_of_the_environment_are_in_the_working_directory(t: Context) -> None:
    files = t.tmp_path / "environment"
    (files / "data").mkdir(parents=True)
    (files / "data" / "x.txt").write_text("x")
    (files / "Dockerfile").write_text("FROM scratch")
    (files / "docker-compose.yaml").write_text("{}")
    (files / "docker-compose.yml").write_text("data")
    sandbox = await t.start(files=files, workdir="/work")
    result = await sandbox.exec("ls -A /work; cat /work/data/x.txt; stat -c %u data")
    assert result.stdout.split() == ["data", "docker-compose.yml", "x0"]


@own
async def no_network_has_only_its_own_loopback(t: Context) -> None:
    sandbox = await t.start(network="no-network")
    result = await sandbox.exec("cat /proc/net/dev")
    names = {line.split(":")[0].strip() for line in result.stdout.splitlines()[2:]}
    assert names <= {"lo", "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0"}
    assert (await sandbox.exec("cat /proc/net/route")).stdout.count("\n") <= 1


@own
async def sandboxes_do_not_see_each_other(t: Context) -> None:
    other = await t.start()
    await t.sh("echo x > /tmp/mine; setsid sleep 3600 >/dev/null 2>&1 &")
    result = await other.exec(["ls", "/tmp"])
    assert "mine" not in result.stdout
    result = await other.exec("cat /proc/[0-9]*/cmdline")
    assert "sleep3600" not in result.stdout.replace("\0", "")


@shared
async def tools_at_the_start_are_known(t: Context) -> None:
    tools = await t.sandbox.initial_tools()
    assert tools <= set(VERIFIER_TOOLS)
    for tool in VERIFIER_TOOLS:
        found = (await t.sandbox.exec(f"command -v {tool}")).ok
        assert (tool in tools) is found


@own
async def tools_at_the_start_are_remembered(t: Context) -> None:
    tools = await t.sandbox.initial_tools()
    await t.sandbox.exec("rm -f $(command -v bash) /bin/bash /usr/bin/bash")
    assert await t.sandbox.initial_tools() == tools
    assert "bash" in tools


@own
async def stopping_twice_and_using_it_afterwards(t: Context) -> None:
    await t.sandbox.stop()
    await t.sandbox.stop()
    with pytest.raises(SandboxLost):
        await t.sandbox.exec("true")
    with pytest.raises(SandboxError):
        await t.sandbox.upload([Upload(b"", "/x")])


@own
async def stop_ends_running_commands(t: Context) -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            result = await t.sandbox.exec("echo up > /tmp/up; sleep 3700")
            ended.append(str(result.exit_code))
        except SandboxLost:
            ended.append("lost")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(long)
        await t.sh("until test -e /tmp/up; do sleep 0.05; done", timeout_seconds=20)
        await t.sandbox.stop()
    assert len(ended) == 1
    assert ended != ["0"]


@own
async def entering_is_explained(t: Context) -> None:
    assert len(t.sandbox.how_to_enter()) > 10


# Installed software


def _install(*lines: str, **fields: Any) -> InstallScript:
    """A script like no other, that makes ``tool``."""
    tool = "printf '#!/bin/sh\\necho works\\n' >$AGENT_PREFIX/bin/tool"
    script = "\n".join(
        [f"# {secrets.token_hex(8)}", "set -e", "umask 077", tool, *lines]
    )
    script += "\nchmod 700 $AGENT_PREFIX/bin/tool"
    return InstallScript(INSTALL_NAME, script, **fields)


@own
async def an_installation_is_made_once_and_for_every_user(t: Context) -> None:
    install = _install(
        "cat /proc/sys/kernel/random/uuid >$AGENT_PREFIX/made",
        'echo "$AGENT_VERSION" >$AGENT_PREFIX/wanted',
        probe=("tool", "--version"),
        env={"AGENT_VERSION": "1.2"},
    )
    tool = f"{install.prefix}/bin/tool"
    made = set()
    for _ in range(2):
        sandbox = await t.start(install=install)
        assert (
            await sandbox.read_text(f"{install.prefix}/{INSTALLED_VERSION}")
            == "works\n"
        )
        assert await sandbox.read_text(f"{install.prefix}/wanted") == "1.2\n"
        made.add(await sandbox.read_text(f"{install.prefix}/made"))
        for user in filter(None, (None, t.bench.other_user)):
            assert (await sandbox.exec([tool], user=user)).stdout == "works\n"
    assert len(made) == 1
    assert not (await t.sandbox.exec([tool])).ok  # nobody else has it


@own
async def an_install_script_has_network_and_nothing_of_the_task(t: Context) -> None:
    install = _install(
        "cp /proc/net/dev $AGENT_PREFIX/net",
        "env >$AGENT_PREFIX/env",
        "pwd >$AGENT_PREFIX/pwd",
    )
    sandbox = await t.start(install=install, env={"TASK_KEY": "of the task"})
    assert await sandbox.read_text(f"{install.prefix}/pwd") == "/\n"
    env = await sandbox.read_text(f"{install.prefix}/env")
    assert "of the task" not in env
    assert f"AGENT_PREFIX={install.prefix}" in env.splitlines()
    lines = f"grep -c : {install.prefix}/net; grep -c : /proc/net/dev"
    outside, inside = (await sandbox.exec(lines)).stdout.split()
    assert int(outside) > int(inside) == 1  # the sandbox itself has a loopback alone


@own
async def an_install_script_that_fails_shows_its_last_lines(t: Context) -> None:
    script = 'seq 100; echo "oops $KEY" >&2; exit 7'
    key = {"KEY": "sesame-open"}
    install = _install(script, env=key, secrets=tuple(key.values()))
    for _ in range(3):
        with pytest.raises(InstallFailed) as caught:
            await t.start(install=install)
        first, *lines = str(caught.value).splitlines()
        assert "its install script ended with exit code 7" in first
        assert lines == [*map(str, range(72, 101)), "oops ***"]


@own
async def an_install_script_ends_with_its_time(t: Context) -> None:
    install = _install("echo begun; sleep 3900", timeout_seconds=1)
    start = time.monotonic()
    with pytest.raises(InstallFailed, match=r"(?s)ran out of its 1 s.*begun"):
        await t.start(install=install)
    assert time.monotonic() - start < 30


@own
async def a_probe_that_fails_fails_the_installation(t: Context) -> None:
    install = _install(probe=("tool-of-another-name", "--version"))
    with pytest.raises(InstallFailed, match="`tool-of-another-name --version` ended"):
        await t.start(install=install)


# What an agent may do to its sandbox


@own
async def agent_kills_everything_and_the_sandbox_answers_or_is_lost(t: Context) -> None:
    try:
        await t.sandbox.exec("kill -9 -1; kill -9 1; true", timeout_seconds=20)
        assert (await t.sandbox.exec("echo alive")).stdout == "alive\n"
    except SandboxLost:
        return


@own
async def agent_deletes_the_shell_and_nothing_hangs(t: Context) -> None:
    await t.sandbox.exec("rm -f /bin/sh /usr/bin/sh", timeout_seconds=20)
    try:
        result = await t.sandbox.exec("echo alive", timeout_seconds=20)
    except SandboxLost:
        return
    assert result.exit_code in (126, 127)


@own
async def agent_deletes_all_tools_and_files_still_move(t: Context) -> None:
    await t.sandbox.exec("echo kept > /logs/agent/f; rm -rf /usr/bin /bin /sbin /etc")
    await t.sandbox.upload([Upload(b"t", "/tests/test.sh")], empty=["/tests"])
    result, target = await _fetch(t, "/logs/agent")
    assert result.status == "ok"
    assert (target / "f").read_text() == "kept\n"
    assert not (await t.sandbox.exec(["echo"], timeout_seconds=20)).ok


@own
async def agent_removes_its_working_directory_and_commands_still_end(
    t: Context,
) -> None:
    await t.sandbox.exec(f"rm -rf {t.sandbox.workdir}")
    try:
        result = await t.sandbox.exec("echo x", timeout_seconds=20)
    except SandboxLost:
        return
    assert isinstance(result.exit_code, int)
    assert (await t.sandbox.exec("echo x", cwd="/")).stdout == "x\n"


@own
async def agent_stops_its_own_supervision_and_the_timeout_still_holds(
    t: Context,
) -> None:
    script = (
        "echo early; for p in /proc/[0-9]*; do n=${p#/proc/};"
        ' test "$n" = $$ || kill -STOP "$n" 2>/dev/null; done; sleep 3800'
    )
    start = time.monotonic()
    try:
        result = await t.sandbox.exec(script, timeout_seconds=2)
    except SandboxLost:
        return
    assert time.monotonic() - start < 20
    assert result.timed_out
