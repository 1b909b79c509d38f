"""From a Compose file to the one that is brought up; no daemon is needed."""

from __future__ import annotations

import sys

import anyio
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pytest_harbor.sandboxes.docker import compose_cli
from pytest_harbor.sandboxes.docker.compose import project_name
from pytest_harbor.sandboxes.docker.compose_model import (
    MAIN_IMAGE,
    PROJECT,
    ProjectPlan,
    runnable,
    with_log_volumes,
    with_name,
)
from pytest_harbor.sandboxes.docker.compose_project import faults
from pytest_harbor.sandboxes.docker.images import Image
from pytest_harbor.sandboxes.environment import EnvironmentSpec, Limits

LABELS = {"pytest-harbor.task": "a$b"}


def brought_up(model, *, images=None, without=(), **fields):
    services = model["services"]
    known = images or {}
    plan = ProjectPlan(
        name="proj",
        spec=EnvironmentSpec(**fields),
        images={name: known.get(name, Image(f"{name}:1", "", "")) for name in services},
        workdir="/work",
        labels=LABELS,
        pids_limit=4096,
    )
    return runnable(with_log_volumes(model), plan, without=without)


def main_of(main=None, others=None, **options):
    services = {"main": main or {}, **(others or {})}
    return brought_up({"services": services}, **options)["services"]["main"]


def sidecar_of(keys, **options):
    services = {"main": {}, "db": {"networks": {"default": None}, **keys}}
    return brought_up({"services": services}, **options)["services"]["db"]


class TestMain:
    def test_is_kept_alive_by_root_under_an_init(self):
        main = main_of({"restart": "always", "tty": True, "user": "5"})
        assert (main["init"], main["user"], main["entrypoint"]) == (
            True,
            "0",
            ["/bin/sh"],
        )
        assert main["command"][0] == "-c"
        assert "sleep" in main["command"][1]
        assert main["working_dir"] == "/work"
        assert not {"restart", "tty"} & set(main)

    @pytest.mark.parametrize(
        ("keys", "entrypoint", "own"),
        [
            ({"command": ["sh", "-c", "prepare && sleep infinity"]}, (), 3),
            ({"command": ["serve"]}, ("/entry", "-x"), 3),
            ({"entrypoint": ["start"]}, ("/entry",), 1),
            ({"entrypoint": ["start"], "command": ["now"]}, ("/entry",), 2),
            ({}, ("/entry",), 0),
            ({"command": ["sleep", "infinity"]}, (), 0),
            ({"command": ["sh", "-c", "sleep infinity"]}, (), 0),
            ({"command": ["tail", "-f", "/dev/null"]}, (), 0),
        ],
    )
    def test_what_the_file_has_it_run_runs_beside(self, keys, entrypoint, own):
        images = {"main": Image("i", "", "", entrypoint=entrypoint)}
        command = main_of(keys, images=images)["command"]
        assert len(command) == 2 + (own and 1 + own)
        assert command[1].startswith('"$$@" & ' if own else "while")

    def test_a_command_of_its_own_runs_as_the_file_says(self):
        assert main_of({"command": ["serve"], "user": "5"})["user"] == "5"

    def test_environment_is_laid_over_and_taken_as_it_is(self):
        main = main_of({"environment": {"A": "$$x", "B": "b"}}, env={"A": "${c} $d"})
        assert main["environment"]["A"] == "$${c} $$d"
        assert main["environment"]["B"] == "b"

    def test_no_check_that_nobody_waits_for(self):
        waiting = {"db": {"depends_on": {"main": {"condition": "service_healthy"}}}}
        started = {"db": {"depends_on": {"main": {"condition": "service_started"}}}}
        own = {"healthcheck": {"test": ["CMD", "x"]}}
        assert main_of()["healthcheck"] == {"disable": True}
        assert main_of(others=started)["healthcheck"] == {"disable": True}
        assert "healthcheck" not in main_of(others=waiting)
        assert main_of(own)["healthcheck"] == own["healthcheck"]

    def test_rights(self):
        assert main_of()["security_opt"] == ["no-new-privileges"]
        assert "cap_add" not in main_of()
        few = main_of({"cap_drop": ["ALL"], "cap_add": ["SETUID"]})
        assert few["cap_add"] == ["SETUID", "CHOWN", "KILL"]


