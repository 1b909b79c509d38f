"""The run behind the step-task fixtures of a test: a task file's, or one by hand."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_harbor.collection import markers
from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.handles import is_async_test
from pytest_harbor.collection.places import run_places
from pytest_harbor.collection.step_files import StepTaskFile, bundle, load, step_types
from pytest_harbor.collection.step_handles import Call, StepRunHandle
from pytest_harbor.collection.step_running import StepRequest, providers_of, run
from pytest_harbor.errors import HarborError, SettingsError
from pytest_harbor.sandboxes.choose import LOCAL, provider_name
from pytest_harbor.tasks.steps.files import is_bundle

if TYPE_CHECKING:
    from pytest_harbor.collection.providers import Choice
    from pytest_harbor.graphs.objects import ObjectStore
    from pytest_harbor.sandboxes.api import Provider
    from pytest_harbor.settings import Settings
    from pytest_harbor.tasks.steps.bundle import Bundle
    from pytest_harbor.tasks.steps.task import StepTask


def caller(request: pytest.FixtureRequest) -> Call:
    """How handles of this test reach the event loop: blocking, or awaited.

    Errors of ours come without the frames between the test's line and what they say,
    unless asked for (``--harbor-debug``).
    """
    session = sessions.of(request.config)
    bridge, is_debug = session.bridge, session.settings.debug

    def run(function: Callable[..., Any], *args: Any) -> Any:
        __tracebackhide__ = True
        try:
            return bridge.run(function, *args)
        except HarborError as error:
            if is_debug:
                raise
            bare = _bare(error)
        raise bare

    async def run_from_loop(function: Callable[..., Any], *args: Any) -> Any:
        __tracebackhide__ = True
        try:
            return await bridge.run_from_loop(function, *args)
        except HarborError as error:
            if is_debug:
                raise
            bare = _bare(error)
        raise bare

    return run_from_loop if is_async_test(request) else run


def _bare(error: HarborError) -> HarborError:
    """The error without its past: its text says what happened."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def run_of_test(
    request: pytest.FixtureRequest,
    settings: Settings,
    provider: Choice,
    store: ObjectStore,
    *,
    attempt: int,
) -> AbstractContextManager[StepRunHandle]:
    """The run of a task file, which is over by then, or one for the time of the test.

    Raises:
        HarborError: the task file cannot be loaded or run; there is no such file.
    """
    task, root = _asked_for(request)
    if task is None:
        return _by_hand(request, settings, provider, store, root)
    result = run(StepRequest(request.node, task, settings, provider, store, attempt))
    return nullcontext(StepRunHandle(caller(request), result=result, logs=result.logs))


def _asked_for(request: pytest.FixtureRequest) -> tuple[StepTask | None, Path]:
    """The task file of the item or its marker, or the bundle of a run by hand."""
    file = request.node.getparent(StepTaskFile)
    if file is not None:
        return file.task, file.path.parent
    item = request.node
    path = markers.read(item).path
    if path is None:
        return None, _bundle_above(item)
    place = _find(path, item)
    if place.is_file():
        return load(request.config, place), place.parent
    return None, place


def _find(path: str, item: pytest.Item) -> Path:
    tried = []
    for base in (item.path.parent, item.config.rootpath):
        place = base / path
        if place.is_dir() or (place.is_file() and place.suffix == ".json"):
            return Path(os.path.abspath(place))  # noqa: PTH100 - links stay
        tried.append(str(place))
    places = " nor ".join(dict.fromkeys(tried))
    raise SettingsError(f"no step task file and no bundle {path!r}: neither {places}")


def _bundle_above(item: pytest.Item) -> Path:
    for folder in item.path.parents:
        if is_bundle(folder):
            return folder
        if folder == item.config.rootpath:
            break
    return item.path.parent


@contextmanager
def _by_hand(
    request: pytest.FixtureRequest,
    settings: Settings,
    choice: Choice,
    store: ObjectStore,
    root: Path,
) -> Iterator[StepRunHandle]:
    from pytest_harbor.graphs.context import RunContext
    from pytest_harbor.graphs.open_run import RunParts, open_run
    from pytest_harbor.graphs.preflight import SECRET_VARIABLES
    from pytest_harbor.reporter import Reporter
    from pytest_harbor.sandboxes.output import Masker

    session = sessions.of(request.config)
    session.interrupts.arm()
    _, logs = run_places(session, request.node.name)
    run_id = f"{session.run_id}-{os.urandom(4).hex()}"
    entries = bundle(request.config, root)
    token = secrets.token_urlsafe(24)
    keys = [os.environ[name] for name in SECRET_VARIABLES if name in os.environ]
    providers = _providers(session, choice, entries)
    parts = RunParts(
        task_id=request.node.name,
        bundle=entries,
        providers=providers,
        logs=logs,
        store=store,
        settings=session.run_settings(settings),
        environ=dict(os.environ),
        agents=session.step_agents,
        step_types=step_types(request.config),
        # Only containers have to reach servers of this host from outside.
        is_exposed=providers.keys() != {LOCAL},
        data_token=token,
        masker=Masker([token, *keys]),
    )
    context = RunContext(run_id, agent_model=settings.model)
    context.metadata.update(task_id=request.node.name, run_group_id=session.run_id)
    held: Any = session.bridge.hold(open_run(parts, context, Reporter(None, run_id)))
    with held as opened:
        yield StepRunHandle(caller(request), opened=opened, logs=logs)


def _providers(
    session: sessions.HarborSession, choice: Choice, entries: Bundle
) -> Mapping[str, Provider]:
    """The providers that a test may ask for, made before the loop needs them."""
    known = (
        *map(entries.env, entries.names("env")),
        *map(entries.agent, entries.names("agent")),
    )
    has_images = any(one is not None and (one.image or one.dockerfile) for one in known)
    wanted = {False, True} if has_images else {False}
    auto = choice if isinstance(choice, str) else "auto"
    names = frozenset(provider_name(auto, need) for need in wanted)
    return providers_of(session, choice, names)
