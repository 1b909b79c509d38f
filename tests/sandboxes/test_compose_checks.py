"""What a Compose file may not ask for, as Compose itself reads it; no daemon is needed."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from pytest_harbor.sandboxes.docker.compose_checks import problems, unreadable
from pytest_harbor.sandboxes.docker.compose_cli import Compose, ComposeFile
from pytest_harbor.sandboxes.docker.compose_model import base_file, with_log_volumes
from pytest_harbor.sandboxes.environment import EnvironmentSpec


def make_environment(parent):
    """An ``environment/`` with files to refer to, and a secret beside it."""
    (parent / "secret").mkdir()
    (parent / "secret" / "key.env").write_text("KEY=1\n")
    folder = parent / "environment"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "a.env").write_text("A=1\n")
    (folder / "conf" / "Dockerfile").write_text("FROM scratch\n")
    (folder / "out").symlink_to(parent / "secret")
    return folder


@pytest.fixture
def environment(tmp_path):
    return make_environment(tmp_path)


@pytest.fixture(scope="module")
def found(compose_program):
    """What is found in a file, as Compose reads it."""
    return partial(found_by, compose_program)


def found_by(program, folder, text):
    path = folder / "docker-compose.yaml"
    path.write_text(text)
    spec = EnvironmentSpec(compose_file=path)
    file = ComposeFile(path, "p", base_file(spec), {})
    compose = Compose(program, {})

    async def read():
        return await compose.read(file, env_files=False)

    model = with_log_volumes(anyio.run(read).model)
    return [*unreadable(path), *problems(model, folder)]


REFUSED = {
    "privileged: true": "privileged: it gives the container the whole machine",
    "network_mode: host": "network_mode: 'host' is not the sandbox's own",
    "network_mode: container:other": "network_mode: 'container:other'",
    "pid: host": "pid: 'host'",
    "ipc: host": "ipc: 'host'",
    "ipc: container:x": "ipc: 'container:x'",
    "uts: host": "uts: 'host'",
    "userns_mode: host": "userns_mode: 'host'",
    "cgroup: host": "cgroup: 'host'",
    "cgroup_parent: /": "cgroup_parent: ",
    "devices: ['/dev/kvm:/dev/kvm']": "devices: devices of this machine",
    "device_cgroup_rules: ['a *:* rwm']": "device_cgroup_rules: ",
    "gpus: all": "gpus: there are no GPUs",
    "deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}": "GPUs",
    "cap_add: [SYS_ADMIN]": "cap_add: SYS_ADMIN reaches beyond the container",
    "cap_add: [cap_dac_read_search]": "cap_add: cap_dac_read_search reaches",
    "cap_add: [ALL]": "cap_add: ALL reaches",
    "security_opt: ['systempaths=unconfined']": "security_opt: 'systempaths=unconfined'",
    "security_opt: ['seccomp:unconfined']": "security_opt: 'seccomp:unconfined'",
    "runtime: nvidia": "runtime: 'nvidia' is not supported",
    "annotations: {run.oci.handler: krun}": "annotations: ",
    "use_api_socket: true": "use_api_socket: ",
    "volumes_from: ['container:x']": "volumes_from: ",
    "external_links: [other]": "external_links: ",
    "post_start: [{command: id, privileged: true}]": "privileged gives the command",
    "blkio_config: {weight: 10}": "blkio_config: is not supported",
    "volumes: ['/:/host']": "volumes: / is outside of environment/",
    "volumes: ['/var/run/docker.sock:/var/run/docker.sock']": "docker.sock is outside",
    "volumes: ['../secret:/s']": "secret is outside of environment/",
    "volumes: ['./out:/s']": "out is outside of environment/",
    "volumes: ['./none:/s']": "none does not exist",
    "env_file: ../secret/key.env": "env_file: ",
    "env_file: [./out/key.env]": "out/key.env is outside of environment/; copy it there",
    "label_file: ./out/key.env": "label_file: ",
    "build: {context: ..}": "build.context: ",
    "build: https://example.org/x.git": "is not in environment/; copy it there",
    "build: {context: conf, dockerfile: ../../secret/key.env}": "build.dockerfile: ",
    "build: {context: conf, additional_contexts: {a: /}}": "build.additional_contexts: ",
    "build: {context: conf, ssh: [default]}": "build.ssh: is not supported",
    "build: {context: conf, network: host}": "build.network: is not supported",
    "build: {context: conf, privileged: true}": "build.privileged: is not supported",
    "build: {context: conf, entitlements: [network.host]}": "build.entitlements: ",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory, found):
    """What is said of each: all are services of one file, which is read once."""
    services = "".join(
        f"  s{number}:\n    image: x\n    {keys}\n"
        for number, keys in enumerate(REFUSED)
    )
    folder = make_environment(tmp_path_factory.mktemp("task"))
    return found(folder, f"services:\n{services}")


@pytest.mark.parametrize("keys", REFUSED)
def test_refused_by_name(refused, keys):
    start = f"service 's{list(REFUSED).index(keys)}': "
    said = [text.removeprefix(start) for text in refused if text.startswith(start)]
    assert len(said) == 1, said
    assert said[0].startswith(keys.partition(":")[0]), said
    assert REFUSED[keys] in said[0]


WHOLE_FILES = {
    "an external network": (
        "networks: {n: {external: true}}\nservices: {main: {networks: [n]}}\n",
        "network 'n': external: belongs to others",
    ),
    "another network driver": (
        "networks: {n: {driver: macvlan}}\nservices: {main: {networks: [n]}}\n",
        "network 'n': driver: 'macvlan'",
    ),
    "an external volume": (
        "volumes: {data: {external: true}}\nservices: {main: {volumes: ['data:/v']}}\n",
        "volume 'data': external: belongs to others",
    ),
    "a volume that is a folder of the host": (
        """\
