"""From an agent's name to an agent."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from pytest_harbor.agents import catalogue
from pytest_harbor.agents.api import Agent
from pytest_harbor.agents.command.agent import CommandAgent
from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.agents.oracle import OracleAgent
from pytest_harbor.agents.python_agent import load_attribute, make_agent
from pytest_harbor.errors import SettingsError

BUILT_IN: Final[Mapping[str, Callable[[], Agent]]] = {
    "nop": NopAgent,
    "oracle": OracleAgent,
}
Offer: TypeAlias = "Callable[..., Agent] | AgentDeclaration"
"""What a hook may give for a name: a class or factory, or a declaration."""
Declared: TypeAlias = Mapping[str, Callable[[], AgentDeclaration]]
"""Declarations by name, each read when it is asked for."""

_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")


def resolve_agent(
    name: str,
    *,
    model: str | None,
    known: Mapping[str, Offer] | None = None,
    declared: Declared | None = None,
) -> Agent:
    """The agent of that name; ``name@version`` chooses the version of a declared one.

    ``known`` are registered ones, each a declaration, or a class or factory called with
    ``model``; ``declared`` are those of configuration files, which win over the catalogue. None
    can replace the built-in ``oracle`` and ``nop``, on which validation rests.

    Raises:
        SettingsError: nobody has that name (lists the known ones and the nearest),
            or the agent cannot be imported or made.
    """
    base, at, version = name.partition("@")
    found = find(base, known=known or {}, declared=declared or {})
    if isinstance(found, AgentDeclaration):
        if at:
            found = with_version(found, version, name)
        return CommandAgent(found, model=model, name=name)
    if at:
        raise SettingsError(
            f"agent {name!r}: {base} has no version to choose; only declared agents do"
        )
    if base in BUILT_IN:
        return BUILT_IN[base]()
    return as_agent(name, found, model=model)


def as_agent(name: str, value: Any, *, model: str | None) -> Agent:
    """The agent that a declaration, class, factory or agent stands for.

    Raises:
        SettingsError: it stands for none.
    """
    if isinstance(value, AgentDeclaration):
        return CommandAgent(value, model=model)
    return make_agent(name, value, model=model)


def find(name: str, *, known: Mapping[str, Offer], declared: Declared) -> Any:
    """What goes by that name: a declaration, or what an agent can be made from.

    Raises:
        SettingsError: as :func:`resolve_agent`.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name in known:
        return known[name]
    if name in declared:
        return declared[name]()
    if name in catalogue.MODULES:
        return catalogue.load(name)
    module, colon, attribute = name.partition(":")
    if colon and module and attribute:
        return load_attribute(name)
    names = sorted({*BUILT_IN, *known, *declared, *catalogue.MODULES})
    near = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise SettingsError(
        f"unknown agent {name!r}.{hint} Known ones: {', '.join(names)}; an agent of "
        "your own is package.module:attribute."
    )


def declaration_of(name: str, *, known: Mapping[str, Offer]) -> AgentDeclaration:
    """The declaration that another one extends.

    Raises:
        SettingsError: nobody has that name, or what has it is not declared.
    """
    found = find(name, known=known, declared={})
    if not isinstance(found, AgentDeclaration):
        raise SettingsError(
            f"extends = {name!r}: only a declared agent can be extended"
        )
    return found


def with_version(
    declaration: AgentDeclaration, version: str, asked: str
) -> AgentDeclaration:
    """The declaration with another version to install.

    Raises:
        SettingsError: it is no version, or nothing is installed.
    """
    if not _VERSION.fullmatch(version):
        raise SettingsError(
            f"agent {asked!r}: {version!r} is no version; write it as "
            f"{declaration.name}@1.2.3"
        )
    if declaration.install is None:
        raise SettingsError(
            f"agent {asked!r}: {declaration.name} has no install script, so its version "
            "is what the sandbox has"
        )
    return replace(declaration, version=version)


def all_declarations(
    *, known: Mapping[str, Offer], declared: Declared
) -> Mapping[str, Callable[[], AgentDeclaration]]:
    """Every declared agent, sorted by name; what a name means first, counts."""
    found: dict[str, Callable[[], AgentDeclaration]] = {}
    for name in catalogue.MODULES:
        found[name] = partial(catalogue.load, name)
    found.update(declared)
    for name, offer in known.items():
        if isinstance(offer, AgentDeclaration):
            found[name] = partial(_itself, offer)
        else:
            found.pop(name, None)
    for name in BUILT_IN:
        found.pop(name, None)
    return dict(sorted(found.items()))


def _itself(declaration: AgentDeclaration) -> AgentDeclaration:
    return declaration
