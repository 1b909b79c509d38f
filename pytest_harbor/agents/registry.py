"""From an agent's name to an agent."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Final

from pytest_harbor.agents.api import Agent
from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.agents.oracle import OracleAgent
from pytest_harbor.agents.python_agent import load_agent, make_agent
from pytest_harbor.errors import SettingsError

BUILT_IN: Final[Mapping[str, Callable[[], Agent]]] = {
    "nop": NopAgent,
    "oracle": OracleAgent,
}


def resolve_agent(
    name: str,
    *,
    model: str | None,
    known: Mapping[str, Callable[..., Agent]] | None = None,
) -> Agent:
    """The agent of that name.

    ``known`` are registered ones, each a class or factory called with ``model``. They
    cannot replace the built-in ``oracle`` and ``nop``, on which validation rests.

    Raises:
        SettingsError: nobody has that name (lists the known ones and the nearest),
            or the agent cannot be imported or made.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    known = known or {}
    if name in known:
        return make_agent(name, known[name], model=model)
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        return load_agent(name, model=model)
    names = sorted({*BUILT_IN, *known})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingsError(
        f"unknown agent {name!r}.{hint} Known ones: {', '.join(names)}; an agent of "
        "your own is package.module:attribute."
    )