volumes: {data: {driver_opts: {type: none, o: bind, device: /}}}
services: {main: {volumes: ['data:/v']}}
""",
        "volume 'data': driver_opts: would mount something of this machine",
    ),
    "another volume driver": (
        "volumes: {data: {driver: sshfs}}\nservices: {main: {volumes: ['data:/v']}}\n",
        "volume 'data': driver: 'sshfs'",
    ),
    "a secret of the host": (
        "secrets: {s: {file: ../secret/key.env}}\nservices: {main: {secrets: [s]}}\n",
        "secret 's': file: ",
    ),
    "a secret of a variable": (
        "secrets: {s: {environment: HOME}}\nservices: {main: {secrets: [s]}}\n",
        "secret 's': environment: give the service the variable itself",
    ),
    "a config of the host": (
        "configs: {c: {file: /etc/hostname}}\nservices: {main: {configs: [c]}}\n",
        "config 'c': file: /etc/hostname is outside",
    ),
    "a program of the host": (
        "services: {main: {}, db: {provider: {type: awesome}}}\n",
        "service 'db': provider: it runs a program on this machine",
    ),
    "a read-only main": (
        "services: {main: {read_only: true}}\n",
        "service 'main': read_only: files could not be brought in",
    ),
    "two mains": (
        "services: {main: {deploy: {replicas: 2}}}\n",
        "service 'main': scale: there is one agent's sandbox",
    ),
    "a mount over the tests": (
        "services: {main: {volumes: ['./conf:/tests/data:ro']}}\n",
        "service 'main': volumes: /tests/data belongs to the runner",
    ),
    "a mount over the tests, by another name": (
        "services: {main: {volumes: ['./conf:/x/../tests/data:ro']}}\n",
        "service 'main': volumes: /tests/data belongs to the runner",
    ),
    "a file system in memory over the verifier's logs": (
        "services: {main: {tmpfs: ['//logs/verifier:size=1m']}}\n",
        "service 'main': tmpfs: /logs/verifier belongs to the runner",
    ),
    "a config among the tests": (
        """\
configs: {c: {content: 'exit 0'}}
services: {main: {configs: [{source: c, target: /tests/test.sh}]}}
""",
        "service 'main': configs: /tests/test.sh belongs to the runner",
    ),
    "a mount below the verifier's logs": (
        "services: {main: {volumes: ['data:/logs/verifier/x']}}\nvolumes: {data: {}}\n",
        "service 'main': volumes: /logs/verifier/x belongs to the runner",
    ),
}


@pytest.mark.parametrize("case", WHOLE_FILES)
def test_refused_of_a_whole_file(environment, found, case):
    text, reason = WHOLE_FILES[case]
    assert any(reason in problem for problem in found(environment, text))


def test_what_real_tasks_use_is_not_refused(environment, found):
    text = """\
