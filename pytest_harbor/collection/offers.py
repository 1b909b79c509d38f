"""What extensions offer by name through our hooks: checked, and blamed on who offers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from pytest_harbor.errors import HarborError, SettingsError


def collect(
    config: pytest.Config,
    hook: str,
    *,
    also: type | None = None,
    factories: bool = True,
) -> dict[str, Any]:
    """Names and factories of every implementation of ``hook``.

    Where ``also`` is given, an object of that type is as good as a factory; without
    ``factories`` nothing else is. pluggy calls the plugin first that was registered last; of two that offer the same name that one wins.

    Raises:
        SettingsError: an implementation raised, or offers something else; names hook and plugin.
    """
    implementations = getattr(config.hook, hook).get_hookimpls()
    found: dict[str, Any] = {}
    for one in implementations:
        # One at a time: a result does not tell whose it is.
        others = [i.plugin for i in implementations if i.plugin is not one.plugin]
        call = config.pluginmanager.subset_hook_caller(hook, others)
        whose = f"{hook} in {one.plugin_name}"
        try:
            results = call(config=config)
        except (HarborError, pytest.UsageError) as error:
            raise SettingsError(f"{whose}: {error}") from error
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise SettingsError(f"{whose} failed: {what}") from error
        for offered in results:
            found.update(_checked(whose, offered, also, factories))
    return found


def _checked(
    whose: str, offered: object, also: type | None, factories: bool
) -> Mapping[str, Any]:
    kinds = ["classes or factories"] if factories else []
    kinds += [f"{also.__name__}s"] if also is not None else []
    expected = f"expected a mapping of names to {' (or '.join(kinds)}"
    expected += ")" * (len(kinds) - 1)
    if not isinstance(offered, Mapping):
        raise SettingsError(f"{whose} returned {offered!r}; {expected}")
    for name, thing in offered.items():
        is_fit = (factories and callable(thing)) or (
            also is not None and isinstance(thing, also)
        )
        if not isinstance(name, str) or not is_fit:
            raise SettingsError(f"{whose} has {thing!r} as {name!r}; {expected}")
    return offered