class TestService:
    def test_names_are_the_episodes_own(self):
        model = {
            "services": {
                "main": {},
                "db": {
                    "container_name": "the-db",
                    "networks": {"inner": {"aliases": ["d"]}, "default": None},
                    "volumes": [
                        {"type": "volume", "source": "data", "target": "/data"}
                    ],
                },
            },
            "networks": {"inner": {"name": "fixed", "internal": True}, "default": {}},
            "volumes": {"data": {"name": "fixed"}, "unused": {}},
        }
        result = brought_up(model)
        db = result["services"]["db"]
        assert "container_name" not in db
        assert db["networks"] == {
            "inner": {"aliases": ["d", "the-db"]},
            "default": {"aliases": ["the-db"]},
        }
        assert result["networks"]["inner"] == {
            "internal": True,
            "name": "proj_inner",
            "labels": {"pytest-harbor.task": "a$$b"},
        }
        assert result["volumes"] == {
            "data": {"name": "proj_data", "labels": {"pytest-harbor.task": "a$$b"}}
        }

    def test_labels_are_on_everything(self):
        result = brought_up({"services": {"main": {"labels": {"x": "y"}}, "db": {}}})
        for service in result["services"].values():
            assert service["labels"]["pytest-harbor.task"] == "a$$b"
        assert result["services"]["main"]["labels"]["x"] == "y"

    def test_what_is_left_out(self):
        db = sidecar_of(
            {
                "build": {"context": "/x"},
                "ports": [{"target": 1}],
                "logging": {"driver": "syslog"},
                "profiles": ["x"],
                "pull_policy": "always",
                "security_opt": ["label=disable", "no-new-privileges:true"],
            }
        )
        assert not {"build", "ports", "logging", "profiles", "pull_policy"} & set(db)
        assert db["image"] == "db:1"
        assert db["security_opt"] == ["no-new-privileges:true"]

    def test_files_of_the_task_are_read_only(self):
        bind = {"type": "bind", "source": "/e/x", "target": "/x"}
        volume = {"type": "volume", "source": "v", "target": "/v"}
        db = sidecar_of({"volumes": [bind, volume]})
        assert db["volumes"] == [{**bind, "read_only": True}, volume]

    @pytest.mark.parametrize(
        ("keys", "memory", "cpus"),
        [
            ({"deploy": {"resources": {"limits": {"memory": "1048576"}}}}, 1, None),
            (
                {
                    "deploy": {
                        "resources": {
                            "limits": {"cpus": 0.5},
                            "reservations": {"memory": "2097152", "cpus": 2},
                        }
                    },
                    "mem_limit": "3145728",
                },
                2,
                0.5,
            ),
            ({"mem_limit": "1048577", "cpus": 0.25}, 2, 0.25),
            ({}, None, None),
        ],
    )
    def test_size(self, keys, memory, cpus):
        db = sidecar_of(keys)
        limits = db["deploy"]["resources"]["limits"]
        expected = None if memory is None else str(memory * 1024**2)
        assert (limits.get("memory"), limits.get("cpus")) == (expected, cpus)
        assert db.get("memswap_limit") == expected
        assert limits["pids"] == 4096
        assert list(db["deploy"]["resources"]) == ["limits"]
        assert not {"mem_limit", "cpus"} & set(db)

    def test_size_of_main_is_the_tasks(self):
        keys = {"deploy": {"resources": {"limits": {"memory": "1048576", "cpus": 1}}}}
        main = main_of(keys, limits=Limits(memory_mib=2, storage_mib=5))
        limits = main["deploy"]["resources"]["limits"]
        assert (limits["memory"], limits["cpus"]) == ("2097152", 1)
        assert main["storage_opt"] == {"size": "5M"}
        refused = main_of(
            keys, limits=Limits(storage_mib=5), without=["storage_mb", "cpus"]
        )
        assert "storage_opt" not in refused
        assert "cpus" not in refused["deploy"]["resources"]["limits"]

    def test_no_way_out(self):
        model = {
            "services": {
                "main": {"network_mode": "bridge"},
                "db": {"networks": {"default": None}, "dns_search": ["x"]},
            },
            "networks": {"default": {}},
        }
        result = brought_up(model, network="no-network")
        network = result["networks"]["default"]
        assert network["internal"] is True
        inhibit = network["driver_opts"]["com.docker.network.bridge.inhibit_ipv4"]
        assert inhibit == "true"
        assert result["services"]["main"]["network_mode"] == "none"
        assert result["services"]["db"]["dns"] == ["127.0.0.1"]
        assert "dns_search" not in result["services"]["db"]
        opened = brought_up(model)
        assert "internal" not in opened["networks"]["default"]
        assert opened["services"]["main"]["network_mode"] == "bridge"


LOGS = {
    "what Harbor mounts": (
        [
            ("bind", "/e/pytest-harbor-agent-logs", "/logs/agent"),
            ("bind", "/e/l", "/logs"),
        ],
        [],
        [],
    ),
    "artifacts of a sidecar": (
        [("volume", "pytest-harbor-artifacts", "/logs/artifacts")],
        [("bind", "/e/pytest-harbor-artifacts", "/out")],
        [("volume", "pytest-harbor-artifacts", "/logs/artifacts")],
    ),
    "a volume of the file": (
        [("volume", "shared", "/logs/artifacts")],
        [("volume", "shared", "/out")],
        [("volume", "shared", "/logs/artifacts")],
    ),
    "other mounts": (
        [("volume", "v", "/app"), ("bind", "/e/x", "/logs-of-mine")],
        [],
        [("volume", "v", "/app"), ("bind", "/e/x", "/logs-of-mine")],
    ),
}


