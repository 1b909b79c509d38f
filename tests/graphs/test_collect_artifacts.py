"""``collect_artifacts`` on the local sandbox: the table of rules, names, hostile files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import anyio
import pytest

from pytest_harbor.errors import SandboxLost, StepError
from pytest_harbor.graphs.collecting import Entry, link_problem, wanted
from pytest_harbor.graphs.context import DeployedAgent
from pytest_harbor.graphs.objects import FolderStore
from pytest_harbor.graphs.steps.api import RunSettings, StepType
from pytest_harbor.graphs.steps.collect_artifacts import collect_artifacts
from pytest_harbor.graphs.universes import read_universe
from pytest_harbor.tasks.steps.model import CollectArtifacts
from pytest_harbor.tasks.steps.step import Step
from step_bundles import agent_up, load, take
from step_runs import Run


class Collecting:
    """Runs collect steps on one agent's sandbox after a script made its files."""

    def __init__(self, run_steps, library):
        self.run_steps = run_steps
        self.library = library

    def __call__(self, script, *steps, **options):
        async def make(_, run):
            sandbox = run.instance(run.context.agent("clerk").instance_id).sandbox
            result = await sandbox.exec(["sh", "-ec", script], cwd="/app/artifact")
            assert result.ok, result

        result = self.run_steps(
            agent_up(),
            {"id": "make", "type": "make"},
            *steps,
            step_types={"make": StepType(Step, make)},
            **options,
        )
        assert result.step("make").status == "passed", result.step("make").error
        return result


@pytest.fixture
def collect(run_steps, library):
    return Collecting(run_steps, library)


def collected(result, step_id="take"):
    return result.context.metadata["collected_artifacts"][step_id]


def contents(result, step_id="take"):
    """What was collected: each entry's text."""
    return {
        entry: Path(unquote(url.removeprefix("file://"))).read_text()
        for entry, url in collected(result, step_id)["artifacts"].items()
    }


def universe_of(result, library, step_id="take"):
    store = FolderStore(library.root / "logs" / "objects")
    reference = collected(result, step_id)["file_artifact_universe"]
    return anyio.run(read_universe, store, reference)


EMPTY = "rm -rf /app/artifact/* && "


def test_everything_below_the_folder_is_collected(collect, library):
    result = collect(
        EMPTY + "mkdir -p a/b empty && echo 1 > a/b/c.csv && echo 2 > run.sh && "
        "chmod 750 run.sh && echo x > skip.me && echo x > a/skip.me",
        take(exclude_basenames=["skip.me"]),
    )
    assert result.outcome == "unscored", result.failure_reason
    assert contents(result) == {"a/b/c.csv": "1\n", "run.sh": "2\n"}
    reference = collected(result)["file_artifact_universe"]
    assert reference == {"id": f"{result.instance_id}/take", "version": 1}
    universe = universe_of(result, library)
    csv, script = universe.files
    assert (csv.path, csv.filename, csv.content_type) == (
        "a/b/c.csv",
        "c.csv",
        "text/csv",
    )
    assert csv.id.startswith(f"{universe.id}/")
    assert csv.id != script.id
    assert (csv.size, script.mode) == (2, 0o750)
    assert result.step("take").warnings == ()


@pytest.mark.parametrize(
    "script", [EMPTY + "true", "rm -rf /app/artifact"], ids=["empty", "absent"]
)
def test_an_empty_folder_is_nothing_and_no_failure(collect, script):
    result = collect(f"cd / && {script}", take())
    assert result.outcome == "unscored", result.failure_reason
    assert collected(result) == {"artifacts": {}, "file_artifact_universe": None}
    assert result.context.metadata["collect_produced_files"] == {
        "step_id": "take",
        "base_path": "/app/artifact",
        "files": [],
    }


