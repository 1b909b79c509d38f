"""Options and ini keys that only step tasks have (JSON files of steps)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from pytest_harbor.collection.option import (
    Option,
    integer,
    lines,
    pairs,
    switch,
    text,
)


def overrides(value: str) -> dict[str, Any]:
    """``KEY=VALUE`` or ``STEP.FIELD=VALUE``, one a line, as ``user_overrides`` (spec 1.5).

    A value is JSON where it reads as such, else text. Step IDs may hold dots, names of
    fields do not, so the last dot separates the two.
    """
    from pytest_harbor.tasks.steps.overrides import (
        RUN_WIDE_NAMES,
        STEP_PARAMS,
        are_step_params,
    )

    found: dict[str, Any] = {}
    for key, given in pairs(value).items():
        step, dot, field = key.rpartition(".")
        if dot and step and field:
            params = found.setdefault(STEP_PARAMS, {})
            params.setdefault(step, {})[field] = _value(given)
        elif field in RUN_WIDE_NAMES:
            found[field] = _value(given)
        elif field == STEP_PARAMS and are_step_params(params := _value(given)):
            _merge(found.setdefault(STEP_PARAMS, {}), params)
        else:
            # An unknown name would change nothing, and nobody would notice.
            known = ", ".join(sorted(RUN_WIDE_NAMES))
            raise ValueError(f"STEP.FIELD=VALUE or KEY=VALUE (KEY is one of {known})")
    return found


def _merge(into: dict[str, dict[str, Any]], params: Mapping[str, Any]) -> None:
    for step, fields in params.items():
        into.setdefault(step, {}).update(fields)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


STEP_OPTIONS: Final = (
    Option(
        "seed",
        pairs,
        "value of a placeholder: <KEY> in the strings of step tasks becomes VALUE; "
        "may be given several times",
        "KEY=VALUE",
        is_repeated=True,
    ),
    Option(
        "override",
        overrides,
        "choice for all steps of step tasks that have such a field (judge_model=m), or a "
        "field of one step (STEP.FIELD=VALUE, a value is JSON or text); beats the "
        "file; may be given several times",
        "[STEP.]FIELD=VALUE",
        field="overrides",
        is_repeated=True,
    ),
    Option(
        "allow-tolerated",
        switch,
        "a failed step with fail_task_on_error = false does not fail its step task",
    ),
    Option(
        "judge-model",
        text,
        "model of judges of step tasks whose steps name none",
        "NAME",
    ),
    Option(
        "object-store",
        text,
        "where step tasks keep trajectories and collected files: a folder or an fsspec "
        "URL such as s3://bucket/evals (default: the run folder)",
        "URL",
    ),
    Option(
        "step-files",
        lines,
        "patterns of step task files, one a line, relative to the root directory "
        "(default: *.task.json, and tasks/*.json beside an envs, agents or artifacts "
        "folder or an aliases.toml)",
        ini_only=True,
    ),
    Option(
        "default-agent",
        text,
        "agent of deploy_agent steps and judges that name none",
        ini_only=True,
    ),
    Option(
        "agent-model",
        text,
        "model of agents of step tasks whose prompts name none",
        ini_only=True,
    ),
    Option(
        "user-model",
        text,
        "model of agents that play the user in conversations of step tasks",
        ini_only=True,
    ),
    Option(
        "human-a2a-url",
        text,
        "A2A endpoint of the person who answers in conversations that name no user",
        ini_only=True,
    ),
    Option(
        "max-concurrent-steps",
        integer,
        "steps of one step task that run at the same time (default: no limit)",
        ini_only=True,
    ),
)