@pytest.mark.parametrize("case", LOGS)
def test_log_folders(case):
    def mounts(rows):
        return [
            dict(zip(("type", "source", "target"), row, strict=True)) for row in rows
        ]

    main, sidecar, expected = map(mounts, LOGS[case])
    model = {"services": {"main": {"volumes": main}, "db": {"volumes": sidecar}}}
    result = with_log_volumes(model)
    assert result["services"]["main"]["volumes"] == expected
    for mount in result["services"]["db"]["volumes"]:
        assert mount["type"] == "volume"


def test_names_are_exchanged_everywhere():
    model = {"a": {f"{PROJECT}_x": [MAIN_IMAGE, f"http://{PROJECT}:80"]}}
    named = with_name(with_name(model, PROJECT, "p"), MAIN_IMAGE, 'i"1')
    assert named == {"a": {"p_x": ['i"1', "http://p:80"]}}


@pytest.mark.parametrize(
    "name", ["My Task", "täsk/ö", "...", "x" * 200, "UPPER.case_1"]
)
def test_names_of_projects(name):
    import re

    made = project_name(name)
    assert re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,80}", made)
    assert made != project_name(name)


@pytest.mark.parametrize(
    ("state", "texts"),
    [
        ({"Status": "running", "ExitCode": 0}, []),
        ({"Status": "created", "ExitCode": 0}, []),
        ({"Status": "exited", "ExitCode": 3}, ["ended with exit code 3"]),
        (
            {"Status": "exited", "ExitCode": 137, "OOMKilled": True},
            ["ran out of memory (exit code 137)"],
        ),
        (
            {"Status": "created", "Error": "no x", "ExitCode": 127},
            ["did not start: no x"],
        ),
        (
            {
                "Status": "running",
                "Health": {"Status": "unhealthy", "Log": [{"Output": "a\n  b"}]},
            },
            ["is unhealthy (its last check said: a b)"],
        ),
        (
            {"Status": "running", "Health": {"Status": "starting"}},
            ["is not healthy yet"],
        ),
    ],
)
def test_faults(state, texts):
    assert [text for _, text in faults(state)] == texts


TRICKY = [
    "a$b",
    "${c}",
    "$$",
    "\\",
    "\\n",
    '"',
    "'",
    "`x`",
    "#",
    " a ",
    "a\nb",
    "",
    "ü",
    "==",
]


@example(TRICKY)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0\r"))))
def test_values_reach_compose_as_they_are(compose_program, tmp_path, values):
    variables = {f"V{number}": value for number, value in enumerate(values)}
    path = tmp_path / "docker-compose.yaml"
    path.write_text(
        f"services: {{main: {{image: x, environment: [{', '.join(variables)}]}}}}\n"
    )
    file = compose_cli.ComposeFile(path, "p", {}, variables)
    compose = compose_cli.Compose(compose_program, {})

    async def read():
        return await compose.read(file, env_files=True)

    environment = anyio.run(read).model["services"]["main"].get("environment") or {}
    read_back = {name: value.replace("$$", "$") for name, value in environment.items()}
    assert read_back == variables


def test_what_compose_said_last():
    text = (
        " Network x_default Creating \n Container x-db-1 Healthy \n"
        'time="2026-01-01T00:00:00Z" level=error msg="bad thing"\n'
        "dependency failed to start: container x-db-1 exited (1)\n"
    )
    assert compose_cli.last_lines(text) == (
        '"bad thing"\ndependency failed to start: container x-db-1 exited (1)'
    )


def test_the_daemon_is_all_that_compose_hears_of(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///a.sock")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    assert compose_cli.daemon_env("unix:///b.sock") == {"DOCKER_HOST": "unix:///a.sock"}
    monkeypatch.delenv("DOCKER_HOST")
    assert compose_cli.daemon_env("unix:///b.sock") == {"DOCKER_HOST": "unix:///b.sock"}
    assert compose_cli.daemon_env(None) == {}


@pytest.mark.parametrize(
    ("prefix", "order"),
    [
        ("venv", ["venv/bin", "home/.docker/cli-plugins", "path"]),
        ("base", ["home/.docker/cli-plugins", "venv/bin", "path"]),
    ],
)
def test_where_compose_is_looked_for(monkeypatch, tmp_path, prefix, order):
    for place in order:
        (tmp_path / place).mkdir(parents=True)
        program = tmp_path / place / "docker-compose"
        program.write_text("")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/bin/python"))
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(sys, "base_prefix", "base")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(compose_cli, "PLUGIN_FOLDERS", ("~/.docker/cli-plugins",))
    for place in order:
        program = tmp_path / place / "docker-compose"
        assert compose_cli.find_program() == program
        program.unlink()
    assert compose_cli.find_program() is None
