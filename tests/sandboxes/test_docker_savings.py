"""What saves time in a container must not be seen: shells that wait, folders that are looked at."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import docker
import pytest

from pytest_harbor.errors import TransferFailed, UnsupportedByProvider
from pytest_harbor.sandboxes.docker.files import ARTIFACTS, may_reach
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.sandboxes.docker.scripts import script
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.transfer_types import Download, Upload

pytestmark = [pytest.mark.docker, pytest.mark.anyio]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def provider(docker_image: str) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider()
    yield provider
    await provider.aclose()


@pytest.fixture
async def sandbox(provider, docker_image):
    spec = EnvironmentSpec(image=docker_image, network="no-network")
    # The first one looks at the image.
    await (await provider.start(spec, name="first", labels={})).stop()
    sandbox = await provider.start(spec, name="savings", labels={})
    await sandbox.exec("true")
    return sandbox


@pytest.fixture
def requests_made(monkeypatch) -> list[str]:
    made: list[str] = []
    send = docker.APIClient.send

    def counted(self, request, **options):
        made.append(f"{request.method} {request.path_url.partition('?')[0]}")
        return send(self, request, **options)

    monkeypatch.setattr(docker.APIClient, "send", counted)
    return made


async def wait_for(sandbox, user=None, *uploads, empty=()):
    sandbox.expect_command(user)
    await sandbox.upload(uploads, empty=empty)


SHELLS = (
    "for n in /proc/[0-9]*; do"
    " [ \"$(tr '\\0' ' ' <$n/cmdline)\" = '/bin/sh ' ] && echo ${n#/proc/}; done"
)
"""Names the shells that wait: they have no arguments."""


async def until_no_shell_waits(sandbox) -> None:
    with anyio.fail_after(30):
        while (await sandbox.exec(SHELLS)).stdout:  # noqa: ASYNC110 - it tells nobody
            await anyio.sleep(0.05)


async def test_the_shell_of_an_expected_command_starts_before_the_transfer(
    sandbox, requests_made
):
    await wait_for(sandbox, None, Upload(b"echo done", "/app/run.sh"))
    assert (await sandbox.exec("sh /app/run.sh")).stdout == "done\n"
    assert [made.rpartition("/")[2] for made in requests_made] == [
        "exec",
        "start",
        "archive",
    ]


async def test_the_command_sees_what_any_command_sees(sandbox):
    odd = "a 'b' \"c\" $HOME `id` \\ \n\t* ü @@"
    env = {"ODD": odd, "PATH": "/nowhere:/bin", "EMPTY": ""}
    command = ["sh", "-c", 'printf "%s|" "$1" "$ODD" "$PATH" "$EMPTY"; env; cat', "x"]
    results = []
    for waits in (False, True):
        if waits:
            await wait_for(sandbox)
            assert sandbox._expected.shell is not None
        result = await sandbox.exec([*command, odd], env=env, cwd="/tmp")
        lines = [
            line
            for line in result.stdout.splitlines()
            if not line.startswith("PYTEST_HARBOR_EXEC=")
        ]
        results.append((sorted(lines), result.stderr, result.exit_code))
    assert results[0] == results[1]
    assert results[0][2] == 0


@pytest.mark.parametrize(
    "name", ["IFS", "UID", "PWD", "BASH_ENV", "a-b", "_ph_code", "with space"]
)
def test_variables_that_a_shell_cannot_pass_on(name):
    assert script(["token", "/", ""], {name: "x"}, ["true"]) is None
    assert script(["token", "/", ""], {f"X{name[:1].upper()}": "x"}, ["true"])


async def test_a_command_with_such_a_variable_runs_all_the_same(sandbox):
    await wait_for(sandbox)
    result = await sandbox.exec(["env"], env={"UID": "7"})
    assert "UID=7" in result.stdout.splitlines()
    await until_no_shell_waits(sandbox)


async def test_secrets_are_in_no_command_line(sandbox):
    await wait_for(sandbox)
    look = "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'"
    shown = await sandbox.exec(look, env={"KEY": "sesame-open"})
    assert "sesame-open" not in shown.stdout


async def test_a_timeout_kills_what_runs_in_it(sandbox):
    await sandbox.exec("env -i setsid /bin/sleep 9009 >/dev/null 2>&1 &")
    await wait_for(sandbox)
    begun = time.monotonic()
    result = await sandbox.exec(
        "echo a; (env -i setsid /bin/sleep 8008 &); sleep 8009", timeout_seconds=0.5
    )
    assert (result.timed_out, result.stdout) == (True, "a\n")
    assert time.monotonic() - begun < 30
    running = (await sandbox.exec("ps")).stdout
    assert "sleep 8008" not in running
    assert "sleep 8009" not in running
    assert "sleep 9009" in running


async def test_it_waits_for_its_user_only(sandbox):
    await wait_for(sandbox, "agent")
    assert (await sandbox.exec("id -un")).stdout == "root\n"
    await wait_for(sandbox, "agent")
    assert (await sandbox.exec("id -un; pwd", user="agent")).stdout == "agent\n/app\n"
    await wait_for(sandbox)
    await sandbox.set_default_user("agent")
    assert (await sandbox.exec("id -un")).stdout == "agent\n"


async def test_a_shell_that_was_killed_is_replaced(sandbox):
    await wait_for(sandbox)
    expected = sandbox._expected
    shell, expected.shell = expected.shell, None
    with anyio.fail_after(30):
        while not (found := (await sandbox.exec(SHELLS)).stdout.split()):  # noqa: ASYNC110
            await anyio.sleep(0.05)
    assert len(found) == 1
    await sandbox.exec(f"kill -9 {found[0]}")
    expected.shell = shell
    result = await sandbox.exec("echo once; exit 4")
    assert (result.stdout, result.stderr, result.exit_code) == ("once\n", "", 4)


async def test_no_shell_stays_after_a_transfer_that_failed(sandbox):
    await sandbox.exec("mkdir -p /app/folder/inner")
    with pytest.raises(TransferFailed):
        await wait_for(sandbox, None, Upload(b"x", "/app/folder"))
    assert (await sandbox.exec("true")).ok
    await until_no_shell_waits(sandbox)


async def test_an_unknown_user_is_named_as_ever(sandbox):
    await wait_for(sandbox, "nobody-here")
    with pytest.raises(UnsupportedByProvider, match="'nobody-here'"):
        await sandbox.exec("true", user="nobody-here")


# Artifacts


async def fetch(sandbox, tmp_path, name="artifacts"):
    [got] = await sandbox.download([Download(ARTIFACTS, tmp_path / name)])
    return got


async def test_an_untouched_folder_is_only_looked_at(sandbox, tmp_path, requests_made):
    got = await fetch(sandbox, tmp_path)
    assert (got.status, got.kind) == ("empty", "directory")
    assert (tmp_path / "artifacts").is_dir()
    assert [made.split()[0] for made in requests_made] == ["HEAD"]


@pytest.mark.parametrize(
    ("touch", "status"),
    [
        ("echo x > /logs/artifacts/file", "ok"),
        ("mkdir /logs/artifacts/inner; touch /logs/artifacts/inner/x", "ok"),
        ("touch /logs/artifacts/a; rm /logs/artifacts/a", "empty"),
        ("rm -r /logs/artifacts", "failed"),
        ("rm -r /logs/artifacts; touch /logs/artifacts", "ok"),
        ("mv /logs/artifacts /a; touch /a/b; ln -s /a /logs/artifacts", "ok"),
        ("mv /logs /l; mkdir -p /logs/artifacts; touch /logs/artifacts/b", "ok"),
    ],
)
async def test_a_touched_one_is_fetched(sandbox, tmp_path, touch, status):
    await sandbox.exec(touch)
    assert (await fetch(sandbox, tmp_path)).status == status


async def test_what_was_uploaded_is_fetched(provider, docker_image, tmp_path):
    spec = EnvironmentSpec(image=docker_image, network="no-network")
    await (await provider.start(spec, name="first", labels={})).stop()
    sandbox = await provider.start(spec, name="second", labels={})
    await sandbox.upload([Upload(b"x", f"{ARTIFACTS}/early")])
    assert (await fetch(sandbox, tmp_path, "early")).status == "ok"


async def test_what_the_image_or_the_task_brings_is_fetched(
    provider, docker_image, tmp_path
):
    files = tmp_path / "files"
    files.mkdir()
    (files / "kept").write_text("x")
    spec = EnvironmentSpec(
        image=docker_image, network="no-network", files=files, workdir=ARTIFACTS
    )
    for number in range(2):  # unknown to the provider, and known
        sandbox = await provider.start(spec, name="files", labels={})
        assert (await fetch(sandbox, tmp_path, f"files{number}")).status == "ok"
    folder = tmp_path / "environment"
    folder.mkdir()
    (folder / "Dockerfile").write_text(
        f"FROM {docker_image}\nRUN mkdir -p {ARTIFACTS} && touch {ARTIFACTS}/own\n"
    )
    spec = EnvironmentSpec(build_context=folder, network="no-network")
    for number in range(2):
        sandbox = await provider.start(spec, name="savings-image", labels={})
        assert (await fetch(sandbox, tmp_path, f"image{number}")).status == "ok"


@pytest.mark.parametrize(
    ("target", "reaches"),
    [
        ("/logs/artifacts", True),
        ("/logs/artifacts/a/b", True),
        ("/logs", True),
        ("/", True),
        ("/logs/artifacts2", False),
        ("/logs/agent/trajectory.json", False),
    ],
)
def test_which_uploads_may_reach_a_folder(target, reaches):
    assert may_reach(target, ARTIFACTS) is reaches
