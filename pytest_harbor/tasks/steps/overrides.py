"""What a run changes in a file: overrides and placeholders (spec 1.5). Pure.

Overrides come first, so a placeholder in one is filled, too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from pytest_harbor.errors import SettingsError

STEP_PARAMS = "step_params"

# Run-wide overrides, and the field that each beats in steps of a type.
RUN_WIDE: Mapping[str, Mapping[str, str]] = {
    "deploy_env": {"env_sandbox": "sandbox_type", "ttl_seconds": "ttl_seconds"},
    "deploy_agent": {
        "a2a_agent_id": "a2a_agent_id",
        "a2a_agent_version": "a2a_agent_version",
        "agent_sandbox": "sandbox_type",
        "ttl_seconds": "ttl_seconds",
    },
    "prompt_agent": {"user_model": "user_model"},
    "rubrics_verifier": {
        "judge_model": "default_model",
        "use_agent_judge": "use_agent_judge",
    },
}
RUN_WIDE_NAMES: frozenset[str] = frozenset().union(*RUN_WIDE.values())
"""Every run-wide override."""


def overridden(step: Any, overrides: Mapping[str, Any]) -> Any:
    """A step with ``user_overrides`` laid over it, as a copy.

    Run-wide choices beat the file, and ``step_params`` of the step beat both. A
    run-wide choice of ``None`` is none.

    Raises:
        SettingsError: ``step_params`` does not map step ids to fields.
    """
    if not isinstance(step, dict) or not overrides:
        return step
    changed = dict(step)
    chosen = {
        field: overrides[name]
        for name, field in RUN_WIDE.get(str(step.get("type")), {}).items()
        if overrides.get(name) is not None
    }
    if "a2a_agent_id" in chosen:
        changed.pop("a2a_agent_version", None)  # it was another agent's
    changed.update(chosen)
    changed.update(_params(step.get("id"), overrides.get(STEP_PARAMS) or {}))
    return changed


def are_step_params(params: Any) -> TypeGuard[Mapping[str, Mapping[str, Any]]]:
    """Whether these are ``{"<step id>": {"<field>": ...}}``."""
    return isinstance(params, Mapping) and all(
        isinstance(fields, Mapping) for fields in params.values()
    )


def _params(name: Any, params: Any) -> Mapping[str, Any]:
    """The overrides of one step."""
    if not are_step_params(params):
        raise SettingsError(
            'overrides: step_params must be {"<step id>": {"<field>": ...}}, not'
            f" {params!r}"
        )
    return params.get(name, {}) if isinstance(name, str) else {}


def filled(value: Any, seed: Mapping[str, Any]) -> Any:
    """``value`` with every ``<key>`` of ``seed`` replaced in all its strings, as a copy.

    Values are not looked at again: what one of them holds is text. Keys of objects and
    other ``<...>`` text stay.
    """
    if not seed:
        return value
    # Longest first: a key may hold the end of another (``a>b``).
    keys = sorted(map(str, seed), key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(f"<{key}>") for key in keys))
    texts = {f"<{key}>": str(entry) for key, entry in seed.items()}
    return _filled(value, pattern, texts)


def _filled(value: Any, pattern: re.Pattern[str], texts: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda match: texts[match[0]], value)
    if isinstance(value, dict):
        return {key: _filled(entry, pattern, texts) for key, entry in value.items()}
    if isinstance(value, Sequence):
        return [_filled(entry, pattern, texts) for entry in value]
    return value