def test_named_files_are_collected_and_missing_ones_are_warnings(collect, library):
    result = collect(
        "mkdir -p loans && echo r > receipt.pdf && echo t > loans/today.csv && "
        "echo far > /srv/far.txt && mkdir folder && mkfifo pipe",
        take(
            base_path="/app/artifact/",
            artifact_paths=[
                "receipt.pdf",
                "loans/../loans/today.csv",
                "/srv/far.txt",
                "missing.txt",
                "folder",
                "pipe",
                "https://elsewhere/x.pdf",
            ],
        ),
    )
    assert result.outcome == "unscored", result.failure_reason
    assert contents(result) == {
        "receipt.pdf": "r\n",
        "loans/../loans/today.csv": "t\n",
        "/srv/far.txt": "far\n",
    }
    assert [file.path for file in universe_of(result, library).files] == [
        "receipt.pdf",
        "loans/today.csv",
        "srv/far.txt",
    ]
    missing, folder, pipe = result.step("take").warnings
    assert missing == "missing.txt is not there"
    assert folder == "folder is a folder, not a file"
    assert pipe.startswith("pipe cannot be read: ")


def test_no_named_file_is_a_failure_and_the_context_is_written(collect):
    result = collect(
        EMPTY + "echo x > actual.txt && mkdir -p /app/artifact/sub",
        take(artifact_paths=["a.txt", "sub"], fail_task_on_error=False),
        load(agent_name="clerk", artifact_from_step_id="take"),
    )
    step = result.step("take")
    assert step.status == "tolerated"
    assert step.error == (
        "none of the named files could be collected from clerk's /app/artifact: "
        "a.txt is not there; sub is a folder, not a file. Files below it: actual.txt"
    )
    assert not step.is_infrastructure
    assert collected(result) == {"artifacts": {}, "file_artifact_universe": None}
    assert result.context.metadata["collect_produced_files"]["files"] == ["actual.txt"]
    assert result.step("load").warnings, "it collected nothing, which can be handed on"


def test_only_urls_are_nothing_and_no_failure(collect):
    result = collect("true", take(artifact_paths=["https://x/y", "s3://a/b"]))
    assert result.outcome == "unscored", result.failure_reason
    assert collected(result)["file_artifact_universe"] is None


def test_the_seed_can_name_the_files(collect):
    result = collect(
        "echo 1 > a.txt; echo 2 > 'b c.txt'; echo 3 > d.txt",
        take(artifact_paths=["d.txt"]),
        take(id="other", artifacts_key="wanted", artifact_paths=["d.txt"]),
        seed={"expected_artifacts": "a.txt, b c.txt,,"},
    )
    assert contents(result) == {"a.txt": "1\n", "b c.txt": "2\n"}
    assert contents(result, "other") == {"d.txt": "3\n"}


def test_links_are_followed_inside_only(collect, library):
    result = collect(
        EMPTY + "mkdir sub && echo in > sub/file && ln -s sub/file relative && "
        "ln -s /app/artifact/sub/file absolute && ln -s /etc/hostname out && "
        "ln -s ../../../etc/hostname up && ln -s loop loop && ln -s /app/artifact dir",
        take(),
        take(
            id="named",
            artifact_paths=["relative", "absolute", "out", "up", "loop", "/etc/passwd"],
        ),
        take(id="far", artifact_paths=["out", "/etc/hostname"]),
    )
    assert result.outcome == "unscored", result.failure_reason
    inside = {"relative": "in\n", "absolute": "in\n"}
    assert contents(result) == {**inside, "sub/file": "in\n"}
    warnings = "\n".join(result.step("take").warnings)
    assert all(f"left out {name}: " in warnings for name in ("out", "up", "dir"))
    assert set(contents(result, "named")) == {*inside, "/etc/passwd"}
    warnings = "\n".join(result.step("named").warnings)
    assert "out is a link to /etc/hostname, which is not below" in warnings
    assert "up is a link to /etc/hostname" in warnings
    assert set(contents(result, "far")) == {"out", "/etc/hostname"}


