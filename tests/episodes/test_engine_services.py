"""Sidecars: hooks and artifacts of services, in the order of spec 7."""

from __future__ import annotations

import json

import pytest

from pytest_harbor.errors import SandboxLost
from pytest_harbor.sandboxes.api import ExecResult
from scripted_sandbox import OK, passing
from task_folders import write_steps_task, write_task

COMPOSE = "services:\n  db:\n    image: db\n  cache:\n    image: cache\n"
SIDECARS = """
artifacts = [
  { source = "/data/dump", service = "db" },
  "/app/work",
]
[[verifier.collect]]
command = "dump db"
service = "db"
timeout_sec = 7
user = "postgres"
[[verifier.collect]]
command = "tidy"
[environment]
docker_image = "x"
"""
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'


@pytest.fixture
def services(scripted):
    """A provider whose sandboxes have two sidecars."""
    scripted.services = {"db": {"/data/dump": b"rows"}, "cache": {}}
    scripted.initial_files = {"/app/work": b"work"}
    return scripted


def write(folder, toml=SIDECARS, **options):
    files = {"environment/docker-compose.yaml": COMPOSE, **options.pop("files", {})}
    return write_task(folder, toml, files=files, **options)


def relevant(scripted):
    """Calls of the collection, the rest left out."""
    names = ("tidy", "dump db", "/data/dump", "/app/work")
    return [
        what if what in ("halt", "stop", "start") else f"{what} {text}"
        for what, text in scripted.calls
        if what in ("halt", "stop", "start") or any(name in text for name in names)
    ]


def test_main_first_then_the_sidecars(services, run_scripted, tmp_path):
    result = run_scripted(write(tmp_path / "task"))
    assert (result.status, result.reward) == ("graded", 1.0)
    assert relevant(services)[1:-1] == [
        "exec tidy",
        "download ['/logs/artifacts', '/app/work']",
        "exec dump db",
        "download ['/data/dump']",
    ]
    [hook] = [c for c in services.commands if c.text == "dump db"]
    assert hook.sandbox.id == "db"
    assert (hook.user, hook.timeout_seconds) == ("postgres", 7)
    kept = result.turns[0].logs / "verifier" / "artifacts"
    assert (kept / "data/dump").read_bytes() == b"rows"
    rows = json.loads((kept / "manifest.json").read_text())
    assert [(row["service"], row["status"]) for row in rows] == [
        ("main", "empty"),
        ("main", "ok"),
        ("db", "ok"),
    ]


def test_main_is_halted_once_it_has_no_further_use(services, run_scripted, tmp_path):
    toml = SIDECARS.replace(
        "[[verifier.collect]]", SEPARATE + "[[verifier.collect]]", 1
    )
    result = run_scripted(write(tmp_path / "task", toml))
    assert result.reward == 1.0
    seen = relevant(services)
    assert seen[:8] == [
        "start",
        "exec tidy",
        "download ['/logs/artifacts', '/app/work', '/logs/agent']",
        "halt",
        "exec dump db",
        "download ['/data/dump']",
        "stop",
        "start",
    ]
    # What the sidecar had lies at the same path in the verifier's sandbox.
    verifier = services.started[1]
    assert verifier.files["/data/dump"] == b"rows"


@pytest.mark.parametrize(
    ("options", "halts"), [({}, 1), ({"keep": "failed"}, 0)], ids=["ends", "kept"]
)
def test_sidecars_and_main_live_between_turns(
    services, run_scripted, tmp_path, options, halts
):
    task = write_steps_task(
        tmp_path / "task",
        "a",
        "b",
        toml=SIDECARS.replace("[[verifier", SEPARATE + "[[verifier", 1),
        files={"environment/docker-compose.yaml": COMPOSE},
    )
    result = run_scripted(task, **options)
    assert [turn.reward for turn in result.turns] == [1.0, 1.0]
    seen = [text for text in relevant(services) if "dump db" in text or text == "halt"]
    # Nothing is halted in the first of two turns, nor what may have to be kept.
    assert seen == ["exec dump db", *["halt"] * halts, "exec dump db"]


@pytest.mark.parametrize(
    ("answer", "warning"),
    [
        (ExecResult(3, "", ""), "ended with exit code 3"),
        (ExecResult(None, "", "", timed_out=True), "ran out of its 7 s"),
        (SandboxLost("db is dead: exit code 137"), "was not run: db is dead"),
    ],
)
def test_a_sidecar_that_fails_decides_nothing(
    services, run_scripted, tmp_path, answer, warning
):
    services.answer = lambda command: (
        answer if command.text == "dump db" else passing(command)
    )
    result = run_scripted(write(tmp_path / "task"))
    assert (result.status, result.reward) == ("graded", 1.0)
    [told] = [text for text in result.turns[0].warnings if "dump db" in text]
    assert told.startswith("collect hook 'dump db' of service 'db' ")
    assert warning in told


def test_a_dead_sidecar_is_a_failed_artifact(services, run_scripted, tmp_path):
    dead = SandboxLost("db is dead: exit code 137")

    def answer(command):
        if command.text == "dump db":
            services.failures["download"] = [dead]
        return passing(command)

    services.answer = answer
    result = run_scripted(write(tmp_path / "task"))
    assert (result.status, result.reward) == ("graded", 1.0)
    assert (
        "artifact /data/dump of service 'db': failed: db is dead: exit code 137"
        in result.turns[0].warnings
    )


def test_the_first_artifact_keeps_its_place_in_the_verifier(
    services, run_scripted, tmp_path
):
    services.services = {"db": {"/app/work": b"the sidecar's"}}
    toml = (
        'artifacts = ["/app/work",'
        ' { source = "/app/work", service = "db", destination = "db/work" }]\n'
        f'{SEPARATE}[environment]\ndocker_image = "x"\n'
    )
    result = run_scripted(write(tmp_path / "task", toml))
    assert services.started[1].files["/app/work"] == b"work"
    assert any("another artifact is there" in text for text in result.turns[0].warnings)
    kept = result.turns[0].logs / "verifier" / "artifacts" / "db" / "work"
    assert kept.read_bytes() == b"the sidecar's"


def test_a_service_that_compose_does_not_know(scripted, run_scripted, tmp_path):
    """The load cannot read every Compose file; Compose itself has the last word (X26)."""
    files = {"environment/docker-compose.yaml": "services: {db: {image: x}}\n"}
    result = run_scripted(write(tmp_path / "task", files=files))
    assert result.status == "refused"
    assert "service 'db' is not defined" in result.failure_reason
    assert scripted.left_up == []
    assert not any(what == "exec" for what, _ in scripted.calls)


def test_what_the_start_warns_of_is_told(services, run_scripted, tmp_path, monkeypatch):
    monkeypatch.setattr("scripted_sandbox.ScriptedSandbox.warnings", ("${X} is empty",))
    result = run_scripted(write(tmp_path / "task"))
    assert "${X} is empty" in result.warnings


def test_hooks_of_two_services_have_logs_of_their_own(services, run_scripted, tmp_path):
    services.answer = lambda command: (
        ExecResult(0, f"said by {command.sandbox.id}\n", "")
        if command.text in ("tidy", "dump db")
        else passing(command)
    )
    result = run_scripted(write(tmp_path / "task"))
    logs = result.turns[0].logs / "agent"
    assert "said by" in (logs / "collect.txt").read_text()
    assert (logs / "collect-db.txt").read_text() == "said by db\n"
    assert OK.ok
