"""What a Dockerfile means on the local sandbox: reading, words, files, mapping. All pure."""

from __future__ import annotations

import hashlib
import os
import sys
import tarfile
from pathlib import Path

import pytest

from pytest_harbor.errors import UnsupportedByProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.install_script import InstallScript
from pytest_harbor.sandboxes.local.images.build import layers_of
from pytest_harbor.sandboxes.local.images.context import Context, Owner
from pytest_harbor.sandboxes.local.images.images import LocalImages
from pytest_harbor.sandboxes.local.images.mapping import ImageMap
from pytest_harbor.sandboxes.local.images.recipe import Copy, MakeFolder, Run, read
from pytest_harbor.sandboxes.local.images.words import WordError, expand
from pytest_harbor.sandboxes.local.stack import places

ROOT = Owner()
VALUES = {"A": "one", "EMPTY": "", "B": "two words"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("plain", "plain"),
        ("$A", "one"),
        ("${A}x", "onex"),
        ("$Ax", ""),
        ("x$", "x$"),
        ("$1$A", "one"),
        ("a\\ b", "a b"),
        ("\\$A", "$A"),
        ("'$A'", "$A"),
        ('"$A and \\"\\$B\\""', 'one and "$B"'),
        ('"a\\b"', "a\\b"),
        ("${NO:-other}", "other"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY-other}", ""),
        ("${NO-$A}", "one"),
        ("${A:+set}", "set"),
        ("${EMPTY:+set}", ""),
        ("${EMPTY+set}", "set"),
        ("${NO:-${A:+in}}", "in"),
        ("${A:?bad}", "one"),
    ],
)
def test_words(text, value):
    assert expand(text, VALUES) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('"open', "quote is not closed"),
        ("'open", "quote is not closed"),
        ("${A", "not known"),
        ("${A:-x", "'}' is missing"),
        ("${A#one}", "not known"),
        ("${NO:?say it}", "NO: say it"),
    ],
)
def test_words_that_cannot_be_read(text, why):
    with pytest.raises(WordError, match=why):
        expand(text, VALUES)


def test_heredocs_keep_their_quotes():
    text = 'it\'s "$A" \\$A\n'
    assert expand(text, VALUES, keep_quotes=True) == 'it\'s "one" \\$A\n'


def plan(text):
    return read(text, "environment/Dockerfile", "/usr/bin:/bin")


def test_the_state_of_a_whole_file():
    recipe = plan(
        "ARG TAG=12\n"
        "FROM debian:${TAG} AS only\n"
        "ENV EARLY=x$TAG\n"
        "ARG TAG\n"
        "ARG MODE=fast\n"
        "ENV A=1 B=$A PATH=/x:$PATH MODE=slow\n"
        "ENV OLD old style\n"
        "WORKDIR /srv\n"
        "WORKDIR app\n"
        "RUN echo $A && \\\n  # a comment\n  true\n"
        'SHELL ["/bin/bash", "-ec"]\n'
        "USER 1000\n"
        "RUN id\n"
        'RUN ["/bin/true", "$A"]\n'
        "LABEL a=b\n"
        "EXPOSE 80\n"
        "VOLUME /data\n"
        'ENTRYPOINT ["/init"]\n'
        "CMD serve $A\n"
    )
    assert (recipe.base, recipe.base_line) == ("debian:12", 2)
    env = {"A": "1", "B": "", "PATH": "/x:/usr/bin:/bin", "MODE": "slow"}
    assert recipe.env == {**env, "OLD": "old style", "EARLY": "x"}
    assert (recipe.workdir, recipe.user) == ("/srv/app", "1000")
    assert recipe.start_command == ("/init", "/bin/bash", "-ec", "serve $A")
    folders = [one.path for one in recipe.steps if isinstance(one, MakeFolder)]
    assert folders == ["/srv", "/srv/app"]
    first, second, third = [one for one in recipe.steps if isinstance(one, Run)]
    assert first.line == 10
    assert first.argv == ("/bin/sh", "-c", "echo $A &&   true")
    assert first.env == {**recipe.env, "TAG": "12"}
    assert (first.user, first.workdir) == (None, "/srv/app")
    assert second.argv == ("/bin/bash", "-ec", "id")
    assert (second.user, third.argv) == ("1000", ("/bin/true", "$A"))
    [note] = recipe.notes
    assert note.endswith("ignores EXPOSE (line 18), VOLUME (line 19)")