def test_hostile_names_stay_names(collect, library):
    script = r"""
    rm -rf * && echo 1 > '..evil' && echo 2 > '-rf' && echo 3 > 'a
b' && echo 4 > '$(id)' && echo 5 > 'ü 😀' && mkdir '~' && echo 6 > '~/x' &&
    echo 7 > "$(printf 'bad\377')" && echo 8 > '%2e%2e%2fx' && echo 9 > "'\"" &&
    echo 10 > 'context.json'
    """
    result = collect(script, take(), take(id="named", artifact_paths=["-rf", "..evil"]))
    assert result.outcome == "unscored", result.failure_reason
    found = contents(result)
    assert found == {
        "..evil": "1\n",
        "-rf": "2\n",
        "a\nb": "3\n",
        "$(id)": "4\n",
        "ü 😀": "5\n",
        "~/x": "6\n",
        "%2e%2e%2fx": "8\n",
        "'\"": "9\n",
        "context.json": "10\n",
    }
    assert "has a name that is no text" in result.step("take").warnings[0]
    assert contents(result, "named") == {"-rf": "2\n", "..evil": "1\n"}
    objects = library.root / "logs" / "objects"
    for url in collected(result)["artifacts"].values():
        assert Path(unquote(url.removeprefix("file://"))).is_relative_to(objects)
    saved = json.loads((library.root / "logs" / "context.json").read_text())
    assert saved["metadata"]["collected_artifacts"]["take"] == collected(result)


def test_secrets_are_masked_in_files_and_their_names(collect, library):
    secret = "sk-0123456789abcdef"
    script = EMPTY + f"echo key {secret} > {secret}.txt && ln -s {secret}.txt link"
    result = collect(script, take(), environ={"OPENAI_API_KEY": secret})
    assert contents(result) == {"***.txt": "key ***\n", "link": "key ***\n"}
    sizes = {file.path: file.size for file in universe_of(result, library).files}
    assert sizes == {"***.txt": 8, "link": 8}
    for file in (library.root / "logs").rglob("*"):
        assert secret not in file.name
        assert not file.is_file() or secret.encode() not in file.read_bytes()


def test_sizes_are_capped_per_file_and_step(collect):
    result = collect(
        EMPTY + "head -c 300 /dev/zero > a && head -c 90 /dev/zero > b && "
        "head -c 90 /dev/zero > c",
        take(),
        settings=RunSettings(max_collect_file_bytes=200, max_collect_bytes=500),
    )
    assert set(collected(result)["artifacts"]) == {"b", "c"}
    assert result.step("take").warnings == ("a has more than 200 bytes",)
    result = collect(
        EMPTY + "head -c 90 /dev/zero > a && head -c 90 /dev/zero > b && echo > c",
        take(artifact_paths=["a", "b", "c"]),
        settings=RunSettings(max_collect_bytes=100),
    )
    assert set(collected(result)["artifacts"]) == {"a", "c"}
    assert result.step("take").warnings == ("b passes the 100 bytes of one step",)


def test_a_huge_file_keeps_no_other_from_being_collected(collect):
    script = EMPTY + "truncate -s 3G big && mkdir sub && echo > sub/big && ln -s big l"
    result = collect(script, take())
    assert contents(result) == {"sub/big": "\n"}
    (warning,) = result.step("take").warnings
    assert warning == f"big has more than {512 * 1024**2} bytes"


def test_a_file_that_cannot_be_stored_is_a_warning(collect, library):
    class Picky(FolderStore):
        async def put(self, key, content):
            if key.endswith("a.txt"):
                raise OSError("the disk is full")
            return await super().put(key, content)

    store = Picky(library.root / "picky")
    result = collect(
        "echo 1 > a.txt; echo 2 > b.txt",
        take(artifact_paths=["a.txt", "b.txt"]),
        store=store,
    )
    assert contents(result) == {"b.txt": "2\n"}
    assert result.step("take").warnings == ("a.txt cannot be stored: the disk is full",)
    assert result.outcome == "unscored"


