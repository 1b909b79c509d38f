"""Artifacts: claims, collection, manifest, and their way into a verifier (spec 7)."""

from __future__ import annotations

import json

import anyio
import pytest

from pytest_harbor.tasks.folder.plan_types import ArtifactPlan
from pytest_harbor.verification.artifacts import (
    Collection,
    claim,
    place,
)
from scripted_sandbox import ScriptedProvider, ScriptedSandbox


def entry(source, destination=None, **fields):
    mirrored = source.lstrip("/")
    return ArtifactPlan(source, destination or mirrored, **fields)


CONVENTION = entry("/logs/artifacts", origin="convention")


def decisions(*entries):
    return [
        "skipped" if c.skipped else "fetched" if c.covered_by is None else c.covered_by
        for c in claim(entries)
    ]


class TestClaims:
    def test_different_places(self):
        assert (
            decisions(CONVENTION, entry("/app/a"), entry("/app/b")) == ["fetched"] * 3
        )

    def test_names_that_only_begin_alike_do_not_touch(self):
        assert decisions(entry("/app/a"), entry("/app/ab")) == ["fetched"] * 2

    def test_same_place_first_wins(self):
        assert decisions(entry("/a/x"), entry("/b/x", "a/x")) == ["fetched", "skipped"]

    def test_nested_place_either_way(self):
        assert decisions(entry("/app/a", "out"), entry("/b", "out/b"))[1] == "skipped"
        assert decisions(entry("/b", "out/b"), entry("/app/a", "out"))[1] == "skipped"

    def test_covered_by_an_earlier_one(self):
        assert decisions(entry("/app"), entry("/app/out/x")) == ["fetched", 0]
        assert decisions(entry("/app"), entry("/app")) == ["fetched", 0]

    def test_excludes_cover_nothing(self):
        first = entry("/app", exclude=("*.log",))
        assert decisions(first, entry("/app/out")) == ["fetched", "skipped"]

    def test_another_service_is_not_covered(self):
        other = entry("/app/x", service="db")
        assert decisions(entry("/app"), other) == ["fetched", "skipped"]

    def test_another_relative_place_is_not_covered(self):
        assert decisions(entry("/app", "a"), entry("/app/x", "b")) == ["fetched"] * 2

    def test_a_skipped_one_claims_nothing(self):
        entries = (entry("/a", "x"), entry("/b", "x"), entry("/b/c", "y"))
        assert decisions(*entries) == ["fetched", "skipped", "fetched"]


@pytest.fixture
def sandbox():
    provider = ScriptedProvider(
        initial_files={
            "/app/out/report.json": b"{}",
            "/app/out/deep/x": b"x",
            "/app/notes.txt": b"notes",
            "/logs/artifacts/kept": b"kept",
        }
    )
    return ScriptedSandbox(provider, "box")


def collected_from(sandbox, target, *entries):
    collection = Collection(entries, target)
    anyio.run(collection.fetch, sandbox)
    return collection.finish()


def test_manifest_and_files(sandbox, tmp_path):
    collected_from(
        sandbox,
        tmp_path,
        CONVENTION,
        entry("/app/out", origin="task", exclude=("*.log",)),
        entry("notes.txt", "renamed.txt", origin="step"),
        entry("/app/none", origin="step"),
        entry("/else", "renamed.txt"),
        entry("/data", service="db"),
    )
    rows = json.loads((tmp_path / "manifest.json").read_text())
    assert rows[0] == {
        "source": "/logs/artifacts",
        "destination": "artifacts/logs/artifacts",
        "type": "directory",
        "status": "ok",
        "service": "main",
        "exclude": [],
        "origin": "convention",
        "dropped": [],
    }
    assert [
        (r["destination"], r["type"], r["status"], r["origin"]) for r in rows[1:]
    ] == [
        ("artifacts/app/out", "directory", "ok", "task"),
        ("artifacts/renamed.txt", "file", "ok", "step"),
        ("artifacts/app/none", None, "failed", "step"),
        ("artifacts/renamed.txt", None, "skipped", "task"),
        ("artifacts/data", None, "failed", "task"),
    ]
    assert rows[1]["exclude"] == ["*.log"]
    assert (tmp_path / "app/out/deep/x").read_bytes() == b"x"
    assert (tmp_path / "renamed.txt").read_bytes() == b"notes"
    assert (tmp_path / "logs/artifacts/kept").read_bytes() == b"kept"


