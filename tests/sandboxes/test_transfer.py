"""Tar streams: what goes in keeps its shape, what comes out cannot reach the host."""

from __future__ import annotations

import io
import tarfile
import time
from pathlib import Path

import pytest

from pytest_harbor.errors import TransferFailed
from pytest_harbor.sandboxes.transfer import DEEPEST, is_excluded, pack, unpack
from pytest_harbor.sandboxes.transfer_types import TransferLimits, Upload


def members(*uploads):
    with pack(uploads) as stream, tarfile.open(fileobj=stream) as tar:
        return {member.name: member for member in tar}


def stream_of(*entries):
    """A tar of ``(name, type, content or link)`` rows, first the root folder ``x``."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, value in [("x", tarfile.DIRTYPE, ""), *entries]:
            info = tarfile.TarInfo(name)
            info.type = kind
            if kind == tarfile.REGTYPE:
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
            else:
                info.linkname = value
                tar.addfile(info)
    stream.seek(0)
    return stream


REG, DIR, SYM, HARD = tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


class TestPack:
    def test_modes_do_not_depend_on_the_umask_of_the_checkout(self, tmp_path):
        (tmp_path / "private").mkdir(mode=0o700)
        (tmp_path / "private" / "a.txt").write_text("a")
        (tmp_path / "private" / "a.txt").chmod(0o600)
        (tmp_path / "run").write_text("r")
        (tmp_path / "run").chmod(0o700)
        found = members(Upload(tmp_path, "/tests"))
        assert found["tests/private"].mode == 0o755
        assert found["tests/private/a.txt"].mode == 0o644
        assert found["tests/run"].mode == 0o755

    def test_keep_takes_the_mode_but_never_setuid(self, tmp_path):
        (tmp_path / "tool").write_text("t")
        (tmp_path / "tool").chmod(0o4750)
        assert members(Upload(tmp_path, "/app", modes="keep"))["app/tool"].mode == 0o750

    def test_executable_and_exclude_name_paths_below_the_source(self, tmp_path):
        (tmp_path / "test.sh").write_text("")
        (tmp_path / "skip").mkdir()
        (tmp_path / "skip" / "big").write_text("")
        found = members(
            Upload(
                tmp_path,
                "/tests",
                executable=frozenset({"test.sh"}),
                exclude=frozenset({"skip"}),
            )
        )
        assert set(found) == {"tests/test.sh"}
        assert found["tests/test.sh"].mode == 0o755

    def test_everything_belongs_to_root(self, tmp_path):
        (tmp_path / "a").write_text("a")
        found = members(Upload(tmp_path, "/app"), Upload(b"text", "/logs/note"))
        assert {(m.uid, m.gid) for m in found.values()} == {(0, 0)}

    def test_the_target_folder_itself_is_no_member(self, tmp_path):
        (tmp_path / "a").write_text("a")
        assert "app" not in members(Upload(tmp_path, "/app"))

    def test_a_link_inside_stays_a_link(self, tmp_path):
        (tmp_path / "a").write_text("a")
        (tmp_path / "b").symlink_to("a")
        found = members(Upload(tmp_path, "/app"))
        assert found["app/b"].issym()
        assert found["app/b"].linkname == "a"

    @pytest.mark.parametrize("link", ["/etc/passwd", "../outside", "sub/../../x"])
    def test_a_link_out_is_refused(self, tmp_path, link):
        source = tmp_path / "source"
        source.mkdir()
        (source / "bad").symlink_to(link)
        with pytest.raises(TransferFailed, match="leaves"):
            pack([Upload(source, "/app")])

    def test_a_missing_source_is_named(self, tmp_path):
        with pytest.raises(TransferFailed, match="gone"):
            pack([Upload(tmp_path / "gone", "/app")])


class TestUnpack:
    def test_a_folder_lands_at_the_target(self, tmp_path):
        result = unpack(
            stream_of(("x/sub", DIR, ""), ("x/sub/a", REG, b"data")),
            "/x",
            tmp_path / "t",
        )
        assert (result.status, result.kind) == ("ok", "directory")
        assert (tmp_path / "t/sub/a").read_bytes() == b"data"

    def test_an_empty_folder_says_so(self, tmp_path):
        assert unpack(stream_of(), "/x", tmp_path / "t").status == "empty"

    def test_a_file_lands_at_the_target(self, tmp_path):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            info = tarfile.TarInfo("report.txt")
            info.size = 2
            tar.addfile(info, io.BytesIO(b"ok"))
        stream.seek(0)
        result = unpack(stream, "/app/report.txt", tmp_path / "deep" / "out.txt")
        assert (result.status, result.kind) == ("ok", "file")
        assert (tmp_path / "deep/out.txt").read_bytes() == b"ok"

    @pytest.mark.parametrize(
        "rows",
        [
            [("x/../../evil", REG, b"!")],
            [("/evil", REG, b"!")],
            [("x/link", SYM, "/"), ("x/link/evil", REG, b"!")],
            [("x/link", SYM, ".."), ("x/link/evil", REG, b"!")],
            [("x/hard", HARD, "../secret")],
            [("x/hard", HARD, "/etc/passwd")],
            [("x/out", SYM, "../secret")],
            [("x/out", SYM, "/etc/passwd")],
            [("x/a", SYM, "b"), ("x/b", SYM, "../secret")],
            [("x/a", SYM, "."), ("x/b", SYM, "a/../../secret")],
            [("x/fifo", tarfile.FIFOTYPE, "")],
            [("x/null", tarfile.CHRTYPE, "")],
            [("x/blk", tarfile.BLKTYPE, "")],
        ],
    )
    def test_hostile_members_reach_nothing(self, tmp_path, rows):
        (tmp_path / "secret").write_text("secret")
        target = tmp_path / "t"
        result = unpack(stream_of(*rows), "/x", target)
        assert {path.name for path in tmp_path.iterdir()} == {"secret", "t"}
        for path in target.rglob("*"):
            assert path.resolve().is_relative_to(target)
        assert not any(
            "secret" in p.read_text() for p in target.rglob("*") if p.is_file()
        )
        assert result.dropped or (target / "link/evil").is_file()

    def test_links_that_stay_inside_are_kept(self, tmp_path):
        rows = [("x/a", REG, b"1"), ("x/latest", SYM, "a"), ("x/same", HARD, "x/a")]
        result = unpack(stream_of(*rows), "/x", tmp_path / "t")
        assert result.dropped == ()
        assert (tmp_path / "t/latest").is_symlink()
        assert (tmp_path / "t/latest").read_text() == "1"
        assert (tmp_path / "t/same").read_text() == "1"

    def test_a_link_already_at_the_target_is_not_followed(self, tmp_path):
        outside = tmp_path / "outside"
        outside.mkdir()
        target = tmp_path / "t"
        target.mkdir()
        (target / "sub").symlink_to(outside)
        (target / "file").symlink_to(outside / "new")
        rows = [("x/sub/evil", REG, b"!"), ("x/file", REG, b"mine")]
        result = unpack(stream_of(*rows), "/x", target)
        assert list(outside.iterdir()) == []
        assert (target / "file").read_bytes() == b"mine"
        assert len(result.dropped) == 1

    def test_modes_never_carry_setuid_and_stay_removable(self, tmp_path):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            for name, kind, mode in [("x", DIR, 0o000), ("x/su", REG, 0o6111)]:
                info = tarfile.TarInfo(name)
                info.type, info.mode = kind, mode
                tar.addfile(info, io.BytesIO())
        stream.seek(0)
        unpack(stream, "/x", tmp_path / "t")
        assert (tmp_path / "t").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "t/su").stat().st_mode & 0o7777 == 0o755

    @pytest.mark.parametrize(
        ("limits", "reason"),
        [
            (TransferLimits(max_bytes=5), "more than 5 bytes"),
            (TransferLimits(max_files=1), "more than 1 files"),
        ],
    )
    def test_a_cap_fails_the_download_and_not_the_run(self, tmp_path, limits, reason):
        rows = [("x/a", REG, b"1234"), ("x/b", REG, b"5678")]
        result = unpack(stream_of(*rows), "/x", tmp_path / "t", limits=limits)
        assert result.status == "failed"
        assert result.reason == reason

    @pytest.mark.parametrize(
        ("pattern", "left"),
        [
            ("*.pyc", {"keep.py", "cache", "cache/keep"}),
            ("cache", {"keep.py", "drop.pyc"}),
            ("./cache/", {"keep.py", "drop.pyc"}),
            ("cache/*", {"keep.py", "drop.pyc", "cache"}),
            ("keep", {"keep.py", "drop.pyc", "cache", "cache/b.pyc"}),
        ],
    )
    def test_excludes_read_as_tars(self, tmp_path, pattern, left):
        rows = [
            ("x/keep.py", REG, b""),
            ("x/drop.pyc", REG, b""),
            ("x/cache", DIR, ""),
            ("x/cache/b.pyc", REG, b""),
            ("x/cache/keep", REG, b""),
        ]
        target = tmp_path / "t"
        unpack(stream_of(*rows), "/x", target, exclude=[pattern])
        assert {str(p.relative_to(target)) for p in target.rglob("*")} == left

    def test_exclusion_of_deep_paths_is_quick(self):
        parts = ["dddddddd"] * DEEPEST
        begun = time.process_time()
        assert not any(is_excluded(parts, ["*.pyc", "node_modules"]) for _ in range(9))
        assert time.process_time() - begun < 1  # a third of a second each, once
        assert is_excluded([*parts, "a.pyc", "b"], ["*.pyc"])
        assert is_excluded([*parts, "a", "b"], ["a/b"])
        assert not is_excluded([*parts, "xa", "b"], ["a/b"])

    def test_what_was_dropped_is_named_by_its_path_below_the_source(self, tmp_path):
        rows = [
            ("x/sub", DIR, ""),
            ("x/sub/out", SYM, "/etc/passwd"),
            ("x/sub/pipe", tarfile.FIFOTYPE, ""),
            ("x/sub/hard", HARD, "/etc/passwd"),
        ]
        result = unpack(stream_of(*rows), "/x", tmp_path / "t")
        paths = {line.partition(": ")[0] for line in result.dropped}
        assert paths == {"sub/out", "sub/pipe", "sub/hard"}

    def test_what_was_dropped_counts_towards_the_cap(self, tmp_path):
        rows = [(f"x/{number}", tarfile.FIFOTYPE, "") for number in range(9)]
        limits = TransferLimits(max_files=4)
        result = unpack(stream_of(*rows), "/x", tmp_path / "t", limits=limits)
        assert (result.status, result.reason) == ("failed", "more than 4 files")
        assert len(result.dropped) == 4

    def test_what_lies_too_deep_is_dropped(self, tmp_path):
        rows = [("x" + "/d" * depth, DIR, "") for depth in range(1, DEEPEST + 3)]
        rows += [("x" + "/d" * 2 * DEEPEST + "/f", REG, b"f"), ("x/top", REG, b"t")]
        result = unpack(stream_of(*rows), "/x", tmp_path / "t")
        assert [line.partition(": ")[2] for line in result.dropped] == [
            "too many folders deep"
        ] * 3
        assert max(map(len, result.dropped)) < 500  # d/d/d/... alone has more
        assert len(list((tmp_path / "t").rglob("d"))) == DEEPEST
        assert (tmp_path / "t/top").read_bytes() == b"t"

    def test_a_chain_of_folders_is_looked_at_once(self, tmp_path, monkeypatch):
        made = []
        mkdir = Path.mkdir
        monkeypatch.setattr(
            Path, "mkdir", lambda path, **how: (made.append(path), mkdir(path, **how))
        )
        rows = [("x" + "/d" * depth, DIR, "") for depth in range(1, DEEPEST)]
        unpack(stream_of(*rows), "/x", tmp_path / "t")
        assert len(made) < 4 * DEEPEST

    def test_folders_count_towards_the_cap(self, tmp_path):
        rows = [("x/a", DIR, ""), ("x/a/b", DIR, ""), ("x/c", DIR, "")]
        limits = TransferLimits(max_files=2)
        result = unpack(stream_of(*rows), "/x", tmp_path / "t", limits=limits)
        assert (result.status, result.reason) == ("failed", "more than 2 files")
        limits = TransferLimits(max_files=3)
        result = unpack(stream_of(*rows), "/x", tmp_path / "u", limits=limits)
        assert result.status == "empty"

    def test_odd_names_are_kept_or_dropped_never_fatal(self, tmp_path):
        rows = [
            ("x/" + "n" * 300, REG, b""),
            ("x/\udcff\udcfe", REG, b"bytes"),
            ("x/new\nline", REG, b""),
        ]
        result = unpack(stream_of(*rows), "/x", tmp_path / "t")
        assert result.status == "ok"
        assert len(result.dropped) == 1
        assert (tmp_path / "t" / "\udcff\udcfe").read_bytes() == b"bytes"

    def test_rubbish_is_a_transfer_failure(self, tmp_path):
        with pytest.raises(TransferFailed, match="broken archive"):
            unpack(io.BytesIO(b"no tar at all" * 100), "/x", tmp_path / "t")

    def test_a_root_that_is_no_file_or_folder_fails(self, tmp_path):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as tar:
            info = tarfile.TarInfo("x")
            info.type, info.linkname = SYM, "/etc/passwd"
            tar.addfile(info)
        stream.seek(0)
        result = unpack(stream, "/x", tmp_path / "t")
        assert result.status == "failed"
        assert not (tmp_path / "t").exists()
