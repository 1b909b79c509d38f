"""``load_artifact`` on the local sandbox: each source into each target, each refusal."""

from __future__ import annotations

import io
import json
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import anyio
import pytest

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.context import DeployedAgent
from pytest_harbor.graphs.payloads import file_tree
from pytest_harbor.graphs.steps.api import RunSettings, StepType
from pytest_harbor.graphs.steps.load_artifact import load_artifact, load_seconds
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.model import LoadArtifact
from pytest_harbor.tasks.steps.step import Step
from step_bundles import agent_up, env_up, load, take, write_bundle
from step_runs import Run


class Look(Step):
    """Looks into the agent's or env's sandbox; a test's own step type."""


def looking(*commands, at="agents"):
    """A step type that runs commands where files were loaded, and notes what they say."""
    said = []

    async def look(_, run):
        record = getattr(run.context, f"deployed_{at}")[0]
        sandbox = run.instance(record.instance_id).sandbox
        for command in commands:
            result = await sandbox.exec(command, user="nobody")
            said.append(result.output.strip())

    return said, {"step_types": {"look": StepType(Look, look)}}


LOOK = {"id": "look", "type": "look"}


def failed(result, step_id="load"):
    assert result.step(step_id).status == "failed", result
    return result.step(step_id).error


def reading_state():
    """A step type that calls the env's tool ``look``."""
    from pytest_harbor.protocols import mcp

    said = []

    async def read(_, run):
        env = run.context.env("library")
        async with mcp.connect(env.mcp_url) as session:
            said.append(json.loads((await session.call_tool("look")).text))

    return said, {"step_types": {"look": StepType(Look, read)}}


