"""Taking the real folders and giving them back: nothing else may ever be touched."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import SandboxStartFailed, UnsupportedByProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local import ground as module
from pytest_harbor.sandboxes.local.broker import kernel, orphans, processes
from pytest_harbor.sandboxes.local.ground import Ground
from pytest_harbor.sandboxes.local.provider import LocalProvider


@pytest.fixture(autouse=True)
def no_open_folders(monkeypatch):
    """Here nothing may be made in the machine's real /logs."""
    monkeypatch.setattr(module, "OPEN_FOLDERS", ())


@pytest.fixture
def use(tmp_path):
    """Take places, let something happen to them, and give them back."""

    def use(*places, during=lambda: None):
        async def main():
            ground = Ground(tmp_path)
            await ground.take(map(str, places))
            during()
            await ground.release()

        anyio.run(main)
        assert Ground(tmp_path).sweep() == 0

    return use


@pytest.fixture
def precious(tmp_path):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "file").write_text("precious")
    return folder


def test_path_through_a_missing_folder_is_refused(tmp_path, use, precious):
    with pytest.raises(UnsupportedByProvider, match=r"'\.\.'"):
        use(f"{tmp_path}/new/../precious")
    assert (precious / "file").read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_folders_made_above_a_place_go_with_it(tmp_path, use):
    place = tmp_path / "new" / "deep" / "place"
    use(place, during=(place / "left").mkdir)
    assert not (tmp_path / "new").exists()


def test_place_below_a_link_is_the_real_one(tmp_path, use):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    use(tmp_path / "link" / "place", during=(tmp_path / "real/place/x").mkdir)
    assert list((tmp_path / "real").iterdir()) == []


def test_empty_folder_stays_the_same_one(tmp_path, use):
    place = tmp_path / "place"
    place.mkdir(mode=0o750)
    before = place.stat()

    def fill():
        (place / "deep" / "er").mkdir(parents=True)
        (place / "file").write_text("x")
        place.chmod(0o777)

    use(place, during=fill)
    after = place.stat()
    assert list(place.iterdir()) == []
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("was_there", [True, False])
def test_place_that_became_a_link_is_no_way_out(tmp_path, use, precious, was_there):
    place = tmp_path / "place"
    if was_there:
        place.mkdir(mode=0o711)

    def replace_it():
        place.rmdir()
        place.symlink_to(precious)

    use(place, during=replace_it)
    assert (precious / "file").read_text() == "precious"
    assert not place.is_symlink()
    assert place.exists() == was_there
    if was_there:
        assert stat.S_IMODE(place.stat().st_mode) == 0o711


def test_folder_above_that_became_another_is_left_alone(tmp_path, use, precious):
    above = tmp_path / "above"
    above.mkdir()
    (precious / "place").mkdir()

    def exchange():
        above.rename(tmp_path / "away")
        precious.rename(above)

    use(above / "place", during=exchange)
    assert (above / "place").is_dir()
    assert (above / "file").read_text() == "precious"


def test_place_that_is_a_file_is_refused(tmp_path, use):
    place = tmp_path / "app"
    place.write_text("x")
    with pytest.raises(UnsupportedByProvider, match="already holds something"):
        use(place)
    assert place.read_text() == "x"


def test_place_that_cannot_be_made_is_named(tmp_path, use):
    (tmp_path / "file").write_text("x")
    with pytest.raises(SandboxStartFailed, match=r"cannot make .*file"):
        use(tmp_path / "fine", tmp_path / "file" / "place")
    assert not (tmp_path / "fine").exists()


def _killed_state(tmp_path, *places):
    """What is left when an owner is killed with the ground in its hands."""
    killed = Ground(tmp_path)
    anyio.run(killed.take, [str(place) for place in places])
    killed._lock.release()
    return tmp_path / module._STATE_NAME


def test_next_owner_takes_back_what_a_killed_one_made(tmp_path, use):
    _killed_state(tmp_path, tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "left").write_text("x")
    seen = []
    use(tmp_path / "a" / "b", during=lambda: seen.extend((tmp_path / "a/b").iterdir()))
    assert seen == []
    assert not (tmp_path / "a").exists()


def test_sweep_takes_back_too(tmp_path):
    _killed_state(tmp_path, tmp_path / "a")
    assert Ground(tmp_path).sweep() == 1
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"taken": [{"path": "/etc"}]}',
        '{"since": 0, "taken": [1]}',
    ],
)
def test_state_that_cannot_be_read_undoes_nothing(tmp_path, use, text):
    (tmp_path / module._STATE_NAME).write_text(text)
    use(tmp_path / "place")
    assert not (tmp_path / module._STATE_NAME).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be somebody else")
