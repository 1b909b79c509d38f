"""From a step type's name to the function that does its work, loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.steps.api import StepFunction, StepType
from pytest_harbor.tasks.steps.model import STEP_TYPES


def step_function(
    name: str, registered: Mapping[str, StepType] | None = None
) -> StepFunction:
    """The work of that step type; a project's own type replaces a built-in one.

    A built-in type ``x`` is function ``x`` of module ``x`` beside this one.

    Raises:
        StepError: nobody knows the type.
    """
    if registered and name in registered:
        return registered[name].run
    if name not in STEP_TYPES:
        raise StepError(f"step type '{name}' is not known to this run")
    module = import_module(f"pytest_harbor.graphs.steps.{name}")
    return cast("StepFunction", getattr(module, name))