def test_data_replaces_what_an_earlier_load_put_there(run_steps, library):
    library.files["artifacts/autumn/artifact.toml"] = (
        'type = "environment"\nenvironment_name = "library"\nfile = "leaves"\n'
    )
    library.files["artifacts/leaves/leaves ü.json"] = '{"leaves": "red"}'
    library.files["artifacts/shelves/shelves.json"] = '{"shelves": 1}'
    said, types = reading_state()
    result = run_steps(
        env_up(),
        load(env_id="library", artifact_id="shelves"),
        load(id="again", env_id="library", artifact_id="autumn"),
        LOOK,
        **types,
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == [['{"leaves": "red"}']]
    assert set(result.context.metadata) == {
        "run_group_id",
        "task_id",
        "seed",
        "user_overrides",
    }, "an environment artifact leaves nothing in the context"


def test_several_artifacts_are_loaded_in_order(run_steps, library):
    library.files["artifacts/late/artifact.toml"] = (
        'type = "environment"\nenvironment_name = "library"\n'
    )
    library.files["artifacts/late/late.json"] = '"late"'
    said, types = reading_state()
    references = [{"id": "shelves", "version": 1}, {"id": "late"}]
    result = run_steps(
        env_up(), load(env_id="library", artifacts=references), LOOK, **types
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == [['"late"']]


@pytest.mark.parametrize("method", ["data/reset", "data/add"])
def test_an_error_of_the_data_plane_has_method_message_and_code(
    run_steps, library, method
):
    library.env(broken={method: "the shelf is screwed on"})
    result = run_steps(env_up(), load(env_id="library", artifact_id="shelves"))
    text = failed(result)
    assert method in text
    assert "the shelf is screwed on" in text
    assert f"{method.removeprefix('data/')}_failed" in text
    assert result.is_infrastructure


def test_an_env_that_does_not_take_data_says_so(run_steps, library):
    library.env(capabilities={"operations": ["data/get"]})
    result = run_steps(env_up(), load(env_id="library", artifact_id="shelves"))
    assert failed(result) == (
        "env 'library' has no data/add and no data/reset: its card does not list it among "
        "its operations"
    )


def test_the_name_rule_holds_where_only_the_card_has_a_name(run_steps, library):
    library.env(card_name="museum")
    library.files["envs/library/env.toml"] = 'command = ["python", "server.py"]\n'
    result = run_steps(env_up(), load(env_id="library", artifact_id="shelves"))
    assert failed(result) == (
        "artifact 'shelves' is for environment 'library', and env 'library' is "
        "environment 'museum'"
    )


def test_files_are_copied_readable_and_listed(run_steps, library):
    library.files["artifacts/maps/run.sh"] = "echo ran\n"
    root = library.root / "bundle"
    root.mkdir()
    said, types = looking(
        "cd /tmp/file_artifacts && find . -type f | sort && cat more/south.txt",
        "cat /srv/desk/rules.md",
    )
    result = run_steps(
        agent_up(),
        load(agent_name="clerk", artifact_id="maps"),
        load(
            id="rules",
            agent_name="clerk",
            artifact_id="rules",
            destination_path="/srv/desk/",
        ),
        LOOK,
        **types,
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == [
        "./more/south.txt\n./north.txt\n./run.sh\ns",
        "No food.",
    ]
    assert result.context.metadata["loaded_file_artifact_universes"] == [
        {
            "id": "maps",
            "version": 1,
            "artifact_type": "file_artifact_universe",
            "env_id": None,
            "agent_name": "clerk",
            "destination_path": "/tmp/file_artifacts",
            "files": ["more/south.txt", "north.txt", "run.sh"],
        },
        {
            "id": "rules",
            "version": 1,
            "artifact_type": "file",
            "env_id": None,
            "agent_name": "clerk",
            "destination_path": "/srv/desk",
            "files": ["rules.md"],
        },
    ]


def test_files_are_staged_beside_an_envs_server(run_steps, library):
    said, types = looking("cat /tmp/file_artifacts/rules.md", at="envs")
    result = run_steps(
        env_up(), load(env_id="library", artifact_id="rules"), LOOK, **types
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == ["No food."]
    (entry,) = result.context.metadata["loaded_file_artifact_universes"]
    assert (entry["env_id"], entry["agent_name"]) == ("library", None)


def test_environment_data_becomes_files_of_an_agent(run_steps, library):
    files = [
        {"path": "inbox/1.txt", "content": "hello"},
        {"path": "b.bin", "content": "AAE=", "encoding": "base64"},
    ]
    library.files["artifacts/shelves/shelves.json"] = json.dumps({"files": files})
    said, types = looking("cat /app/files/inbox/1.txt", "od -An -tx1 /app/files/b.bin")
    result = run_steps(
        agent_up(), load(agent_name="clerk", artifact_id="shelves"), LOOK, **types
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == ["hello", "00 01"]
    assert result.context.metadata["loaded_environment_artifacts"] == [
        {
            "id": "shelves",
            "version": 1,
            "agent_name": "clerk",
            "destination_path": "/app/files",
            "file_count": 2,
            "files": ["b.bin", "inbox/1.txt"],
        }
    ]


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ({"id": "image"}, "artifact 'image' is a docker_image, which is not loaded"),
        (
            {"id": "shelf"},
            "no artifact 'shelf' in the bundle (did you mean 'shelves'?)",
        ),
        ({"id": "xyz"}, "no artifact 'xyz' in the bundle"),
        ({"id": "maps", "version": 2}, "artifact 'maps' has version 1 only, not 2"),
    ],
)
def test_what_no_file_was_checked_for_is_refused_by_the_step(
    tmp_path, reference, message
):
    """A step that a Python test makes has not been through the checks of a file."""
    run = Run(tmp_path, None)
    run.bundle = Bundle(write_bundle(tmp_path / "bundle"))
    run.journal.write("up", DeployedAgent("clerk", "http://x", "clerk-1"))
    step = LoadArtifact(id="load", agent_name="clerk", artifacts=(reference,))
    with pytest.raises(StepError) as caught:
        anyio.run(load_artifact, step, run)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ({"env_id": "library"}, "Env 'library' not found in context.deployed_envs"),
        (
            {"agent_name": "clerk"},
            "Agent with name 'clerk' not found in context.deployed_agents",
        ),
    ],
)
def test_a_target_that_was_not_deployed(run_steps, library, target, message):
    library.env(exit=1)
    library.agent(exit=1)
    result = run_steps(
        env_up(fail_task_on_error=False),
        agent_up(fail_task_on_error=False),
        load(artifact_id="rules", **target),
    )
    assert failed(result) == message


class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("location", "/atlas.txt?token=1")
            self.end_headers()
        elif self.path.startswith("/atlas.txt"):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"an atlas")
        else:
            self.send_error(404, "no such page")

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_downloads_go_into_the_agents_sandbox(run_steps, site):
    said, types = looking("cd /tmp/file_artifacts && head *")
    urls = [
        f"{site}/atlas.txt?q=1",
        f"{site}/a/../atlas.txt",
        {"url": f"{site}/moved", "filename": "moved.txt"},
    ]
    result = run_steps(agent_up(), load(agent_name="clerk", urls=urls), LOOK, **types)
    assert result.outcome == "unscored", result.failure_reason
    names = ["atlas.txt", "atlas-1.txt", "moved.txt"]
    assert result.context.metadata["loaded_urls"] == [
        {
            "step_id": "load",
            "agent_name": "clerk",
            "sandbox_name": None,
            "destination_path": "/tmp/file_artifacts",
            "files": names,
        }
    ]
    assert said[0].count("an atlas") == 3
    assert all(name in said[0] for name in names)


def test_a_download_that_fails_says_why(run_steps, site):
    result = run_steps(
        agent_up(),
        load(agent_name="clerk", urls=[f"{site}/none.txt"], fail_task_on_error=False),
        load(
            id="far", agent_name="clerk", urls=["ftp://x/y"], fail_task_on_error=False
        ),
    )
    assert f"GET {site}/none.txt answered 404" in result.step("load").error
    assert "only http and https" in result.step("far").error
    assert "loaded_urls" not in result.context.metadata


def test_a_download_has_a_limit(run_steps, site):
    result = run_steps(
        agent_up(),
        load(agent_name="clerk", urls=[f"{site}/atlas.txt"]),
        settings=RunSettings(max_collect_file_bytes=3),
    )
    assert "larger than 3 bytes" in failed(result)