def test_state_of_somebody_else_undoes_nothing(tmp_path, precious):
    claim = {**_dict(module.look(str(tmp_path / "free"))), "name": "precious"}
    state = tmp_path / module._STATE_NAME
    state.write_text(json.dumps({"since": 1 << 60, "taken": [claim]}))
    os.chown(state, 54321, 54321)
    assert Ground(tmp_path).sweep() == 0
    assert precious.exists()
    os.chown(state, 0, 0)
    assert Ground(tmp_path).sweep() == 1  # it would have been understood
    assert not precious.exists()


def _dict(claim):
    return json.loads(json.dumps(claim, default=vars))


KEPT = kernel.KEPT_BITS
CONTAINER = orphans.Marks(False, KEPT | 1 << 13, 1, 1)
COMMAND = orphans.Marks(True, KEPT, 2, 1)


@pytest.mark.parametrize(
    ("marks", "own", "expected"),
    [
        (COMMAND, CONTAINER, True),
        (replace(COMMAND, bounding=0), CONTAINER, True),
        (replace(COMMAND, filters=5), CONTAINER, True),
        (replace(COMMAND, filters=1), CONTAINER, False),
        (replace(COMMAND, no_new_privs=False), CONTAINER, False),
        (replace(COMMAND, bounding=CONTAINER.bounding), CONTAINER, False),
        (replace(COMMAND, depth=2), CONTAINER, False),
        (CONTAINER, CONTAINER, False),
        # a container that is deprived itself
        (COMMAND, replace(COMMAND, filters=1), True),
        (COMMAND, COMMAND, False),
        # a kernel that does not count filters
        (replace(COMMAND, filters=None), replace(CONTAINER, filters=None), True),
        (replace(COMMAND, filters=None), replace(COMMAND, filters=None), False),
    ],
)
def test_marks_of_a_command(monkeypatch, marks, own, expected):
    monkeypatch.setattr(kernel, "FILTER", b"any")
    assert marks.are_of_a_command(own) is expected


def test_marks_are_read_from_the_kernels_text():
    text = "Name:\tx\nNSpid:\t7\t1\nCapBnd:\t00000000800405fb\nNoNewPrivs:\t1\n"
    assert orphans.parse(text) == orphans.Marks(True, 0x800405FB, None, 2)
    assert orphans.parse(f"{text}Seccomp_filters:\t3\n").filters == 3


def test_neither_older_processes_nor_this_one_are_orphans():
    proc = processes.open_proc()
    try:
        younger = orphans.find(proc, since=module._now_ticks() + 1_000_000)
        assert orphans.look(proc, os.getpid()) is not None
        assert os.getpid() not in [one.pid for one in orphans.find(proc, since=0)]
    finally:
        os.close(proc)
    assert younger == []


def test_who_serves_a_sandbox_with_namespaces_is_no_orphan():
    """A sweep of this ground must not cost the sandboxes of another run."""

    async def main():
        provider = LocalProvider(mode="namespace")
        if not (await provider.probe()).available:
            pytest.skip("no namespaces here")
        try:
            box = await provider.start(EnvironmentSpec(), name="kept", labels={})
            await box.exec("true")  # one has joined it now, and waits for the next
            broker = provider._base.broker._process.pid
            proc = processes.open_proc()
            try:
                own = orphans.look(proc, os.getpid())
                table = processes.table(proc)
                serving = {
                    pid
                    for pid, process in table.items()
                    if process.parent == broker
                    and orphans.look(proc, pid).are_of_a_command(own)
                }
                found = {process.pid for process in orphans.find(proc, since=0)}
            finally:
                os.close(proc)
            return serving, found, (await box.exec("echo kept")).stdout
        finally:
            await provider.aclose()

    serving, found, said = anyio.run(main)
    assert serving
    assert not serving & found
    assert said == "kept\n"


def test_paths_are_written_down_before_anything_is_made(tmp_path):
    state = _killed_state(tmp_path, tmp_path / "a")
    assert json.loads(state.read_text())["taken"][0]["name"] == "a"
    assert Path(json.loads(state.read_text())["taken"][0]["folder"]) == tmp_path
    Ground(tmp_path).sweep()