def test_a_file_that_changes_while_it_is_copied_is_unreadable(collect, library):
    local = library.providers["local"]
    real = local.start

    async def start(*args, **options):
        sandbox = await real(*args, **options)
        download = sandbox.download

        async def grow_first(downloads, **kwargs):
            await sandbox.exec("echo more >> /app/artifact/log.txt")
            return await download(downloads, **kwargs)

        sandbox.download = grow_first
        return sandbox

    local.start = start
    try:
        result = collect(
            EMPTY + "echo 1 > log.txt; echo 2 > b.txt",
            take(),
            take(id="named", artifact_paths=["log.txt", "b.txt"]),
        )
    finally:
        del local.start
    assert set(contents(result)) == {"b.txt"}
    assert result.step("take").warnings == ("log.txt had 2 bytes, and 7 were copied",)
    assert set(contents(result, "named")) == {"b.txt"}


def test_the_sandbox_must_be_there(collect):
    down = {"id": "down", "type": "teardown_sandboxes", "agent_names": ["clerk"]}
    result = collect("true", down, take())
    assert result.step("take").error == (
        "the sandbox of agent 'clerk' is gone: it was stopped"
    )
    assert result.step("take").failure_kind == "harbor:sandbox_lost"
    assert result.step("take").error_type == SandboxLost.__name__


def test_an_agent_of_elsewhere_has_no_sandbox(tmp_path):
    run = Run(tmp_path, None)
    run.execution = 1
    run.journal.write("up", DeployedAgent("clerk", "http://x", "elsewhere"))
    step = CollectArtifacts(id="take", agent_name="clerk")
    with pytest.raises(StepError, match=r"^agent 'clerk' has no sandbox of this run$"):
        anyio.run(collect_artifacts, step, run)


def test_an_agent_that_was_not_deployed(run_steps, library):
    library.agent(exit=1)
    result = run_steps(agent_up(fail_task_on_error=False), take())
    assert result.step("take").error == (
        "Agent with name 'clerk' not found in context.deployed_agents"
    )


# Decisions


@pytest.mark.parametrize(
    ("path", "name", "refused"),
    [
        ("a.txt", "a.txt", None),
        ("./a//b", "a/b", None),
        ("/data/x", "data/x", None),
        ("/app/artifact/x", "app/artifact/x", None),
        ("a/../b", "b", None),
        ("../x", None, "leads out of /app/artifact"),
        ("a/../../artifactory/x", None, "leads out of /app/artifact"),
        (".", None, "leads out of /app/artifact"),
        ("/", None, "is a folder"),
        ("/../etc/x", "etc/x", None),
        ("http://x/y", None, None),
        ("file:///etc/x", None, None),
    ],
)
def test_entries(path, name, refused):
    found = wanted("/app/artifact", [path])
    assert [entry.name for entry in found.entries] == ([name] if name else [])
    assert found.refused == ({path: refused} if refused else {})


def test_two_entries_of_one_place_do_not_meet():
    found = wanted("/app", ["x", "./x", "/x", "x"])
    assert [entry.written for entry in found.entries] == ["x"]
    assert found.refused == {
        "./x": "has the place of 'x'",
        "/x": "has the place of 'x'",
    }


def link(written, real, folder="/app", named=()):
    path = written if written.startswith("/") else f"/app/{written}"
    entry = Entry(written, path, written.strip("/"))
    return link_problem(entry, real, folder, "/app", frozenset(named))


def test_links():
    assert link("x", "/app/x") is None
    assert link("x", "/app/y/z") is None
    assert link("x", "") is None
    assert link("x", "/etc/x", named=["/etc/x"]) is None
    assert (
        link("x", "/application/x")
        == "is a link to /application/x, which is not below /app"
    )
    assert link("/data/x", "/data/x", folder="/data") is None
    assert link("/var/run/x", "/run/x", folder="/run") is None
    assert link("/data/x", "/etc/x", folder="/data")