@pytest.mark.parametrize(
    ("gigabytes", "settings", "seconds"),
    [
        (0, {}, 900),
        (1, {}, 2100),
        (5, {}, 3600),
        (1, {"load_base_seconds": 1, "load_seconds_per_gigabyte": 2}, 3),
        (9, {"load_base_seconds": 1, "load_max_seconds": 5}, 5),
    ],
)
def test_larger_data_has_more_time(gigabytes, settings, seconds):
    size = gigabytes * 10**9
    assert load_seconds(size, RunSettings(**settings)) == pytest.approx(
        seconds, rel=0.1
    )


# Hand-off


def test_what_another_step_collected_is_handed_on(run_steps, library):
    library.agent("auditor")
    prepare = (
        "mkdir -p /app/artifact/loans /srv && echo r > /app/artifact/receipt && "
        "printf '#!/bin/sh\\necho ran' > /app/artifact/loans/tool && "
        "chmod 711 /app/artifact/loans/tool && echo far > /srv/far.txt"
    )

    async def make(_, run):
        sandbox = run.instance(run.context.agent("clerk").instance_id).sandbox
        assert (await sandbox.exec(prepare)).ok

    async def look(_, run):
        sandbox = run.instance(run.context.agent("auditor").instance_id).sandbox
        result = await sandbox.exec(
            "cd /tmp/file_artifacts && find . -type f | sort && loans/tool && "
            "cat srv/far.txt",
            user="nobody",
        )
        said.append(result.output)

    said = []
    kinds = {"make": StepType(Step, make), "look": StepType(Step, look)}
    result = run_steps(
        agent_up(depends_on=[]),
        agent_up(id="a", a2a_agent_id="auditor", agent_name="auditor", depends_on=[]),
        {"id": "make", "type": "make"},
        take(artifact_paths=["receipt", "loans/tool", "/srv/far.txt"]),
        load(agent_name="auditor", artifact_from_step_id="take"),
        LOOK,
        step_types=kinds,
    )
    assert result.outcome == "unscored", result.failure_reason
    assert said == ["./loans/tool\n./receipt\n./srv/far.txt\nran\nfar\n"]
    (entry,) = result.context.metadata["loaded_file_artifact_universes"]
    assert entry["files"] == ["receipt", "loans/tool", "srv/far.txt"]
    assert entry["id"] == f"{result.instance_id}/take"
    assert entry["agent_name"] == "auditor"


def test_a_hand_off_of_nothing_is_a_warning(run_steps):
    result = run_steps(
        agent_up(),
        take(base_path="/nowhere"),
        load(agent_name="clerk", artifact_from_step_id="take"),
    )
    assert result.outcome == "unscored"
    assert result.step("load").warnings == (
        "step take collected nothing, so nothing is loaded",
    )


def test_a_hand_off_of_a_step_that_recorded_nothing(run_steps, library):
    library.agent("auditor", exit=1)
    result = run_steps(
        agent_up(),
        agent_up(
            id="a",
            a2a_agent_id="auditor",
            agent_name="auditor",
            fail_task_on_error=False,
        ),
        take(agent_name="auditor", fail_task_on_error=False),
        load(agent_name="clerk", artifact_from_step_id="take"),
    )
    assert failed(result) == "step take recorded nothing that could be loaded"


# Payloads


def zipped(files, links=()):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        for name in links:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc/passwd")
    return content.getvalue()


def tree_of(tmp_path: Path, content) -> dict[str, bytes]:
    file = tmp_path / "payload"
    if not isinstance(content, bytes):
        content = json.dumps(content).encode()
    file.write_bytes(content)
    return file_tree(file)


def test_a_zip_has_its_root_and_its_data(tmp_path):
    data = {
        "files": [
            {"path": "a", "content": "from data"},
            {"path": "b", "content": "from data"},
        ]
    }
    content = zipped({"root/a": "from root", "data.json": json.dumps(data), "c": "no"})
    assert tree_of(tmp_path, content) == {"a": b"from root", "b": b"from data"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no json", "neither a zip nor JSON"),
        ({"inbox": []}, "has no list `files`"),
        ([], "has no list `files`"),
        ({"files": [{"content": "x"}]}, r"files\[0\] has no `path`"),
        ({"files": [{"path": "../x", "content": ""}]}, "'../x' leads out"),
        ({"files": [{"path": "/etc/x", "content": ""}]}, "'/etc/x' leads out"),
        ({"files": [{"path": "", "content": ""}]}, "is a folder"),
        ({"files": [{"path": "a\0b", "content": ""}]}, "is odd"),
        ({"files": [{"path": "a", "content": 1}]}, "needs a text `content`"),
        (
            {"files": [{"path": "a", "content": "x", "encoding": "rot13"}]},
            "needs a text `content`",
        ),
        (
            {"files": [{"path": "a", "content": "?", "encoding": "base64"}]},
            "is no base64",
        ),
        (zipped({"root/../../x": ""}), "leads out"),
        (zipped({}, links=["root/link"]), "root/link is a link"),
    ],
)
def test_a_payload_that_leads_out_or_is_none_writes_nothing(tmp_path, content, message):
    with pytest.raises(StepError, match=message):
        tree_of(tmp_path, content)