def test_layers_end_with_each_run():
    recipe = plan("FROM x\nCOPY a /\nRUN 1\nRUN 2\nWORKDIR /a\nCOPY a /\n")
    kinds = [[type(step) for step in layer] for layer in recipe.layers]
    assert kinds == [[Copy, Run], [Run], [MakeFolder, Copy]]
    assert plan("FROM x\nENV A=1\n").layers == ()


@pytest.mark.parametrize(
    ("instruction", "target"),
    [
        ("COPY a b", "/w/b"),
        ("COPY a b/", "/w/b/"),
        ("COPY a .", "/w/"),
        ("COPY a ./", "/w/"),
        ("COPY a ..", "/"),
        ("COPY a /x/../y", "/y"),
        ("COPY a /../y", "/y"),
        ("COPY a b /c/", "/c/"),
        ('COPY ["a b", "/c d"]', "/c d"),
        ("ADD a $HERE/", "/here/"),
    ],
)
def test_targets(instruction, target):
    recipe = plan(f"FROM x\nWORKDIR /w\nENV HERE=/here\n{instruction}\n")
    [copy] = [one for one in recipe.steps if isinstance(one, Copy)]
    assert copy.target == target


def test_heredocs():
    recipe = plan(
        "FROM x\nARG A=1\n"
        "RUN <<EOF\necho $A\nEOF\n"
        "RUN <<-EOF\n\techo tab\n\tEOF\n"
        "RUN cat <<EOF > /y\nfile\nEOF\n"
        "COPY <<ONE <<'TWO' /d/\n$A\nONE\n$A\nTWO\n"
    )
    alone, chomped, piped, copy = recipe.steps
    assert alone.argv[2] == "echo $A\n"
    assert chomped.argv[2] == "echo tab\n"
    assert piped.argv[2] == "cat <<EOF > /y\nfile\nEOF\n"
    assert copy.texts == (("ONE", "1\n"), ("TWO", "$A\n"))


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("FROM x\nFROM y\n", 2, "second FROM"),
        ("FROM x\nCOPY --from=y /a /b\n", 2, "COPY --from"),
        ("FROM x\nCOPY --link a /b\n", 2, "COPY --link"),
        ("FROM x\nCOPY --chmod=u+x a /b\n", 2, "no octal number"),
        ("FROM x\nRUN --mount=type=cache,target=/c x\n", 2, "RUN --mount"),
        ("FROM x\nRUN --network=none x\n", 2, "RUN --network"),
        ("FROM x\nRUN <<E\n#!/bin/python\nE\n", 2, "'#!' line"),
        ("FROM x\n\nADD https://example.org/a /a\n", 3, "nothing is downloaded"),
        ("FROM x\nADD git@example.org:a/b /a\n", 2, "nothing is downloaded"),
        ("FROM x\nADD --checksum=x a /a\n", 2, "ADD --checksum"),
        ("FROM x\nONBUILD RUN x\n", 2, "ONBUILD"),
        ("FROM x\nUSER a:b\n", 2, "USER a:b"),
        ("FROM --platform=linux/s390x x\n", 1, "--platform=linux/s390x"),
        ("FROM x\nCOPY ../a /b\n", 2, "leads out of the build context"),
        ("FROM x\nCOPY a/../../b /b\n", 2, "leads out of the build context"),
        ("FROM x\nCOPY /.. /b\n", 2, "leads out of the build context"),
        ("FROM x\nCOPY a b /c\n", 2, "target that ends in /"),
        ("FROM x\nCOPY a\n", 2, "needs a source"),
        ("FROM x\nRUN\n", 2, "needs a command"),
        ("FROM x\nSHELL bash\n", 2, "SHELL needs"),
        ("FROM x\nUSER\n", 2, "USER needs"),
        ("FROM x\nWORKDIR $NO\n", 2, "WORKDIR needs"),
        ('FROM x\nENV A="b\n', 2, "quote is not closed"),
        ("FROM x\nFROMAGE\n", 2, "FROMAGE: there is no such instruction"),
        ("RUN x\nFROM x\n", 1, "RUN before FROM"),
        ("# escape=`\nFROM x\n", 1, "escape character"),
        ("FROM x\nRUN echo \udcff\n", 2, "not UTF-8"),
        ("FROM x\n\n# \udce9\n", 3, "not UTF-8"),
        ("FROM x\nRUN echo a\0b\n", 2, "not UTF-8"),
    ],
)
def test_refused_by_name_and_line(text, line, what):
    with pytest.raises(UnsupportedByProvider) as caught:
        plan(text)
    assert str(caught.value).startswith(f"environment/Dockerfile, line {line}: ")
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ["FROM x\nRUNN x\n", "RUN x\nFROM x\n"])
def test_what_docker_cannot_do_either_is_not_sent_there(text):
    with pytest.raises(UnsupportedByProvider) as caught:
        plan(text)
    assert "--harbor-sandbox docker" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "ARG A=1\n", "FROM x\nENV A\n"])