version: "3.8"
x-common: &common {restart: unless-stopped, logging: {driver: syslog}}
services:
  main:
    build: {context: ., dockerfile: conf/Dockerfile, args: {A: b}}
    command: ["bash", "-c", "prepare && sleep infinity"]
    depends_on: {db: {condition: service_healthy}, seed: {condition: service_completed_successfully}}
    volumes: ["./conf:/conf:ro", "shared:/shared", "./logs/verifier:/logs/verifier"]
    cap_add: [NET_ADMIN, SYS_PTRACE]
    network_mode: ${NETWORK_MODE:-bridge}
    tty: true
  db:
    <<: *common
    image: postgres:17
    container_name: db
    hostname: db
    ports: ["5432:5432"]
    expose: ["5432"]
    env_file: conf/a.env
    environment: [A=b, C]
    healthcheck: {test: ["CMD", "pg_isready"], interval: 1s}
    networks: {inner: {aliases: [database]}}
    ulimits: {nofile: 1024}
    shm_size: 64m
    tmpfs: /run
    user: "70:70"
    deploy: {resources: {limits: {cpus: "0.5", memory: 64M}}}
    sysctls: {net.core.somaxconn: 1024}
    privileged: false
    security_opt: ["no-new-privileges:true", "label=disable"]
  seed:
    build: ./conf
    image: seed
    depends_on: [db]
    networks: [inner]
    mem_limit: 64m
    profiles: []
    secrets: [s]
    configs: [c]
