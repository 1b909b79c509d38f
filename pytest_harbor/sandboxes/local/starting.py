"""How one local sandbox starts: in namespaces of its own, or in place."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Sequence

import anyio

from pytest_harbor.errors import SandboxStartFailed, TransferFailed
from pytest_harbor.sandboxes.environment import EnvironmentSpec
from pytest_harbor.sandboxes.local import guards, inplace, userland
from pytest_harbor.sandboxes.local.base import Base
from pytest_harbor.sandboxes.local.broker import wire
from pytest_harbor.sandboxes.local.client import BrokerClient, receive
from pytest_harbor.sandboxes.local.images.build import empty_tar
from pytest_harbor.sandboxes.local.images.images import Image
from pytest_harbor.sandboxes.local.sandbox import (
    OPEN_FOLDERS,
    Facts,
    LocalSandbox,
)
from pytest_harbor.sandboxes.local.stack import Stack

_numbers = itertools.count(1)


async def in_place(
    base: Base, spec: EnvironmentSpec, name: str
) -> inplace.InPlaceSandbox:
    """Start one in the container that we run in; its ground is taken.

    Raises:
        SandboxStartFailed: the broker says why.
        SandboxLost: the broker is gone.
    """
    workdir = spec.workdir or userland.DEFAULT_WORKDIR
    await anyio.Path(workdir).mkdir(parents=True, exist_ok=True)
    identity = _identity(name)
    request = {"op": "settle", "place": identity}
    channel = base.broker.request(request)
    await _await_start(base.broker, channel, name)
    facts = Facts(
        id=identity,
        workdir=workdir,
        env={"PATH": inplace.command_path(), **spec.env},
        tools=inplace.found_tools(),
        enter="the sandbox is this container itself",
        one_uid=False,
    )
    return inplace.InPlaceSandbox(base.broker, channel, facts, spec.user)


async def in_namespaces(
    base: Base,
    spec: EnvironmentSpec,
    name: str,
    *,
    binds: Sequence[userland.Bind] = (),
    image: Image | None = None,
    stack: Stack | None = None,
) -> LocalSandbox:
    """Start one of ``image``, or of the host's userland where there is none.

    ``binds`` are laid over it; ``stack`` is given for the build of an image.
    Raises as :func:`in_place`.
    """
    land = base.land
    assert land is not None
    own_network = spec.network == "no-network"
    arguments = userland.command_line(land, spec, binds)
    if image is not None:
        skeleton = guards.skeleton(base.folder)
        stack = Stack(skeleton, image.base, image.layers)
    if stack is not None:
        stack = guards.guarded(arguments, stack, base.folder, land.etc)
    identity = _identity(name)
    request = {
        "op": "start",
        "place": identity,
        "namespaces": userland.namespaces(
            rootless=land.rootless, own_network=own_network
        ),
        "argv": arguments(stack),
    }
    channel = base.broker.request(request)
    reply = await _await_start(base.broker, channel, name)
    said = image or Image(None, workdir=userland.DEFAULT_WORKDIR)
    facts = Facts(
        id=identity,
        workdir=spec.workdir or said.workdir,
        env={"PATH": land.path, **said.env, **spec.env},
        tools=frozenset(reply["tools"]),
        enter=_how_to_enter(reply["pid"], land.rootless, own_network),
        own_network=own_network,
        one_uid=land.rootless,
        start_command=said.start_command,
        warnings=said.notes,
    )
    user = said.user if spec.user is None else spec.user
    return LocalSandbox(base.broker, channel, facts, user)


async def make_places(sandbox: LocalSandbox) -> None:
    """Make the folders of a task from inside: an image's links end there.

    Raises:
        SandboxStartFailed: something of the image is in the way; it was stopped.
    """
    try:
        with empty_tar() as nothing:
            folders = [sandbox.workdir]
            await sandbox.put(nothing, folders=folders, empty=OPEN_FOLDERS)
    except BaseException as error:
        await sandbox.stop()
        if isinstance(error, TransferFailed):
            raise SandboxStartFailed(str(error), is_final=True) from error
        raise


async def _await_start(
    broker: BrokerClient, channel: socket.socket, name: str
) -> wire.Message:
    try:
        reply = await receive(channel)
    except BaseException:
        channel.close()
        raise
    if reply is not None and "pid" in reply:
        return reply
    channel.close()
    why = broker.epitaph() if reply is None else reply["error"]
    raise SandboxStartFailed(f"sandbox {name} did not start: {why}")


def _identity(name: str) -> str:
    return f"{name}-{os.getpid()}-{next(_numbers)}"


def _how_to_enter(pid: int, rootless: bool, own_network: bool) -> str:
    options = "-m -p -i -u" + (" -n" if own_network else "")
    if rootless:
        options += " -U --preserve-credentials"
    return f"nsenter -t {pid} {options} /bin/sh   (to remove it: kill -9 {pid})"