def test_what_is_no_dockerfile(text):
    with pytest.raises(UnsupportedByProvider, match=r"^environment/Dockerfile"):
        plan(text)


def test_the_parser_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "dockerfile", None)
    with pytest.raises(UnsupportedByProvider, match=r"pytest-harbor\[local\]"):
        plan("FROM x\n")


@pytest.mark.parametrize(
    ("image", "target"),
    [
        ("debian:bookworm-slim", "host"),
        ("debian", "host"),
        ("registry.example:5000/debian", "/tree"),
        ("ubuntu:24.04", None),
        ("debian@sha256:abc", None),
    ],
)
def test_mapping(image, target):
    pairs = (("debian:*", "host"), ("registry.example:5000/*:latest", "/tree"))
    assert ImageMap(pairs).find(image) == target


@pytest.mark.parametrize(
    ("image", "line"),
    [
        ("debian:12", "debian:* = host"),
        ("a.b:5000/c/d@sha256:0", "a.b:5000/c/d:* = host"),
    ],
)
def test_an_unmapped_image_comes_with_the_line_to_add(tmp_path, image, line):
    (tmp_path / "Dockerfile").write_text(f"\nFROM {image}\n")
    images = LocalImages([("other", "host")])
    for spec in (EnvironmentSpec(build_context=tmp_path), EnvironmentSpec(image=image)):
        with pytest.raises(UnsupportedByProvider) as caught:
            images.check(spec)
        assert line in str(caught.value)
        assert "harbor_local_images" in str(caught.value)


def test_agents_are_not_installed_for_another_root_file_system():
    spec = EnvironmentSpec(image="x", install=InstallScript("tool", "true"))
    with pytest.raises(UnsupportedByProvider, match="agent tool is installed for"):
        LocalImages([("x", "/tree")]).check(spec)
    LocalImages([("x", "host")]).check(spec)


def copied(tmp_path, instruction, *, is_folder=False, owner=ROOT):
    """Names and kinds of what an instruction copies, and the members themselves."""
    recipe = plan(f"FROM x\nWORKDIR /w\n{instruction}\n")
    [copy] = [one for one in recipe.steps if isinstance(one, Copy)]
    context = Context(tmp_path, "environment/Dockerfile")
    packed = context.pack(copy, copy.target, is_folder=is_folder, owner=owner)
    return {
        info.name: (info, content.read() if content else None)
        for info, content in packed
        if info.name != "w"  # the working directory, if it is not there
    }


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def context(tmp_path):
    for name in ("a.txt", "b.txt", "c.md", "d/x.py", "d/e/y.py", "d/e/z.txt"):
        write(tmp_path / name, name)
    (tmp_path / "d/link").symlink_to("/etc/passwd")
    (tmp_path / "a.txt").chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("instruction", "is_folder", "names"),
    [
        ("COPY a.txt b", False, {"w/b"}),
        ("COPY a.txt b/", True, {"w/b", "w/b/a.txt"}),
        ("COPY *.txt b/", True, {"w/b", "w/b/a.txt", "w/b/b.txt"}),
        ("COPY [ab].txt c.md b/", True, {"w/b", "w/b/a.txt", "w/b/b.txt", "w/b/c.md"}),
        ("COPY d/*/y.py b", False, {"w/b"}),
        ("COPY d/e b", False, {"w/b", "w/b/y.py", "w/b/z.txt"}),
        ("COPY /d/e/ /", True, {"", "y.py", "z.txt"}),
    ],
)
def test_copied_files(context, instruction, is_folder, names):
    assert set(copied(context, instruction, is_folder=is_folder)) == names


