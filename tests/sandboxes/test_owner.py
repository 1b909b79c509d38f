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
