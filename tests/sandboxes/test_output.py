"""Captured output stays within bounds; secrets leave nothing behind."""

from __future__ import annotations

import io

import pytest

from pytest_harbor.sandboxes import output
from pytest_harbor.sandboxes.output import CappedOutput, Masker


class TestCappedOutput:
    def test_short_output_is_whole(self):
        out = CappedOutput(limit=10)
        out.write(b"hello")
        out.write(b"12345")
        assert (out.text(), out.truncated) == ("hello12345", False)

    def test_long_output_keeps_both_ends_and_says_how_much_is_gone(self):
        out = CappedOutput(limit=10)
        for number in range(100):
            out.write(b"%02d" % number)
        assert out.truncated
        assert out.text() == "00010\n[... 190 bytes left out ...]\n79899"

    def test_a_character_cut_between_writes_survives(self):
        out = CappedOutput()
        for byte in "🍰".encode():
            out.write(bytes([byte]))
        assert out.text() == "🍰"

    def test_bytes_that_are_no_text_are_replaced_but_logged_as_they_are(self):
        log = io.BytesIO()
        out = CappedOutput(limit=4, log=log)
        raw = bytes(range(256))
        out.write(raw)
        assert log.getvalue() == raw
        assert "�" in out.text()

    @pytest.mark.parametrize("size", [1, 3, 10, 100])
    def test_a_log_is_cut_once_at_its_limit(self, size):
        log = io.BytesIO()
        out = CappedOutput(log=log, log_limit=10)
        raw = b"0123456789" * 10
        for at in range(0, len(raw), size):
            out.write(raw[at : at + size])
        assert log.getvalue() == b"0123456789\n[... log cut at 10 bytes ...]\n"
        assert out.text() == raw.decode()

    def test_a_log_that_just_fits_is_whole(self):
        log = io.BytesIO()
        out = CappedOutput(log=log, log_limit=10)
        out.write(b"01234")
        out.write(b"56789")
        out.write(b"")
        assert log.getvalue() == b"0123456789"

    def test_a_log_is_limited_by_default(self):
        log = io.BytesIO()
        out = CappedOutput(log=log)
        for _ in range(output.MAX_LOG_BYTES // 2**20 + 2):
            out.write(b"*" * 2**20)
        assert len(log.getvalue()) < output.MAX_LOG_BYTES + 100


class TestMasker:
    masker = Masker(["hunter2-token", "hunter2-token-long", "abc"])

    def test_the_longest_goes_first_and_short_ones_are_left(self):
        text = self.masker.text("a hunter2-token-long b hunter2-token c abc")
        assert text == "a *** b *** c abc"

    def test_data_is_masked_in_depth(self):
        value = {"k hunter2-token": ["hunter2-token", 1, None, {"x": "hunter2-token"}]}
        assert self.masker.data(value) == {"k ***": ["***", 1, None, {"x": "***"}]}

    @pytest.mark.parametrize("chunk", [1, 3, 14, 1000])
    def test_a_file_is_masked_across_chunks_other_bytes_kept(
        self, tmp_path, monkeypatch, chunk
    ):
        monkeypatch.setattr(output, "_CHUNK", chunk)
        log = tmp_path / "log"
        log.write_bytes(b"\xff\x00hunter2-token\n" * 5 + b"end")
        log.chmod(0o640)
        self.masker.file(log)
        assert log.read_bytes() == b"\xff\x00***\n" * 5 + b"end"
        assert log.stat().st_mode & 0o777 == 0o640

    def test_a_link_is_never_written_through(self, tmp_path):
        secret = tmp_path / "real"
        secret.write_text("hunter2-token")
        (tmp_path / "link").symlink_to(secret)
        self.masker.file(tmp_path / "link")
        assert secret.read_text() == "hunter2-token"

    def test_names_and_links_are_masked_below_the_folder(self, tmp_path):
        top = tmp_path / "hunter2-token"
        inner = top / "a hunter2-token" / "hunter2-token-long"
        inner.mkdir(parents=True)
        (inner / "x-hunter2-token").write_text("hunter2-token")
        (inner / "x-hunter2-token-long").write_text("second")
        (inner / "x-***-2").write_text("third")
        (top / "link").symlink_to("a hunter2-token")
        self.masker.folder(top)
        found = {
            str(path.relative_to(top)): path.read_text()
            for path in top.rglob("*")
            if path.is_file()
        }
        assert sorted(found) == [
            "a ***/***/x-***",
            "a ***/***/x-***-2",
            "a ***/***/x-***-3",
        ]
        assert set(found.values()) == {"***", "second", "third"}
        assert found["a ***/***/x-***-2"] == "third"
        assert str((top / "link").readlink()) == "a ***"

    def test_without_usable_secrets_nothing_happens(self, tmp_path):
        masker = Masker(["", "1", "true"])
        assert not masker
        assert masker.text("1 true") == "1 true"
