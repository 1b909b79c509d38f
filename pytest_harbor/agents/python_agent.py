"""Agents written in Python: how one is found, made and called (design 5.3).

A plain ``def run`` blocks, so it gets a worker thread and a sync sandbox; an ``async
def run`` stays in the event loop. ``sys.exit()`` in an agent's code is a failure as any other: it
must not end the run of all tasks. A thread cannot be interrupted: when the turn is over
(its budget ended, or it was cancelled) the thread is left behind, its sandbox refuses
every further call, and so the agent ends at its next one.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from pytest_harbor.agents.api import Agent, AgentResult, AgentTurn
from pytest_harbor.errors import (
    AGENT_RUN_ERROR,
    AgentError,
    SandboxError,
    SettingsError,
    UnsupportedByProvider,
)
from pytest_harbor.sandboxes.api import Sandbox
from pytest_harbor.sandboxes.sync import SyncSandbox

EXCEPTION_LOG: Final = "exception.txt"
"""File in the turn's agent logs with the traceback of an agent that failed."""


def load_attribute(name: str) -> Any:
    """Import ``module:attr``: an agent, a class or factory of one, or a declaration.

    Raises:
        SettingsError: what cannot be imported, and why.
    """
    module_name, _, attribute = name.partition(":")
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        hint = ""
        if error.name == module_name.partition(".")[0]:
            hint = "; is its folder on the Python path (ini pythonpath)?"
        raise SettingsError(f"agent {name!r}: {error}{hint}") from error
    except (Exception, SystemExit) as error:
        raise SettingsError(
            f"agent {name!r}: importing {module_name} failed: {describe(error)}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise SettingsError(
                f"agent {name!r}: module {module_name} has no {attribute!r}"
            )
        found = getattr(found, part)
    return found


def make_agent(
    name: str,
    factory: Any,
    *,
    model: str | None,
    options: Mapping[str, Any] | None = None,
) -> Agent:
    """Call a class or factory; an agent that is one already is returned as it is.

    Raises:
        SettingsError: it cannot be called so, or what it returns has no ``run``.
    """
    agent = factory
    if inspect.isclass(factory) or not hasattr(factory, "run"):
        if not callable(factory):
            raise SettingsError(
                f"agent {name!r} is {type(factory).__name__}, expected a class, a "
                "factory or an object with run(turn)"
            )
        keywords = dict(options or {})
        if model is not None or _accepts(factory, "model"):
            keywords["model"] = model
        try:
            agent = factory(**keywords)
        except (Exception, SystemExit) as error:
            raise SettingsError(
                f"agent {name!r}: calling it with {', '.join(keywords) or 'nothing'} "
                f"failed: {describe(error)}"
            ) from error
    if not callable(getattr(agent, "run", None)):
        raise SettingsError(
            f"agent {name!r}: {type(agent).__name__} has no method run(turn)"
        )
    return cast("Agent", agent)


def describe(error: BaseException) -> str:
    """Type and message of an exception, for people."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


async def run_agent(agent: Agent, turn: AgentTurn) -> AgentResult:
    """Run one turn of an agent, ``async def`` or plain ``def``.

    Raises:
        AgentError: the agent failed; any exception of its own is one of kind
            ``agent_run_error``, its traceback in the turn's logs.
        SandboxError: infrastructure failed under the agent.
    """
    result = await _call(agent.run, turn.sandbox, turn, logs=turn.logs)
    if result is None:
        return AgentResult()
    if not isinstance(result, AgentResult):
        raise AgentError(
            f"run returned {type(result).__name__}, expected AgentResult or None"
        )
    return result


async def set_up_agent(agent: Agent, sandbox: Sandbox, logs: Path) -> None:
    """Call the optional ``setup(sandbox)``. Raises as :func:`run_agent`."""
    setup = getattr(agent, "setup", None)
    if callable(setup):
        await _call(setup, sandbox, None, logs=logs)


async def end_session(agent: Agent, sandbox: Sandbox, logs: Path) -> str | None:
    """Call the optional ``end_session(sandbox)``; returns what went wrong.

    It fails nothing: the work is done. Raises SandboxError: infrastructure failed.
    """
    end = getattr(agent, "end_session", None)
    if not callable(end):
        return None
    try:
        await _call(end, sandbox, None, logs=logs)
    except AgentError as error:
        return f"ending the agent's session failed: {error}"
    return None


async def close_agent(agent: Agent) -> str | None:
    """Call the optional ``close()``; returns what went wrong, which fails nothing."""
    close = getattr(agent, "close", None)
    if not callable(close):
        return None
    try:
        if inspect.iscoroutinefunction(close):
            await close()
        else:
            await _in_thread(close)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the user's code
        return f"closing the agent failed: {describe(error)}"
    return None


async def _call(
    function: Callable[..., Any],
    sandbox: Sandbox,
    turn: AgentTurn | None,
    *,
    logs: Path,
) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function(sandbox if turn is None else turn)
        return await _call_plain(function, sandbox, turn)
    except (AgentError, SandboxError) as error:
        if isinstance(error, UnsupportedByProvider):
            # The task's own needs were checked at seed: this one is the agent's.
            raise AgentError(str(error)) from error
        raise
    except (Exception, SystemExit) as error:
        _keep_traceback(error, logs)
        raise AgentError(describe(error), AGENT_RUN_ERROR) from error


def _keep_traceback(error: BaseException, logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    (logs / EXCEPTION_LOG).write_text(text, errors="replace")


async def _call_plain(
    function: Callable[..., Any], sandbox: Sandbox, turn: AgentTurn | None
) -> Any:
    is_over = False

    def call(function: Callable[..., Any], *args: object) -> Any:
        if is_over:
            raise AgentError("the turn is over; its sandbox takes no more calls")
        return anyio.from_thread.run(function, *args)

    sync_sandbox = cast("Sandbox", SyncSandbox(sandbox, call))
    argument = sync_sandbox if turn is None else replace(turn, sandbox=sync_sandbox)
    try:
        result = await _in_thread(partial(function, argument))
    finally:
        is_over = True
    return await result if inspect.isawaitable(result) else result


async def _in_thread(function: Callable[[], Any]) -> Any:
    # A limiter of its own: agents that block must not use up the threads that
    # sandboxes need to serve these very agents.
    return await anyio.to_thread.run_sync(
        function, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
    )


def _accepts(factory: Callable[..., Any], keyword: str) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(
        parameter.kind is parameter.VAR_KEYWORD
        or (
            parameter.name == keyword
            and parameter.kind is not parameter.POSITIONAL_ONLY
        )
        for parameter in parameters
    )