networks: {inner: {driver: bridge}}
volumes: {shared: {}, fast: {driver_opts: {type: tmpfs, device: tmpfs}}}
secrets: {s: {file: conf/a.env}}
configs: {c: {content: "x"}}
"""
    (environment / "logs" / "verifier").mkdir(parents=True)
    assert found(environment, text) == []


INCLUDES = [
    "include: [/etc/x.yaml]\nservices: {}\n",
    "'include': /etc/x.yaml\n",
    '"in\\x63lude": [/etc/x.yaml]\n',
    '"in\\u0063lude" : [x]\n',
    '"in\\\nclude": [x]\n',
    "{services: {}, include: [x]}\n",
    "? include\n: [x]\n",
    "? |-\n  include\n: [x]\n",
    "x-a: &k include\n*k : [x]\n",
    "!!str include: [x]\n",
    '? "in\\\n  clude"\n: [x]\n',
    "? include # files\n: [x]\n",
    "x-a: &k include # files\n*k : [x]\n",
]


@pytest.mark.parametrize("text", INCLUDES)
def test_no_other_file_is_read(environment, text):
    (environment / "docker-compose.yaml").write_text(text)
    [problem] = unreadable(environment / "docker-compose.yaml")
    assert "include: files of this machine could be read" in problem


OTHER_WAYS = {
    "services: {}\rinclude: [x]\n": "line breaks that hide keys",
    "services: {}\x85include: [x]\n": "line breaks that hide keys",
    "services: {}\u2028include: [x]\n": "line breaks that hide keys",
    "services:\n  db:\n    image: x\r    extends: {file: /etc/x}\n": "line breaks",
    "!!binary aW5jbHVkZQ== : [x]\n": "!!binary",
    "!!%62inary aW5jbHVkZQ== : [x]\n": "!!binary",
    "%TAG !x! tag:yaml.org,2002:bin\n---\n!x!ary aW5jbHVkZQ== : [x]\n": "!!binary",
}


@pytest.mark.parametrize("text", OTHER_WAYS)
def test_keys_that_only_yaml_sees_are_refused(environment, text):
    (environment / "docker-compose.yaml").write_bytes(text.encode())
    [problem] = unreadable(environment / "docker-compose.yaml")
    assert OTHER_WAYS[text] in problem


@pytest.mark.parametrize(
    "value",
    [
        "conf/more.yaml#/../../../secret/x.yaml",
        "conf/more.yaml,/../../../secret/x.yaml",
        "conf/more.yaml}/../../../secret/x.yaml",
        "conf/more.yaml\n        /../../../secret/x.yaml",
        "conf/more.yaml\n        - /../../../secret/x.yaml",
        "conf/more.yaml\n\n        # no comment\n        x",
        r"conf/more.yaml\x20#/../../../secret/x.yaml",
        "conf/more.yaml \\\n        # a comment",
        r'"conf/more.yaml\x2f../../../secret/x.yaml"',
        "conf/more.yaml/../../../secret/x.yaml",
    ],
)
def test_a_path_that_is_longer_than_it_looks_is_refused(environment, value):
    (environment / "conf" / "more.yaml").write_text("services: {a: {image: x}}\n")
    text = f"services:\n  db:\n    extends:\n      file: {value}\n      service: a\n"
    (environment / "docker-compose.yaml").write_text(text)
    [problem] = unreadable(environment / "docker-compose.yaml")
    assert "extends: " in problem


@pytest.mark.parametrize(
    "extends",
    [
        "{file: conf/more.yaml, service: a}",
        "{service: a, file: conf/more.yaml}",
        "{service: a, \"file\": 'conf/more.yaml' }",
        "\n      file: conf/more.yaml\n      service: a",
        "\n      service: a\n      file: ./conf/more.yaml  # mine\n\n      # more\n",
        "\n      file: 'conf/more.yaml'\r\n      service: a\r\n    image: x",
        '{\n      file: "conf/more.yaml",\n      service: a\n    }',
    ],
)
def test_a_path_in_the_task_is_read_however_it_is_written(environment, extends):
    (environment / "conf" / "more.yaml").write_text("services: {a: {image: x}}\n")
    text = f"services:\n  db:\n    extends: {extends}\n  main: {{image: x}}\n"
    path = environment / "docker-compose.yaml"
    path.write_bytes(text.encode())
    assert list(unreadable(path)) == []


EXTENDS = {
    "services: {db: {extends: {file: ../secret/x.yaml, service: a}}}\n": "../secret/x.yaml",
    "services: {db: {extends: {service: a, 'file': /etc/x.yaml}}}\n": "/etc/x.yaml",
    "services:\n  db:\n    extends:\n      file: ./out/x.yaml\n": "./out/x.yaml",
    "services:\n  db:\n    extends:\n      f\\x69le: ${X}\n": "${X",
    "services:\n  db:\n    extends:\n      file: |-\n        /etc/x\n": "|-",
    "services:\n  db:\n    extends:\n      ? file\n      : /etc/x\n": "plainly",
    "x: &f file\nservices: {db: {extends: {*f : /etc/x, service: a}}}\n": "plainly",
    "services: {db: {extends: {file: conf/more.yaml, service: a}}}\n": "/etc/more.yaml",
    "services: {db: {extends: {file: https://x.org/c.yaml, service: a}}}\n": "x.org",
    "services: {db: {extends: {file: oci://x.org/c, service: a}}}\n": "oci:",
}


@pytest.mark.parametrize("text", EXTENDS)
def test_no_service_of_another_project_is_taken(environment, text):
    (environment / "conf" / "more.yaml").write_text(
        "services: {a: {extends: {file: /etc/more.yaml, service: b}}}\n"
    )
    (environment / "docker-compose.yaml").write_text(text)
    told = list(unreadable(environment / "docker-compose.yaml"))
    assert any(": extends: " in line and EXTENDS[text] in line for line in told), told


def test_services_of_the_tasks_own_files_may_be_extended(environment, found):
    (environment / "conf" / "more.yaml").write_text("services: {a: {image: x}}\n")
    text = """\
services:
  db: {extends: {file: conf/more.yaml, service: a}}
  two: {extends: {service: db}, env_file: conf/a.env}
secrets: {s: {file: conf/a.env}}
"""
    assert found(environment, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "services: {db: {command: [nginx, -g, 'include /etc/nginx/x;']}}\n",
        "# include: this\nservices: {}\n".replace("# include: this", "# we include"),
        "services:\n  includes:\n    image: x\n",
    ],
)
def test_the_word_alone_is_not_refused(environment, text):
    (environment / "docker-compose.yaml").write_text(text)
    assert list(unreadable(environment / "docker-compose.yaml")) == []


def test_links_and_other_encodings_are_not_read(environment, tmp_path):
    path = environment / "docker-compose.yaml"
    path.write_bytes("services: {}\n".encode("utf-16"))
    assert list(unreadable(path)) == ["docker-compose.yaml: is not UTF-8"]
    path.unlink()
    path.symlink_to(tmp_path / "secret" / "key.env")
    (environment / ".env").symlink_to(tmp_path / "secret" / "key.env")
    assert [text.partition(":")[0] for text in unreadable(path)] == [
        "docker-compose.yaml",
        ".env",
    ]
