"""An owner is recognised as dead exactly when its process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_harbor.sandboxes.owner import Owner


def owner_of(pid):
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return replace(Owner.current(), pid=pid, start_ticks=int(stat[19]))


def test_round_trip_and_alive():
    me = Owner.current()
    assert Owner.parse(str(me)) == me
    assert not me.is_dead


def test_a_process_that_ended_is_dead():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = owner_of(child.pid)
    assert not owner.is_dead
    child.communicate(b"\n")
    assert owner.is_dead


def test_a_zombie_is_dead():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert owner_of(pid).is_dead
    os.waitpid(pid, 0)


def test_who_cannot_be_looked_at_is_not_dead():
    """Whether /proc hides it (hidepid), or there is no descriptor left to look with."""
    program = (
        "import resource, sys\n"
        "from pytest_harbor.sandboxes.owner import Owner\n"
        "owners = [Owner.parse(text) for text in sys.argv[1:]]\n"
        "assert owners[0].is_dead is False\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "print([owner.is_dead for owner in owners])\n"
    )
    me = Owner.current()
    gone = replace(me, pid=2**22 + 1)  # more than any kernel gives
    said = subprocess.check_output([sys.executable, "-c", program, str(me), str(gone)])
    assert said == b"[False, True]\n"


def test_a_reused_pid_is_another_process():
    assert replace(Owner.current(), start_ticks=1).is_dead


def test_another_boot_is_dead_another_machine_unknown():
    me = Owner.current()
    boot, _, machine = me.place.partition("/")
    assert replace(me, place=f"other-boot/{machine}").is_dead
    assert not replace(me, place=f"{boot}/elsewhere-1", pid=999999999).is_dead


@pytest.mark.parametrize("text", ["", "x", "a/b:c", "a/1:", "/1:2"])
def test_other_text_is_no_owner(text):
    assert Owner.parse(text) is None
