"""The filter of system calls: what it refuses, and what has to go on working under it."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local import probing
from pytest_harbor.sandboxes.local.broker import kernel, seccomp
from pytest_harbor.sandboxes.local.provider import LocalProvider
from sandboxes.conformance import Bench

PYTHON = f"{sys.base_prefix}/bin/python3"
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
needs_filter = pytest.mark.skipif(
    kernel.FILTER is None, reason="no filter on this machine"
)


@pytest.fixture(scope="module")
def run():
    with Bench(LocalProvider(), EnvironmentSpec(network="no-network")) as bench:
        found = bench.portal.call(bench.provider.probe)
        if not found.available:
            pytest.skip(found.reason)
        sandbox = bench.portal.call(bench.start)

        def run(command, **options):
            async def call():
                return await sandbox.exec(command, timeout_seconds=60, **options)

            return bench.portal.call(call)

        yield run
        bench.portal.call(sandbox.stop)


def run_python(run, script, **options):
    return run([PYTHON, "-c", textwrap.dedent(script)], **options)


@pytest.mark.parametrize("machine", seccomp.ARCHITECTURES)
def test_numbers_are_the_kernels(machine):
    if not HEADERS[machine].exists():
        pytest.skip("no kernel headers here")
    text = HEADERS[machine].read_text()
    theirs = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text))
    ours = seccomp.ARCHITECTURES[machine].numbers
    known = {name: int(theirs[name]) for name in ours if name in theirs}
    assert len(known) > 28
    assert known == {name: ours[name] for name in known}


def test_both_architectures_refuse_the_same_calls():
    first, second = seccomp.ARCHITECTURES.values()
    assert set(first.numbers) == set(second.numbers)


def test_unknown_architecture_has_no_filter():
    assert seccomp.program("riscv64") is None


def test_no_filter_is_said(monkeypatch):
    bwrap = probing.Bwrap(Path("/bwrap"), "1.0")
    before = probing.namespace_capabilities(bwrap).notes
    monkeypatch.setattr(kernel, "FILTER", None)
    after = set(probing.namespace_capabilities(bwrap).notes) - set(before)
    assert any("system calls are not filtered" in note for note in after)


@needs_filter
def test_commands_have_the_filter(run):
    assert "Seccomp:\t2" in run("cat /proc/self/status").stdout


@needs_filter
def test_first_process_has_the_filter(run):
    assert "Seccomp:\t2" in run("cat /proc/1/status").stdout


@needs_filter
@pytest.mark.parametrize(
    "command",
    [
        "unshare -Ur true",
        "unshare -m true",
        "unshare -T true",
        "unshare --mount-proc -fp true",
    ],
)
def test_no_namespaces_of_the_agents_own(run, command):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    result = run(command)
    assert result.exit_code == 1
    assert "not permitted" in result.stderr


@needs_filter
def test_refused_calls(run):
    numbers = seccomp.ARCHITECTURES[os.uname().machine].numbers
    script = f"""
        import ctypes, errno
        libc = ctypes.CDLL(None, use_errno=True)
        zero = ctypes.c_ulong(0)
        for name, number in {numbers!r}.items():
            flags = ctypes.c_ulong(0x10000000) if name in ("clone", "unshare") else zero
            ctypes.set_errno(0)
            result = libc.syscall(ctypes.c_long(number), flags, *[zero] * 5)
            print(name, result, errno.errorcode.get(ctypes.get_errno()))
        """
    lines = run_python(run, script).stdout.splitlines()
    assert len(lines) == len(numbers)
    expected = dict.fromkeys(numbers, "EPERM") | {"clone3": "ENOSYS"}
    assert lines == [f"{name} -1 {error}" for name, error in expected.items()]


@needs_filter
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="x32 is of x86_64")
def test_second_set_of_calls_is_refused(run):
    script = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        print(libc.syscall(ctypes.c_long(0x40000000 | 39)), ctypes.get_errno())
        """
    assert run_python(run, script).stdout == "-1 1\n"


@needs_filter
def test_harmless_unshare_works(run):
    script = """
        import ctypes
        print(ctypes.CDLL(None).unshare(0x400 | 0x200))  # descriptors, working directory
        """
    assert run_python(run, script).stdout == "0\n"


def test_what_programs_do_goes_on_working(run):
    script = """
        import ctypes, multiprocessing, subprocess, threading
        def work(number): return number * 2
        if __name__ == "__main__":
            found = []
            threads = [threading.Thread(target=found.append, args=[n]) for n in range(4)]
            [t.start() for t in threads]; [t.join() for t in threads]
            print(sorted(found))
            for method in "fork", "spawn", "forkserver":
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(work, [1, 2]))
            print(subprocess.run(["sh", "-c", "echo from a shell"], text=True,
                                 capture_output=True).stdout.strip())
            print(subprocess.run(["true"], preexec_fn=lambda: None).returncode)
        """
    run("cat > /tmp/work.py", stdin=textwrap.dedent(script).encode())
    result = run([PYTHON, "/tmp/work.py"])
    assert result.stdout.splitlines() == [
        "[0, 1, 2, 3]",
        "fork [2, 4]",
        "spawn [2, 4]",
        "forkserver [2, 4]",
        "from a shell",
        "0",
    ], result


def test_debuggers_can_trace_their_children(run):
    script = """
        import ctypes, os
        libc = ctypes.CDLL(None)
        if (pid := os.fork()) == 0:
            libc.ptrace(0, 0, None, None); os.kill(os.getpid(), 19); os._exit(0)
        print(os.WIFSTOPPED(os.waitpid(pid, 0)[1]), libc.ptrace(17, pid, None, None))
        """
    assert run_python(run, script).stdout == "True 0\n"


TOOLS = {
    "bash": "bash -c 'cat <(echo one) <(echo two) | wc -l; (sleep 0 & wait)'",
    "git": "mkdir /tmp/g && cd /tmp/g && git init -q && git config user.email a"
    " && git config user.name a && git commit -q --allow-empty -m x && git log | wc -l",
    "python3": f"{PYTHON} -m venv --without-pip /tmp/v && /tmp/v/bin/python -c 'print(1)'",
}


@pytest.mark.parametrize("tool", TOOLS)
def test_common_tools_go_on_working(run, tool):
    if not run(f"command -v {tool}").ok:
        pytest.skip(f"no {tool} in the sandbox")
    result = run(TOOLS[tool])
    assert result.ok, result
    assert int(result.stdout) > 0