def test_links_below_a_folder_stay_links(context):
    info, _ = copied(context, "COPY d t")["w/t/link"]
    assert (info.type, info.linkname) == (tarfile.SYMTYPE, "/etc/passwd")


def test_modes_and_owners(context):
    plain, content = copied(context, "COPY a.txt t")["w/t"]
    assert (plain.mode, plain.uid, content) == (0o755, 0, b"a.txt")
    own = copied(context, "COPY --chmod=600 a.txt t", owner=Owner(5, 6))["w/t"][0]
    assert (own.mode, own.uid, own.gid) == (0o600, 5, 6)
    with_text = copied(context, "COPY <<E t\nhi\nE", owner=Owner(5, 6))["w/t"]
    assert (with_text[0].uid, with_text[1]) == (5, b"hi\n")


def test_dockerignore(context):
    write(context / "d/e/b.txt", "patterns start at the top")
    (context / ".dockerignore").write_text(
        "# comment\n*.txt\n!b.txt\nd/**/z.*\n**/x.py\n/nothing\n"
    )
    names = {
        name for name in copied(context, "COPY . t") if name != "w/t/.dockerignore"
    }
    assert names == {
        "w/t",
        "w/t/b.txt",
        "w/t/c.md",
        "w/t/d",
        "w/t/d/e",
        "w/t/d/e/y.py",
        "w/t/d/e/b.txt",
    } | {"w/t/d/link"}
    with pytest.raises(
        UnsupportedByProvider, match=r"a.txt: no such file.*dockerignore"
    ):
        copied(context, "COPY a.txt t")


def test_an_exception_reaches_into_an_ignored_folder(context):
    (context / ".dockerignore").write_text("d\n!d/e/y.py\n")
    assert set(copied(context, "COPY d t")) == {"w/t", "w/t/e", "w/t/e/y.py"}


@pytest.mark.parametrize(
    "ignore",
    [
        "*",
        "*\n!d",
        "*\n!d/e",
        "**\n!d/x.py",
        "d/**\n!d/e/y.py",
        "d/*\n!d/x.py",
        "**/e",
        "d/e/\n",
        "./a.txt\n/c.md",
        "?.txt",
        "[a-b].txt\n!a.txt",
        "**/*.txt\n!d/e/z.txt",
        "!a.txt\na.txt",
        "d\n!d/e\nd/e/z.txt",
    ],
)
def test_dockerignore_means_what_it_means_to_docker(context, ignore):
    from docker.utils.build import exclude_paths

    (context / ".dockerignore").write_text(ignore)
    patterns = [line for line in ignore.splitlines() if line]
    sent = exclude_paths(str(context), patterns)
    files = {name for name in sent if not (context / name).is_dir()}
    files -= {"Dockerfile", ".dockerignore"}  # which docker always sends
    members = Context(context, "D").members(context)
    found = {
        name for name, path, _ in members if path.is_symlink() or not path.is_dir()
    }
    assert found - {".dockerignore"} == files


@pytest.mark.parametrize(
    ("instruction", "why"),
    [
        ("COPY none t", "none: no such file in the build context"),
        ("COPY *.none t/", "no such file"),
        ("COPY out t", "link out of the build context"),
        ("COPY out/passwd t", "link out of the build context"),
        ("COPY out/pass* t", "no such file"),
        ("COPY dangling t", "no such file"),
        ("COPY *.txt t", "target that ends in /"),
        ("COPY fifo t", "neither a file nor a folder"),
        ("COPY with-fifo t", "neither a file"),
        ("ADD tree.tar.gz t", "is an archive"),
        ("ADD tree.zst t", "is an archive"),
        ("COPY [z-a].txt t/", "not a pattern: bad character range z-a"),
    ],
)
def test_files_that_cannot_be_copied(context, instruction, why):
    (context / "out").symlink_to("/etc")
    (context / "dangling").symlink_to("nowhere")
    os.mkfifo(context / "fifo")
    (context / "with-fifo").mkdir()
    os.mkfifo(context / "with-fifo/inner")
    with tarfile.open(context / "tree.tar.gz", "w:gz") as tar:
        tar.add(context / "a.txt", "a.txt")
    (context / "tree.zst").write_bytes(b"\x28\xb5\x2f\xfd rest")
    with pytest.raises(UnsupportedByProvider, match=why):
        copied(context, instruction)