def test_one_transfer_for_all(sandbox, tmp_path):
    collected_from(
        sandbox, tmp_path, CONVENTION, entry("/app/out"), entry("/app/notes")
    )
    assert [what for what, _ in sandbox.owner.calls] == ["download"]


def test_covered_entries_have_the_status_of_what_came(sandbox, tmp_path):
    items = collected_from(
        sandbox,
        tmp_path,
        entry("/app"),
        entry("/app/out"),
        entry("/app/notes.txt"),
        entry("/app/none"),
    )
    assert [(item.status, item.kind) for item in items] == [
        ("ok", "directory"),
        ("ok", "directory"),
        ("ok", "file"),
        ("failed", None),
    ]


def test_empty_convention_folder(sandbox, tmp_path):
    del sandbox.files["/logs/artifacts/kept"]
    [item] = collected_from(sandbox, tmp_path, CONVENTION)
    assert (item.status, item.warning) == ("empty", None)


def test_warnings_name_what_a_person_declared(sandbox, tmp_path):
    items = collected_from(
        sandbox, tmp_path, CONVENTION, entry("/app/none"), entry("/x", "app/none")
    )
    assert [item.warning for item in items] == [
        None,
        "artifact /app/none: failed: No such file or directory",
        "artifact /x: skipped: its place is taken by artifact /app/none",
    ]


def test_what_was_left_out_is_told_and_listed(sandbox, tmp_path):
    long = "q/" * 2000
    dropped = tuple(f"{name}: link out: /etc" for name in ("a", "b\udcff", long, "d"))
    sandbox.owner.dropped = {"/app/out": dropped, "/logs/artifacts": dropped[:1]}
    items = collected_from(sandbox, tmp_path, CONVENTION, entry("/app/out"))
    kept = "only files, folders and links inside it are kept"
    assert [item.warning for item in items] == [
        f"artifact /logs/artifacts: 1 left out ('a'): {kept}",
        f"artifact /app/out: 4 left out ('a', 'b\\udcff', '...{long[-60:]}', ...): {kept}",
    ]
    rows = json.loads((tmp_path / "manifest.json").read_text())
    assert [row["dropped"] for row in rows] == [list(dropped[:1]), list(dropped)]
    assert [row["status"] for row in rows] == ["ok", "ok"]


def test_a_convention_folder_that_is_too_big_is_told(sandbox, tmp_path):
    sandbox.owner.too_big = frozenset({"/logs/artifacts"})
    [item] = collected_from(sandbox, tmp_path, CONVENTION)
    assert item.warning == "artifact /logs/artifacts: failed: more than 9 bytes"


def test_a_convention_folder_that_is_missing_is_nothing(sandbox, tmp_path):
    items = collected_from(sandbox, tmp_path, entry("/gone", origin="convention"))
    assert [(item.status, item.warning) for item in items] == [("failed", None)]


class TestPlacement:
    def test_at_the_source_whatever_the_destination(self, sandbox, tmp_path):
        items = collected_from(
            sandbox,
            tmp_path,
            CONVENTION,
            entry("/app/out", "elsewhere"),
            entry("notes.txt", "renamed.txt"),
            entry("/app/none"),
        )
        placement = place(items, "/app")
        assert [(u.source, u.target) for u in placement.uploads] == [
            (tmp_path / "logs/artifacts", "/logs/artifacts"),
            (tmp_path / "elsewhere", "/app/out"),
            (tmp_path / "renamed.txt", "/app/notes.txt"),
        ]
        # A folder replaces what is there; a file only itself.
        assert placement.empty == ("/logs/artifacts", "/app/out")
        assert placement.warnings == ()

    def test_never_over_what_decides_the_grade(self, sandbox, tmp_path):
        sandbox.files["/logs/agent/x"] = b"x"
        items = collected_from(sandbox, tmp_path, entry("/logs/agent/x"))
        placement = place(items, "/app")
        assert (placement.uploads, placement.empty) == ((), ())
        assert "/logs/agent/x" in placement.warnings[0]


def test_excludes_and_places_are_asked_for(sandbox, tmp_path):
    collected_from(
        sandbox, tmp_path, entry("/app/out", "o", exclude=("*.log",)), entry("rel")
    )
    first, second = sandbox.owner.downloads
    assert (first.source, first.target) == ("/app/out", tmp_path / "o")
    assert first.exclude == ("*.log",)
    assert second.source == "/app/rel"
