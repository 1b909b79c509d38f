"""The object store: a folder, or what fsspec reaches."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import anyio
import pytest

from pytest_harbor.errors import SettingsError
from pytest_harbor.graphs.objects import FolderStore, ObjectStore, open_store

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["folder", "file url", "memory"])
def store(request, tmp_path: Path) -> ObjectStore:
    places = {
        "folder": str(tmp_path / "a b"),
        "file url": (tmp_path / "a b").as_uri(),
        "memory": f"memory://{uuid4()}/objects",
    }
    return open_store(places[request.param], tmp_path)


async def test_what_was_put_can_be_got_and_listed(store, tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"\0file")
    first = await store.put("runs/1/a ü#?.txt", b"\xff bytes")
    second = await store.put("runs/1/b/c", source)
    third = await store.put_json("runs/10/x.json", {"a": ["ü", 1]})
    assert await store.get(first) == b"\xff bytes"
    assert await store.get(second) == b"\0file"
    assert (await store.get(third)).decode() == '{\n "a": [\n  "ü",\n  1\n ]\n}'
    assert await store.list("runs/1/") == (first, second)
    assert await store.list("runs/1") == (first, second, third)
    assert await store.list("runs/1/b") == (second,)
    assert await store.list("nowhere/at/all") == ()
    await store.fetch(second, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"\0file"


async def test_an_object_is_never_overwritten(store):
    url = await store.put("a/b", b"first")
    with pytest.raises(FileExistsError):
        await store.put("a/b", b"second")
    assert await store.get(url) == b"first"
    assert await store.list("") == (url,), "nothing half-written is left"


@pytest.mark.parametrize(
    "key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/.", "a/", "a\0b"]
)
async def test_a_key_stays_inside(store, key):
    with pytest.raises(ValueError, match="is no key"):
        await store.put(key, b"")


async def test_a_url_of_elsewhere_is_refused(store, tmp_path):
    (tmp_path / "secret").write_text("secret")
    url = await store.put("a", b"")
    foreign = [
        (tmp_path / "secret").as_uri(),
        url.removesuffix("a") + "../secret",
        "https://elsewhere/a",
    ]
    for other in foreign:
        with pytest.raises((ValueError, FileNotFoundError)):
            await store.get(other)


async def test_what_lies_beside_a_remote_store_is_not_of_it(tmp_path):
    outside = open_store(f"memory://{uuid4()}", tmp_path)
    secret = await outside.put("secret", b"x")
    inside = open_store(f"{secret.removesuffix('secret')}objects", tmp_path)
    with pytest.raises(ValueError, match="is no object of the store"):
        await inside.get(secret)


async def test_one_that_is_not_there_is_an_os_error(store):
    url = await store.put("a", b"")
    with pytest.raises(FileNotFoundError):
        await store.get(url + "b")


async def test_writers_of_one_key_do_not_meet(tmp_path):
    store = FolderStore(tmp_path)
    results = []

    async def put(number: int) -> None:
        try:
            results.append(await store.put("x", str(number).encode()))
        except FileExistsError:
            results.append(None)

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(put, number)
    assert len([url for url in results if url]) == 1


async def test_the_default_is_a_folder_of_the_run(tmp_path):
    store = open_store(None, tmp_path / "objects")
    url = await store.put("k", b"1")
    assert url == (tmp_path / "objects" / "k").as_uri()


async def test_a_scheme_that_nobody_knows_is_a_settings_error(tmp_path):
    with pytest.raises(SettingsError, match="object store nope://x"):
        open_store("nope://x", tmp_path)
