"""What the folders of a bundle are, and how an id finds one (task-steps spec 1.2, 1.3)."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.bundle import Bundle, installed_bundles
from pytest_harbor.tasks.steps.entries import (
    AgentEntry,
    ArtifactEntry,
    EntryKind,
    EnvEntry,
    SkillEntry,
)
from step_bundles import agent_up, env_up, load, load_steps, write_bundle


def bundle_of(root: Path, files: dict[str, str | bytes]) -> Bundle:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return Bundle(root, others=tuple)


COMMAND = 'command = ["python", "server.py"]\n'


def test_an_env_that_is_started_by_a_command(tmp_path: Path) -> None:
    toml = COMMAND + 'environment_name = "post"\ntype = "mcp_server"\n'
    bundle = bundle_of(
        tmp_path,
        {
            "envs/mail/env.toml": toml + 'env_provider_type = "gateway"\n',
            "envs/mail/requirements.txt": "mcp\n",
        },
    )
    assert bundle.env("mail") == EnvEntry(
        "mail",
        tmp_path / "envs/mail",
        environment_name="post",
        command=("python", "server.py"),
        requirements=tmp_path / "envs/mail/requirements.txt",
    )


@pytest.mark.parametrize("kind", ["env", "agent"])
def test_a_dockerfile_is_enough(tmp_path: Path, kind: EntryKind) -> None:
    folder = f"{kind}s/mail"
    bundle = bundle_of(tmp_path, {f"{folder}/Dockerfile": "FROM scratch\n"})
    model = EnvEntry if kind == "env" else AgentEntry
    assert getattr(bundle, kind)("mail") == model(
        "mail", tmp_path / folder, dockerfile=tmp_path / folder / "Dockerfile"
    )


@pytest.mark.parametrize("kind", ["env", "agent"])
def test_an_image_of_another_name_or_place(tmp_path: Path, kind: EntryKind) -> None:
    bundle = bundle_of(
        tmp_path,
        {
            f"{kind}s/built/{kind}.toml": 'image = "Dockerfile.small"\n',
            f"{kind}s/built/Dockerfile.small": "FROM scratch\n",
            f"{kind}s/built/Dockerfile": "FROM scratch\n",
            f"{kind}s/ready/{kind}.toml": 'image = { ref = "registry/mail:1" }\n',
            f"{kind}s/ready/Dockerfile": "FROM scratch\n",
        },
    )
    built, ready = (getattr(bundle, kind)(name) for name in ("built", "ready"))
    assert (built.image, built.dockerfile) == (
        None,
        tmp_path / f"{kind}s/built/Dockerfile.small",
    )
    assert (ready.image, ready.dockerfile) == ("registry/mail:1", None)


ARTIFACTS: dict[str, tuple[dict[str, str | bytes], ArtifactEntry]] = {
    "a file": (
        {"rules.md": "r"},
        ArtifactEntry("x", Path(), "file", ("rules.md",), file=Path("rules.md")),
    ),
    "several files": (
        {"a": "1", "b": "2"},
        ArtifactEntry("x", Path(), "file_artifact_universe", ("a", "b")),
    ),
    "a file in a folder": (
        {"d/a": "1"},
        ArtifactEntry("x", Path(), "file_artifact_universe", ("d/a",)),
    ),
    "files and folders": (
        {"b/c/d": "1", "a": "2", ".hidden": "3"},
        ArtifactEntry("x", Path(), "file_artifact_universe", (".hidden", "a", "b/c/d")),
    ),
    "leftovers do not count": (
        {"rules.md": "r", ".DS_Store": "", "__pycache__/a.pyc": ""},
        ArtifactEntry("x", Path(), "file", ("rules.md",), file=Path("rules.md")),
    ),
    "data for an environment": (
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "post"\n',
            "inbox.json": "{}",
        },
        ArtifactEntry(
            "x",
            Path(),
            "environment",
            ("inbox.json",),
            environment_name="post",
            file=Path("inbox.json"),
        ),
    ),
    "data in another artifact": (
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "post"\n'
            'file = "raw"\n',
        },
        ArtifactEntry(
            "x",
            Path(),
            "environment",
            (),
            environment_name="post",
            file=Path("../raw/inbox.json"),
        ),
    ),
    "an image": (
        {"Dockerfile": "FROM scratch\n", "a": ""},
        ArtifactEntry("x", Path(), "docker_image", ("Dockerfile", "a")),
    ),
    "a universe of one by its type": (
        {"artifact.toml": 'type = "file_artifact_universe"\n', "a": ""},
        ArtifactEntry("x", Path(), "file_artifact_universe", ("a",)),
    ),
}


@pytest.mark.parametrize("case", ARTIFACTS)
def test_artifacts(tmp_path: Path, case: str) -> None:
    files, expected = ARTIFACTS[case]
    named = {f"artifacts/x/{name}": text for name, text in files.items()}
    bundle = bundle_of(tmp_path, {"artifacts/raw/inbox.json": "{}", **named})

    artifact = bundle.artifact("x")

    folder = tmp_path / "artifacts/x"
    assert artifact is not None
    assert artifact.folder == folder
    file = expected.file and Path(os.path.normpath(folder / expected.file))
    assert artifact.file == file
    for name in ("name", "type", "files", "environment_name", "warnings"):
        assert getattr(artifact, name) == getattr(expected, name), name


def test_a_skill(tmp_path: Path) -> None:
    text = "---\nname: fines\ndescription: 'Late: fees'\n---\nTen cents.\n"
    bundle = bundle_of(tmp_path, {"skills/fines/SKILL.md": text})
    assert bundle.skill("fines") == SkillEntry(
        "fines", tmp_path / "skills/fines", "Late: fees", text
    )


@pytest.mark.parametrize("text", ["Ten cents.\n", "---\nname: a\n---\n", ""])
def test_a_skill_without_a_description(tmp_path: Path, text: str) -> None:
    skill = bundle_of(tmp_path, {"skills/a/SKILL.md": text}).skill("a")
    assert skill is not None
    assert skill.description == ""


# Files of the entry "x" of a kind, and what is said of them.
BROKEN: dict[str, tuple[EntryKind, dict[str, str | bytes], list[str]]] = {
    "nothing of an env": (
        "env",
        {"server.py": ""},
        ["envs/x: needs a Dockerfile or an env.toml"],
    ),
    "nothing of an agent": (
        "agent",
        {"agent.py": ""},
        ["agents/x: needs a Dockerfile or an agent.toml"],
    ),
    "nothing to start": (
        "env",
        {"env.toml": 'environment_name = "x"\n'},
        [
            (
                "envs/x/env.toml: names nothing to start: give command, image or a"
                " Dockerfile"
            )
        ],
    ),
    "no toml": (
        "env",
        {"env.toml": "command = \n"},
        ["envs/x/env.toml: is not valid TOML: Invalid value (at line 1, column 11)"],
    ),
    "no UTF-8": (
        "env",
        {"env.toml": b"\xff"},
        ["envs/x/env.toml: is not UTF-8 (byte 0)"],
    ),
    "values": (
        "env",
        {
            "env.toml": "command = 'python server.py'\nenvironment_name = ''\n"
            "type = 'desktop'\nenv_provider_type = 'vm'\nimage = 3\n"
        },
        [
            (
                "envs/x/env.toml: image: must be the name of a Dockerfile, or { ref ="
                ' "registry/image:tag" }, not the number 3'
            ),
            (
                "envs/x/env.toml: command: must be an array, not the string"
                " 'python server.py'"
            ),
            "envs/x/env.toml: type: the string 'desktop' is not \"mcp_server\"",
            "envs/x/env.toml: environment_name: must not be empty",
            (
                "envs/x/env.toml: env_provider_type: the string 'vm' is not \"gateway\" or"
                ' "server"'
            ),
        ],
    ),
    "an empty command": (
        "agent",
        {"agent.toml": "command = []\n"},
        ["agents/x/agent.toml: command: must start with a program"],
    ),
    "no such Dockerfile": (
        "env",
        {"env.toml": 'image = "Dockerfile.small"\n'},
        ["envs/x/env.toml: image: 'Dockerfile.small' is no Dockerfile in envs/x"],
    ),
    "a Dockerfile elsewhere": (
        "env",
        {"env.toml": 'image = "../y/Dockerfile"\n', "../y/Dockerfile": ""},
        ["envs/x/env.toml: image: '../y/Dockerfile' is no Dockerfile in envs/x"],
    ),
    "a live env that is started": (
        "env",
        {"env.toml": COMMAND + 'url = "https://x/mcp"\n'},
        [
            (
                "envs/x/env.toml: url names a server that already runs: remove what starts"
                " one"
            )
        ],
    ),
    "an empty artifact": (
        "artifact",
        {".DS_Store": ""},
        ["artifacts/x: is empty"],
    ),
    "artifact type": (
        "artifact",
        {"artifact.toml": 'type = "cli"\n', "a": ""},
        [
            (
                "artifacts/x/artifact.toml: type: the string 'cli' is not \"file\","
                ' "file_artifact_universe", "environment" or "docker_image"'
            )
        ],
    ),
    "data without a name": (
        "artifact",
        {"artifact.toml": 'type = "environment"\n', "a": ""},
        ["artifacts/x/artifact.toml: environment_name is missing"],
    ),
    "data in two files": (
        "artifact",
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "e"\n',
            "a": "",
            "b": "",
        },
        [
            (
                "artifacts/x/artifact.toml: an environment artifact needs one file beside"
                ' it, not 2, or file = "<artifact id>"'
            )
        ],
    ),
    "data here and elsewhere": (
        "artifact",
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "e"\n'
            'file = "y"\n',
            "a": "",
            "../y/b": "",
        },
        ["artifacts/x/artifact.toml: file is given, and a lies beside it: keep one"],
    ),
    "data of nobody": (
        "artifact",
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "e"\n'
            'file = "y"\n',
        },
        ["artifacts/x/artifact.toml: file: no artifact 'y'"],
    ),
    "data of its own": (
        "artifact",
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "e"\n'
            'file = "x"\n',
        },
        ["artifacts/x/artifact.toml: file: no artifact 'x'"],
    ),
    "data of a circle": (
        "artifact",
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "e"\n'
            'file = "y"\n',
            "../y/artifact.toml": 'type = "environment"\nenvironment_name = "e"\n'
            'file = "x"\n',
        },
        ["artifacts/x/artifact.toml: file: 'y' is no file artifact (environment)"],
    ),
    "data of a universe": (
        "artifact",
        {
            "artifact.toml": 'type = "environment"\nenvironment_name = "e"\n'
            'file = "y"\n',
            "../y/a": "",
            "../y/b": "",
        },
        [
            (
                "artifacts/x/artifact.toml: file: 'y' is no file artifact"
                " (file_artifact_universe)"
            )
        ],
    ),
    "a file that is two": (
        "artifact",
        {"artifact.toml": 'type = "file"\n', "a": "", "b": ""},
        ["artifacts/x: a file artifact holds one file, not 2"],
    ),
    "no SKILL.md": ("skill", {"skill.md": ""}, ["skills/x: needs a SKILL.md"]),
    "a binary SKILL.md": (
        "skill",
        {"SKILL.md": b"\xff"},
        ["skills/x/SKILL.md: is not UTF-8 (byte 0)"],
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_entry_that_cannot_be_used(tmp_path: Path, case: str) -> None:
    kind, files, expected = BROKEN[case]
    bundle = bundle_of(tmp_path, {f"{kind}s/x/{n}": text for n, text in files.items()})
    for _ in range(2):  # the answer is kept
        with pytest.raises(TaskLoadError) as caught:
            getattr(bundle, kind)("x")
        assert [str(problem) for problem in caught.value.problems] == expected
        assert {problem.rule for problem in caught.value.problems} == {"13.5"}


def test_a_broken_entry_is_told_once_by_the_tasks_that_use_it(tmp_path: Path) -> None:
    files = {
        "artifacts/rules/more.md": "",
        "artifacts/rules/artifact.toml": 'type="file"',
    }
    uses = [load(id=name, agent_name="clerk", artifact_id="rules") for name in "ab"]
    with pytest.raises(TaskLoadError) as caught:
        load_steps(tmp_path, [agent_up(), *uses], files=files)
    assert str(caught.value) == "artifacts/rules: a file artifact holds one file, not 2"
    assert load_steps(tmp_path, [agent_up()], files=files).warnings == ()


def test_unknown_keys_of_an_entry(tmp_path: Path) -> None:
    files = {"envs/library/env.toml": COMMAND + 'environment = "a"\nzzz = 1\n'}
    task = load_steps(tmp_path, [env_up()], files=files)
    assert task.warnings == (
        (
            "envs/library/env.toml: unknown key environment (did you mean"
            " environment_name?)"
        ),
        "envs/library/env.toml: unknown key zzz",
    )
    assert load_steps(tmp_path, [agent_up()], files=files).warnings == ()


def test_links_may_not_leave_the_bundle(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "d").mkdir(parents=True)
    (outside / "secret").write_text("s")
    root = tmp_path / "bundle"
    bundle_of(root, {"artifacts/x/a": "1", "artifacts/y/b": "2", "envs/e/env.toml": ""})
    (root / "artifacts/x/secret").symlink_to(outside / "secret")
    (root / "artifacts/x/d").symlink_to(outside / "d")
    (root / "artifacts/x/gone").symlink_to("nowhere")
    (root / "artifacts/x/loop").symlink_to(".")
    (root / "artifacts/x/fine").symlink_to("../y")
    (root / "artifacts/all").symlink_to(outside)
    (root / "skills").mkdir()
    (root / "skills/s").mkdir()
    (root / "skills/s/SKILL.md").symlink_to(outside / "secret")
    (root / "envs/e/Dockerfile").symlink_to(outside / "secret")
    os.mkfifo(root / "artifacts/x/pipe")
    bundle = Bundle(root, others=tuple)
    leaves = "leaves the bundle; copy what it points at"

    def problems(kind: str, name: str) -> list[str]:
        with pytest.raises(TaskLoadError) as caught:
            getattr(bundle, kind)(name)
        return sorted(str(problem) for problem in caught.value.problems)

    assert problems("artifact", "x") == [
        f"artifacts/x/d: {leaves}",
        "artifacts/x/gone: links to nothing",
        "artifacts/x/loop: links form a cycle; remove the link",
        "artifacts/x/pipe: is neither a file nor a folder",
        f"artifacts/x/secret: {leaves}",
    ]
    assert problems("artifact", "all") == [f"artifacts/all: {leaves}"]
    assert problems("skill", "s")[0] == f"skills/s/SKILL.md: {leaves}"
    assert problems("env", "e") == [f"envs/e/Dockerfile: {leaves}"]


def test_a_link_inside_the_bundle_is_followed(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path, {"artifacts/x/a": "1", "artifacts/y/b": "2"})
    (tmp_path / "artifacts/x/more").symlink_to("../y")
    artifact = bundle.artifact("x")
    assert artifact is not None
    assert artifact.files == ("a", "more/b")


@pytest.mark.parametrize("name", ["..", ".", "", "x/..", "a/b", "/", ".hidden"])
def test_only_names_of_folders_are_ids(tmp_path: Path, name: str) -> None:
    files = {
        "envs/x/Dockerfile": "",
        "envs/.hidden/Dockerfile": "",
        "envs/Dockerfile": "",
    }
    assert bundle_of(tmp_path, dict(files)).env(name) is None


def test_a_bundle_without_folders_has_nothing(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path, others=tuple)
    assert bundle.env("x") is None
    assert bundle.names("artifact") == ()
    assert bundle.near("agent", "x") is None


ALIASES = '[envs]\nlibrary = ["books", "lib"]\n[agents]\nclerk = ["c-1"]\n'


def test_aliases_stand_for_folders(tmp_path: Path) -> None:
    write_bundle(tmp_path, files={"aliases.toml": ALIASES})
    bundle = Bundle(tmp_path, others=tuple)
    assert bundle.env("lib") == bundle.env("library")
    assert bundle.agent("c-1") == bundle.agent("clerk")
    assert bundle.agent("lib") is None
    assert bundle.near("env", "book") == "books"


def test_a_step_keeps_the_alias(tmp_path: Path) -> None:
    steps = [env_up(env_id="books"), agent_up(env_ids=["books"])]
    task = load_steps(tmp_path, steps, files={"aliases.toml": ALIASES})
    assert task.steps[0].env_id == "books"
    assert task.warnings == ()


BAD_ALIASES: dict[str, tuple[str, str]] = {
    "upper case": (
        '[envs]\nlibrary = ["Lib"]\n',
        (
            "aliases.toml: [envs].library: 'Lib' is no alias: use lowercase letters, digits"
            " and '-', at most 64, without '-' at either end"
        ),
    ),
    "a hyphen at the end": ('[envs]\nlibrary = ["lib-"]\n', "'lib-' is no alias"),
    "65 letters": (f'[envs]\nlibrary = ["{"a" * 65}"]\n', "is no alias"),
    "a number": ("[envs]\nlibrary = [3]\n", "3 is no alias"),
    "no list": (
        '[envs]\nlibrary = "lib"\n',
        "aliases.toml: [envs].library: must be an array of aliases",
    ),
    "no folder": (
        '[envs]\nmail = ["m"]\n',
        "aliases.toml: [envs].mail: the bundle has no envs/mail",
    ),
    "no table": (
        '[skills]\nfines = ["f"]\n',
        "aliases.toml: skills: is no table of this file: it has [agents] and [envs]",
    ),
    "two folders": (
        '[agents]\nclerk = ["a"]\nreader = ["a"]\n',
        "aliases.toml: [agents].reader: 'a' already stands for clerk",
    ),
    "a folder's name": (
        '[agents]\nclerk = ["reader"]\n',
        "aliases.toml: [agents].clerk: 'reader' is the name of a folder",
    ),
    "no toml": ("[", "aliases.toml: is not valid TOML: "),
}


@pytest.mark.parametrize("case", BAD_ALIASES)
def test_broken_aliases_are_told_to_who_may_need_them(
    tmp_path: Path, case: str
) -> None:
    text, expected = BAD_ALIASES[case]
    write_bundle(tmp_path, files={"aliases.toml": text})
    bundle = Bundle(tmp_path, others=tuple)
    with pytest.raises(TaskLoadError) as caught:
        bundle.env("lib")
    assert expected in str(caught.value)
    assert bundle.env("library") is not None
    assert bundle.artifact("lib") is None


def test_where_an_id_is_looked_up(tmp_path: Path) -> None:
    here = bundle_of(
        tmp_path / "here",
        {
            "envs/own/Dockerfile": "",
            "aliases.toml": '[envs]\nown = ["short", "taken"]\n',
        },
    )
    there = bundle_of(
        tmp_path / "there",
        {
            "envs/own/Dockerfile": "",
            "envs/both/Dockerfile": "",
            "envs/taken/Dockerfile": "",
            "envs/far/Dockerfile": "",
            "aliases.toml": '[envs]\nfar = ["distant"]\n',
        },
    )
    registered = EnvEntry("both", tmp_path)
    bundle = Bundle(here.root, registered=[registered], others=lambda: (there,))

    def folder(name: str) -> Path:
        env = bundle.env(name)
        assert env is not None
        return env.folder.relative_to(tmp_path)

    assert folder("own") == Path("here/envs/own")
    assert bundle.env("both") is registered
    assert folder("taken") == Path("there/envs/taken")
    assert folder("short") == Path("here/envs/own")
    assert folder("distant") == Path("there/envs/far")
    assert bundle.agent("both") is None
    assert bundle.near("env", "distan") == "distant"


@pytest.mark.parametrize("group", ["pytest_harbor.bundles", "agent_env.bundles"])
def test_bundles_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    info = tmp_path / "desk_bundles-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: desk-bundles\n")
    (info / "entry_points.txt").write_text(
        f"[{group}]\ndesk = desk_bundles.data\ngone = desk_bundles\nnone = no_package\n"
    )
    package = tmp_path / "desk_bundles"
    write_bundle(package / "data/desk")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    installed_bundles.cache_clear()
    try:
        (bundle,) = installed_bundles()
        assert bundle.root == package / "data/desk"
        env = Bundle(tmp_path).env("library")
        assert env is not None
        assert env.folder == package / "data/desk/envs/library"
    finally:
        installed_bundles.cache_clear()
    assert "desk_bundles" not in sys.modules
