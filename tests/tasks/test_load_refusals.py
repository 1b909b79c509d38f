"""Every refusal at load, with the file, the key and the remedy in its text (spec 19.6)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_harbor.errors import Problem, TaskLoadError
from pytest_harbor.tasks.folder.dataset import Dataset
from pytest_harbor.tasks.folder.load import load_task
from task_folders import PASSING_TEST, write_task

STEP = '[[steps]]\nname = "build"\n'
IMAGE = '[environment]\ndocker_image = "debian:12"\n'
SEPARATE = '[verifier]\nenvironment_mode = "separate"\n'
STEP_FILES = {"steps/build/instruction.md": "Build it."}


def problems_of(folder: Path, *, strict: bool = False) -> tuple[Problem, ...]:
    with pytest.raises(TaskLoadError) as caught:
        load_task(folder, strict=strict)
    return caught.value.problems


class Key(NamedTuple):
    """A refusal that a key of task.toml alone causes."""

    rule: str
    toml: str
    text: str


KEYS = [
    Key("X01", "[agent\n", "task.toml: is not valid TOML: "),
    Key("X01", "a = 1\na = 2\n", "task.toml: is not valid TOML: "),
    Key(
        "X01",
        '[agent]\ntimeout_sec = "30"\n',
        "task.toml: [agent].timeout_sec: must be a number, not the string '30'",
    ),
    Key(
        "X01",
        "[agent]\ntimeout_sec = true\n",
        "task.toml: [agent].timeout_sec: must be a number, not true",
    ),
    Key(
        "X01",
        "[environment]\nmemory_mb = 1.5\n",
        "task.toml: [environment].memory_mb: must be an integer, not the number 1.5",
    ),
    Key(
        "X01",
        "[environment.env]\nFOO = 3\n",
        "task.toml: [environment.env].FOO: must be a string, not the number 3",
    ),
    Key("X01", "agent = 3\n", "task.toml: [agent]: must be a table, not the number 3"),
    Key("X01", "steps = 3\n", "task.toml: steps: must be an array, not the number 3"),
    Key(
        "X01",
        "[agent]\nuser = true\n",
        "task.toml: [agent].user: must be a user name or a user ID, not true",
    ),
    Key(
        "X01",
        "[metadata.pytest_harbor]\nmin_reward = 'high'\n",
        "task.toml: [metadata.pytest_harbor].min_reward: must be a number, not",
    ),
    Key(
        "X01",
        "[verifier]\nenvironment_mode = 'seperate'\n",
        "task.toml: [verifier].environment_mode: the string 'seperate' is not"
        ' "shared" or "separate"',
    ),
    Key(
        "X01",
        "[environment]\nos = 'macos'\n",
        'task.toml: [environment].os: must be "linux" or "windows", not the string',
    ),
    Key(
        "X01",
        "[environment]\nmemory = '2'\n",
        'task.toml: [environment].memory: must be a size such as "2G"',
    ),
    Key(
        "X01",
        "[environment]\nallow_internet = 'no'\n",
        "task.toml: [environment].allow_internet: must be true or false",
    ),
    Key(
        "X01",
        "[environment]\ncpus = -1\n",
        "task.toml: [environment].cpus: must be a number of at least 0, not -1",
    ),
    Key(
        "X01",
        "[environment.healthcheck]\nretries = 3\n",
        "task.toml: [environment.healthcheck]: command is missing",
    ),
    Key(
        "X01",
        "[environment]\nworkdir = 'app'\n",
        "task.toml: [environment].workdir: must be an absolute path, not the string",
    ),
    Key(
        "X01",
        "[environment]\nworkdir = '/app/../etc'\n",
        "task.toml: [environment].workdir: '/app/../etc' holds '..'; write the path",
    ),
    *(
        Key(
            "X01",
            f"[environment]\nworkdir = '{path}'\n",
            f"task.toml: [environment].workdir: '{path}' {where}; choose another folder",
        )
        for path, where in (
            ("/proc", "is /proc"),
            ("/sys/kernel", "lies in /sys"),
            ("/dev/shm", "lies in /dev"),
            ("/tests/", "is /tests"),
            ("//tests/data", "lies in /tests"),
            ("/./solution", "is /solution"),
            ("/logs/verifier/x", "lies in /logs/verifier"),
            ("/logs//agent", "is /logs/agent"),
        )
    ),
    *(
        Key("X01", f"[{table}]\nuser = {user}\n", f"task.toml: [{table}].user: {text}")
        for table in ("agent", "verifier")
        for user, text in (
            ("-1", "must be a user ID from 0 to 4294967294, not -1"),
            ("4294967295", "must be a user ID from 0 to 4294967294, not 4294967295"),
            ("'4294967295'", "must be an ID from 0 to 4294967294, not '4294967295'"),
            ("'0:9999999999'", "must be an ID from 0 to 4294967294, not '9999999999'"),
            ("'١٢٣'", "'١٢٣' is no user: write the ID in the digits 0 to 9"),
            ("'app:²'", "'²' is no user: write the ID in the digits 0 to 9"),
        )
    ),
    Key(
        "X01",
        "[[verifier.collect]]\ncommand = 'true'\nuser = 4294967295\n",
        "must be a user ID from 0 to 4294967294, not 4294967295",
    ),
    Key(
        "X01",
        "[environment.env]\n'A=B' = 'x'\n",
        "task.toml: [environment].env: variable 'A=B': no '=', NUL or empty name",
    ),
    Key(
        "X01",
        f"[environment]\nmemory_mb = {'9' * 400}\n",
        "task.toml: [environment].memory_mb: must be an integer from 0 to",
    ),
    Key(
        "X01",
        "[agent]\nnetwork_mode = 'closed'\n"
        "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']\n",
        "task.toml: [agent].network_mode: the string 'closed' is not",
    ),
    # One message for one mistake, though the hosts now stand alone.
    Key(
        "X01",
        "[agent]\nnetwork_mode = 'closed'\nallowed_hosts = ['a.org']\n",
        "task.toml: [agent].network_mode: the string 'closed' is not",
    ),
    Key(
        "X17",
        "multi_step_reward_strategy = 'median'\n",
        "task.toml: multi_step_reward_strategy: the string 'median' is not"
        ' "mean" or "final"',
    ),
    Key(
        "X19",
        "artifacts = ['/app/../etc']\n",
        "task.toml: artifacts[0]: /app/../etc: the source must not hold '..'",
    ),
    Key("X19", "artifacts = [3]\n", "task.toml: artifacts[0]: must be a table, not"),
    Key("X19", "artifacts = ['']\n", "the source is empty"),
    Key("X19", "artifacts = ['/']\n", "set a destination"),
    *(
        Key(
            "X19",
            f"artifacts = [{{ source = '/app/x', destination = '{place}' }}]\n",
            f"task.toml: artifacts[0]: /app/x: {problem}",
        )
        for place, problem in {
            "/abs": "destination '/abs' must be relative",
            "a/../b": "destination 'a/../b' must not hold '..'",
            "a\\b": "destination 'a\\b' must use forward slashes",
            "./": "destination './' is empty",
            "./manifest.json": "destination 'manifest.json' is the name of the list",
        }.items()
    ),
    Key(
        "X19",
        "artifacts = [{ source = 'out', service = 'db' }]\n",
        "out: the source must be an absolute path in a sidecar",
    ),
    Key(
        "X20",
        "[[verifier.collect]]\ntimeout_sec = 3\n",
        "task.toml: verifier.collect[0]: command is missing",
    ),
    Key(
        "X20",
        "[[verifier.collect]]\ncommand = 'x'\nservice = '-db'\n",
        "task.toml: verifier.collect[0].service: '-db' is no service name",
    ),
    Key(
        "X21",
        "[environment]\nallowed_hosts = ['example.org']\n",
        'task.toml: [environment]: allowed_hosts needs network_mode = "allowlist"',
    ),
    *(
        Key(
            "X21",
            f"[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['{host}']\n",
            f"task.toml: [environment].allowed_hosts[0]: '{host}' is no host name",
        )
        for host in ("https://example.org", "example.org:80", "example.org/x", "a b")
    ),
    Key(
        "X22",
        "[[environment.mcp_servers]]\nname = 'git'\n",
        "mcp_servers 'git': transport \"sse\" needs url",
    ),
    Key(
        "X22",
        "[[environment.mcp_servers]]\nname = 'git'\ntransport = 'stdio'\n",
        "mcp_servers 'git': transport \"stdio\" needs command",
    ),
    *(
        Key(
            "X22",
            "[[environment.mcp_servers]]\nname = 'git'\nurl = 'http://x'\n"
            f"headers = {{ {header} }}\n",
            text,
        )
        for header, text in {
            '"a b" = "x"': "'a b' is no header name",
            'X-A = "x\\ny"': "header 'X-A' holds a line break",
            'Authorization = "Bearer abc"': "header 'Authorization' holds a credential",
            'Authorization = "${KEY:-abc}"': "holds a credential",
        }.items()
    ),
    Key(
        "X25",
        "[environment]\nmemory = '2G'\nmemory_mb = 1024\n",
        'task.toml: [environment]: memory = "2G" disagrees with memory_mb = 1024',
    ),
    *(
        Key("X27", toml, f"task.toml: {key}: must be a positive number, not {value}")
        for key, value, toml in [
            ("[agent].timeout_sec", "0", "[agent]\ntimeout_sec = 0\n"),
            ("[agent].timeout_sec", "nan", "[agent]\ntimeout_sec = nan\n"),
            ("[verifier].timeout_sec", "-1", "[verifier]\ntimeout_sec = -1.0\n"),
            ("[verifier].timeout_sec", "inf", "[verifier]\ntimeout_sec = inf\n"),
        ]
    ),
    Key("X27", "[environment]\nbuild_timeout_sec = 0\n", "[environment].build_timeou"),
    Key(
        "X27",
        "[environment.healthcheck]\ncommand = 'x'\ntimeout_sec = inf\n",
        "[environment.healthcheck].timeout_sec: must be a finite number, not inf",
    ),
    Key("X28", "[environment]\nos = 'Windows'\n", 'os = "windows" is not supported'),
    Key(
        "X28",
        "[environment]\ngpus = 1\n",
        "task.toml: [environment].gpus: gpus is not supported by this runner",
    ),
    Key(
        "X28",
        "[environment.tpu]\ntype = 'v5'\ntopology = '2x2'\n",
        "task.toml: [environment].tpu: tpu is not supported by this runner",
    ),
    Key("X28", "[verifier]\ninputs = []\n", "task.toml: [verifier].inputs: sidecar"),
    Key(
        "X13",
        "[verifier]\nenvironment_mode = 'shared'\n"
        "[verifier.environment]\ndocker_image = 'x'\n",
        'task.toml: [verifier]: environment_mode = "shared" conflicts with'
        " [verifier.environment]",
    ),
    Key(
        "X24",
        IMAGE + "[verifier.environment]\ncpus = 1\n",
        "task.toml: [verifier.environment]: separate verification needs an image:"
        " set docker_image",
    ),
    Key(
        "X26",
        "artifacts = [{ source = '/db', service = 'db' }]\n",
        "task.toml: artifacts: service 'db' is not defined in"
        " environment/docker-compose.yaml",
    ),
    Key(
        "X26",
        "[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n",
        "task.toml: [[verifier.collect]]: service 'db' is not defined",
    ),
    *(
        Key(
            "X19",
            f"artifacts = ['{source}']\n{SEPARATE}",
            f"task.toml: artifacts: {source}: overlaps {folder}",
        )
        for source, folder in [
            ("/tests", "/tests"),
            ("/tests/data", "/tests"),
            ("/logs/verifier/", "/logs/verifier"),
            ("/logs/agent/x.log", "/logs/agent"),
            ("/logs", "/logs/verifier"),
        ]
    ),
]

STEP_KEYS = [
    Key(
        "X12",
        "[steps.verifier]\nenvironment_mode = 'shared'\n"
        "[steps.verifier.environment]\ndocker_image = 'x'\n",
        "task.toml: step 'build': environment_mode = \"shared\" conflicts with"
        " [steps.verifier.environment]",
    ),
    Key(
        "X14",
        "[steps.agent]\nnetwork_mode = 'no-network'\n",
        "task.toml: step 'build': network settings on [steps.agent] are not supported",
    ),
    Key(
        "X14",
        "[steps.agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']\n",
        "network settings on [steps.agent] are not supported",
    ),
    Key(
        "X14",
        "[steps.agent]\nallow_internet = false\n",
        "network settings on [steps.agent] are not supported",
    ),
    Key(
        "X15",
        "[steps.verifier]\nnetwork_mode = 'no-network'\n",
        "task.toml: step 'build': network settings on [steps.verifier] are not",
    ),
    Key(
        "X15",
        "[steps.verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']\n",
        "step 'build': network settings on [steps.verifier] are not supported",
    ),
    Key(
        "X15",
        "[steps.verifier.environment]\ndocker_image = 'x'\nallow_internet = false\n",
        "network settings on [steps.verifier.environment] are not supported",
    ),
    *(
        Key(
            "X18",
            f"min_reward = {value}\n",
            "task.toml: step 'build': min_reward: must be a number or a table of",
        )
        for value in (
            "'0.5'",
            "nan",
            "[0.5]",
            "{ reward = 'x' }",
            "{ reward = nan }",
            "1" * 400,
        )
    ),
    Key(
        "X27",
        "[steps.agent]\ntimeout_sec = 0\n",
        "task.toml: step 'build': [steps.agent].timeout_sec: must be a positive",
    ),
    Key(
        "X01",
        "[steps.healthcheck]\nretries = 3\n",
        "task.toml: step 'build': [steps.healthcheck]: command is missing",
    ),
    Key(
        "X01",
        "[steps.healthcheck]\ncommand = 3\n",
        "task.toml: step 'build': [steps.healthcheck].command: must be a string, not",
    ),
    Key(
        "X19",
        "artifacts = ['../x']\n",
        "task.toml: step 'build': artifacts[0]: ../x: the source must not hold '..'",
    ),
    Key(
        "X26",
        "[[steps.verifier.collect]]\ncommand = 'x'\nservice = 'db'\n",
        "task.toml: step 'build': [[steps.verifier.collect]]: service 'db' is not",
    ),
]


@pytest.mark.parametrize("case", KEYS, ids=lambda case: f"{case.rule} {case.toml!r}")
def test_a_key_is_refused(tmp_path: Path, case: Key) -> None:
    (problem,) = problems_of(write_task(tmp_path / "task", case.toml))

    assert case.text in str(problem)
    assert problem.rule == case.rule


@pytest.mark.parametrize(
    "case", STEP_KEYS, ids=lambda case: f"{case.rule} {case.toml!r}"
)
def test_a_key_of_a_step_is_refused(tmp_path: Path, case: Key) -> None:
    folder = write_task(tmp_path / "task", STEP + case.toml, files=STEP_FILES)

    (problem,) = problems_of(folder)

    assert case.text in str(problem)
    assert problem.rule == case.rule


Build = Callable[[Path], Path]


def link(folder: Path, name: str, target: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return folder


FOLDERS: list[tuple[str, str, Build]] = [
    (
        "X01",
        "task.toml: cannot be read: No such file or directory",
        lambda folder: folder,
    ),
    (
        "X01",
        "task.toml: is not UTF-8 (byte 3)",
        lambda folder: write_task(
            folder, files={"task.toml": b"# \xe4\xff"[:2] + b"a\xff"}
        ),
    ),
    (
        "X01",
        "task_data.json: is not valid JSON: ",
        lambda folder: write_task(folder, files={"task_data.json": "{"}),
    ),
    (
        "X01",
        "task_data.json: must be a JSON object",
        lambda folder: write_task(folder, files={"task_data.json": "[]"}),
    ),
    (
        "X02",
        "instruction.md: is missing; write down what the agent is to do",
        lambda folder: write_task(folder, instruction=None),
    ),
    (
        "X02",
        "instruction.md: is not UTF-8 (byte 2); save it as UTF-8",
        lambda folder: write_task(folder, files={"instruction.md": b"Do\xff"}),
    ),
    (
        "X03",
        "tests/test.sh: no verifier: add tests/test.sh",
        lambda folder: write_task(folder, test=None),
    ),
    (
        "X03",
        "no verifier: add tests/test.sh",
        # The agent's own image cannot bring the tests, not even for a copy of it.
        lambda folder: write_task(folder, IMAGE + SEPARATE, test=None),
    ),
    (
        "X04",
        (
            "Dockerfile: lies at the task's root, where nothing reads it: move it, with the"
            " files it copies, to environment/"
        ),
        lambda folder: write_task(folder, files={"Dockerfile": "FROM scratch"}),
    ),
    (
        "X07",
        "task.toml: step 'build': folder steps/build/ is missing",
        lambda folder: write_task(folder, STEP),
    ),
    (
        "X08",
        "steps/build/instruction.md: step 'build': instruction.md is missing",
        lambda folder: write_task(folder, STEP, files={"steps/build/": ""}),
    ),
    (
        "X09",
        (
            "steps/build/tests/test.sh: step 'build': no test.sh in steps/build/tests/ or"
            " tests/; add one"
        ),
        lambda folder: write_task(folder, STEP, test=None, files=STEP_FILES),
    ),
    (
        "X09",
        "(Python verifiers are single-step only)",
        lambda folder: write_task(
            folder, STEP, test=None, files={**STEP_FILES, "tests/verifier.py": ""}
        ),
    ),
    *(
        (
            "X10",
            f"step name '{name}': ",
            lambda folder, name=name: write_task(
                folder, f'[[steps]]\nname = "{name}"\n'
            ),
        )
        for name in (
            "a b",
            "-a",
            ".a",
            "a/b",
            "..",
            "",
            "\u00e9",
            "a.",
            "con",
            "LPT1.x",
        )
    ),
    (
        "X10",
        "is longer than 255 bytes",
        lambda folder: write_task(folder, f'[[steps]]\nname = "{"a" * 256}"\n'),
    ),
    (
        "X10",
        "task.toml: [[steps]].name: step name 'build' is used twice",
        lambda folder: write_task(folder, STEP + STEP, files=STEP_FILES),
    ),
    (
        "X10",
        "task.toml: [[steps]].name: step name 'Build' is used twice",
        lambda folder: write_task(
            folder,
            STEP + STEP.replace("build", "Build"),
            files={**STEP_FILES, "steps/Build/instruction.md": ""},
        ),
    ),
    (
        "X11",
        (
            "task.toml: step 'build': step 'build' verifies separately with its own tests/;"
            " set docker_image in its verifier environment"
        ),
        lambda folder: write_task(
            folder,
            SEPARATE + STEP,
            files={
                **STEP_FILES,
                "steps/build/tests/test.sh": PASSING_TEST,
                "steps/build/tests/Dockerfile": "FROM scratch",
                "environment/Dockerfile": "FROM scratch",
            },
        ),
    ),
    *(
        (
            "X11",
            "task.toml: step 'build': step 'build' verifies separately with its own tests/",
            lambda folder, toml=toml: write_task(
                folder,
                toml,
                files={**STEP_FILES, "steps/build/tests/data": ""},
            ),
        )
        for toml in (
            STEP + "[steps.verifier]\nenvironment_mode = 'separate'\n",
            STEP + "[steps.verifier.environment]\ncpus = 1\n",
            "[verifier.environment]\ncpus = 1\n" + STEP,
        )
    ),
    (
        "X16",
        "[verifier] restricts the network but step 'ship' verifies in the agent's",
        lambda folder: write_task(
            folder,
            "[verifier]\nnetwork_mode = 'allowlist'\n"
            + STEP
            + "[steps.verifier]\nenvironment_mode = 'separate'\n"
            + '[[steps]]\nname = "ship"\n',
            files={**STEP_FILES, "steps/ship/instruction.md": ""},
        ),
    ),
    (
        "X16",
        (
            "[verifier] restricts the network but step 'build' verifies in the agent's"
            " sandbox"
        ),
        lambda folder: write_task(
            folder, "[verifier]\nallow_internet = false\n" + STEP, files=STEP_FILES
        ),
    ),
    (
        "X23",
        "tests/secret: leaves the task folder",
        lambda folder: link(write_task(folder), "tests/secret", "/etc/hostname"),
    ),
    (
        "X23",
        "tests/deep/chain: leaves the task folder",
        lambda folder: link(
            write_task(folder, files={"tests/deep/x": ""}),
            "tests/deep/chain",
            "../../../outside",
        ),
    ),
    (
        "X23",
        "instruction.md: leaves the task folder",
        lambda folder: link(
            write_task(folder, STEP, instruction=None, files=STEP_FILES),
            "instruction.md",
            "/etc/hostname",
        ),
    ),
    (
        "X23",
        "solution: leaves the task folder",
        lambda folder: link(write_task(folder), "solution", "/etc"),
    ),
    (
        "X23",
        "steps/build/workdir/out: leaves the task folder",
        lambda folder: link(
            write_task(folder, STEP, files=STEP_FILES),
            "steps/build/workdir/out",
            "/etc/hostname",
        ),
    ),
    (
        "X23",
        "environment: leaves the task folder (links to /etc); copy what it points at",
        lambda folder: link(write_task(folder), "environment", "/etc"),
    ),
    (
        "X23",
        "tests/loop: links form a cycle",
        lambda folder: link(write_task(folder), "tests/loop", "loop"),
    ),
    (
        "X23",
        "tests/up: links form a cycle",
        lambda folder: link(write_task(folder), "tests/up", ".."),
    ),
    (
        "X24",
        "task.toml: [verifier.environment]: separate verification needs an image",
        lambda folder: write_task(
            folder,
            "[verifier.environment]\ncpus = 1\n",
            files={"environment/Dockerfile": "FROM scratch"},
        ),
    ),
    (
        "X24",
        "task.toml: [steps.verifier.environment]: separate verification needs an image",
        lambda folder: write_task(
            folder,
            STEP + "[steps.verifier.environment]\ncpus = 1\n",
            files={
                **STEP_FILES,
                "environment/docker-compose.yaml": "",
                # Built for [verifier.environment] alone.
                "tests/Dockerfile": "FROM scratch",
            },
        ),
    ),
    (
        "X26",
        "service 'cache' is not defined in environment/docker-compose.yaml",
        lambda folder: write_task(
            folder,
            "artifacts = [{ source = '/x', service = 'cache' }]\n",
            files={
                "environment/docker-compose.yaml": "services:\n  main: {}\n  db:\n"
                "    image: cache\n"
            },
        ),
    ),
    (
        "",
        "tests/.harborignore: must not leave out test.sh",
        lambda folder: write_task(folder, files={"tests/.harborignore": "*.sh\n"}),
    ),
    (
        "",
        "solution/.harborignore: must not leave out solve.sh",
        lambda folder: write_task(
            folder, solve="true", files={"solution/.harborignore": "solve.*\n"}
        ),
    ),
]


@pytest.mark.parametrize(
    ("rule", "text", "build"),
    FOLDERS,
    ids=[f"{rule} {text}" for rule, text, _ in FOLDERS],
)
def test_a_folder_is_refused(
    tmp_path: Path, rule: str, text: str, build: Build
) -> None:
    (problem,) = problems_of(build(tmp_path / "task"))

    assert text in str(problem)
    assert problem.rule == rule


def test_a_linked_task_folder_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "real")
    (tmp_path / "task").symlink_to("real")

    (problem,) = problems_of(tmp_path / "task")

    assert str(problem) == "task folder is a symbolic link; give its real path"
    assert problem.rule == "X05"


def test_a_fifo_is_no_instruction_and_does_not_block(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", instruction=None)
    os.mkfifo(folder / "instruction.md")

    assert [problem.rule for problem in problems_of(folder)] == ["X02"]


def test_links_in_two_folders_that_point_at_each_other_form_a_cycle(
    tmp_path: Path,
) -> None:
    folder = write_task(tmp_path / "task", files={"tests/a/": "", "tests/b/": ""})
    link(folder, "tests/a/b", "../b")
    link(folder, "tests/b/a", "../a")

    assert {problem.rule for problem in problems_of(folder)} == {"X23"}


def test_a_step_that_is_a_link_out_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "other", files={"build/instruction.md": ""})
    folder = write_task(tmp_path / "task", STEP)
    link(folder, "steps/build", "../../other/build")

    (problem,) = problems_of(folder)

    assert "steps/build: leaves the task folder" in str(problem)
    assert problem.rule == "X23"


@pytest.mark.parametrize("has_verifier", [True, False])
def test_a_verifier_of_the_dataset_does_not_serve_a_step(
    tmp_path: Path, has_verifier: bool
) -> None:
    verifier = tmp_path / "verifier.py" if has_verifier else None
    dataset = Dataset(tmp_path, tmp_path / "dataset.toml", verifier_py=verifier)
    folder = write_task(tmp_path / "task", STEP, test=None, files=STEP_FILES)

    with pytest.raises(TaskLoadError) as caught:
        load_task(folder, dataset=dataset)

    (problem,) = caught.value.problems
    assert problem.rule == "X09"
    assert ("Python verifiers are single-step only" in str(problem)) == has_verifier


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        """
        multi_step_reward_strategy = "max"
        [agent]
        timeout_sec = "1h"
        [environment]
        cpus = "two"
        memory = "big"
        [[steps]]
        name = "one"
        min_reward = "high"
        [[steps]]
        name = "two"
        """,
        test=None,
        files={"steps/two/": "", "tests/out": ""},
    )
    link(folder, "tests/hosts", "/etc/hosts")

    assert [problem.rule for problem in problems_of(folder)] == [
        "X01",  # memory
        "X17",
        "X01",  # agent timeout
        "X01",  # cpus
        "X18",
        "X23",
        "X07",
        "X08",
        "X09",
    ]


def test_the_error_is_one_line_per_problem_and_names_the_folder(tmp_path: Path) -> None:
    folder = write_task(tmp_path / "task", instruction=None, test=None)

    with pytest.raises(TaskLoadError) as caught:
        load_task(folder)

    assert caught.value.folder == str(folder)
    assert str(caught.value).splitlines() == [
        "instruction.md: is missing; write down what the agent is to do",
        "tests/test.sh: no verifier: add tests/test.sh",
    ]


def test_braces_in_a_refused_value_stay_as_they_are(tmp_path: Path) -> None:
    (problem,) = problems_of(write_task(tmp_path / "task", "artifacts = ['/{x}/..']\n"))

    assert "/{x}/.." in str(problem)


@pytest.mark.parametrize(
    "toml",
    [
        "[enviroment]\ncpus = 1\n",
        "[task]\nname = 'no-slash'\n",
        STEP + "min_reward = true\n",
    ],
)
def test_strict_makes_problems_of_warnings(tmp_path: Path, toml: str) -> None:
    folder = write_task(tmp_path / "task", toml, files=STEP_FILES)
    (warning,) = load_task(folder).warnings

    (problem,) = problems_of(folder, strict=True)

    assert str(problem) == warning


def test_strict_leaves_legacy_keys_and_choices_alone(tmp_path: Path) -> None:
    folder = write_task(
        tmp_path / "task",
        "version = '1.0'\n" + IMAGE + "memory = '1G'\nallow_internet = true\n",
        files={"environment/Dockerfile": "FROM scratch"},
    )

    assert len(load_task(folder, strict=True).warnings) == 4