@pytest.mark.parametrize("name", ["Dockerfile", ".dockerignore"])
def test_what_says_how_to_build_is_no_link_out(context, name):
    (context / "Dockerfile").write_text("FROM x\nCOPY a.txt t\n")
    (context / name).unlink(missing_ok=True)
    (context / name).symlink_to("/etc/hostname")
    images = LocalImages([("x", "host")])

    def use():
        images.check(EnvironmentSpec(build_context=context))
        copied(context, "COPY a.txt t")

    with pytest.raises(UnsupportedByProvider, match=f"{name} is a link out"):
        use()


@pytest.mark.parametrize("pattern", ["[z-a]", "a\\"])
def test_a_pattern_that_is_none_is_told(context, pattern):
    (context / ".dockerignore").write_text(f"{pattern}\n")
    with pytest.raises(
        UnsupportedByProvider, match=r"\.dockerignore: a pattern is none"
    ):
        copied(context, "COPY . t/")


def test_another_platform_is_refused(context):
    spec = EnvironmentSpec(image="x", platform="linux/s390x")
    with pytest.raises(UnsupportedByProvider, match=r"s390x.*this machine alone"):
        LocalImages([("x", "host")]).check(spec)


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b\x08\x00", b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9, b"BZh9"]
)
def test_a_broken_archive_is_a_file_as_in_docker(context, content):
    (context / "broken").write_bytes(content)
    assert set(copied(context, "ADD broken t")) == {"w/t"}


def test_a_link_inside_is_followed(context):
    (context / "inside").symlink_to("d/e")
    assert set(copied(context, "COPY inside t")) == {"w/t", "w/t/y.py", "w/t/z.txt"}
    assert set(copied(context, "ADD a.txt t")) == {"w/t"}


def digest(context, instruction="COPY . t"):
    [copy] = plan(f"FROM x\n{instruction}\n").steps
    found = hashlib.sha256()
    Context(context, "D").digest(copy, found)
    return found.hexdigest()


@pytest.mark.parametrize(
    "change",
    [
        lambda c: (c / "a.txt").write_text("other"),
        lambda c: (c / "a.txt").chmod(0o644),
        lambda c: (c / "a.txt").rename(c / "other"),
        lambda c: (c / "d/new").mkdir(),
        lambda c: ((c / "d/link").unlink(), (c / "d/link").symlink_to("x")),
    ],
    ids=["bytes", "mode", "name", "folder", "link"],
)
def test_what_is_copied_decides_over_the_hash(context, change):
    before, other = digest(context), digest(context, "COPY c.md t")
    os.utime(context / "b.txt", (1, 1))
    assert digest(context) == before
    change(context)
    assert digest(context) != before
    assert digest(context, "COPY c.md t") == other


def test_all_that_came_before_decides_over_a_layer(context):
    recipe = plan("FROM x\nRUN one\nRUN two\n")
    other = plan("FROM x\n# moved\nRUN zero\nRUN two\n")
    moved = plan("FROM x\n\n# moved\nRUN one\nRUN two\n")
    files = Context(context, "D")

    def keys(recipe, origin="base"):
        return [layer.key for layer in layers_of(recipe, files, origin)]

    assert keys(recipe) == keys(moved)
    assert not set(keys(recipe)) & set(keys(recipe, "another base"))
    assert not set(keys(recipe)) & set(keys(other))


def test_every_place_of_a_mount_is_seen():
    arguments = ["bwrap", "--tmpfs", "/", "--overlay-src", "/usr", "--tmp-overlay"]
    arguments += ["/usr", "--overlay-src", "/a", "--overlay", "/up", "/work", "/b"]
    arguments += ["--perms", "0755", "--dir", "/c", "--ro-bind", str(Path(__file__))]
    arguments += ["/d/file", "--proc", "/proc", "--ro-bind", "/x", "/proc/sys"]
    arguments += ["--", "sh", "--dir", "/no"]
    folders = dict.fromkeys(("/", "/usr", "/b", "/c", "/proc"), False)
    assert places(arguments) == {**folders, "/d/file": True}
