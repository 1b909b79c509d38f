"""Reads the steps of a file one by one (spec 13, 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Any, Final, get_args, get_origin

from pydantic import Strict
from pydantic_core import ErrorDetails

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.deploy_steps import DeployAgent
from pytest_harbor.tasks.steps.keys import file_keys, path_text, unread_keys
from pytest_harbor.tasks.steps.order import ancestors, dependencies, did_you_mean
from pytest_harbor.tasks.steps.step import LOADING, NameKind, Step
from pytest_harbor.tasks.steps.values import REFUSED
from pytest_harbor.tasks.validation import (
    JSON_WORDS,
    KeyPath,
    message,
    read_model,
    shown,
)

SHAPE = "13.1"
ORDER = "13.2"

# Stands for a name that the file does not have; nobody can write it.
UNKNOWN: Final = "\0unknown"

# Step types of the format that this runner does not have (spec 10.2).
OTHER_TYPES = frozenset(
    {
        "add_skills",
        "agent_prompt_response_verifier",
        "apply_server_config",
        "deploy_human_agent",
        "deploy_sandbox",
        "install_agent",
        "modify_env_tool_access",
        "peer_agents",
        "register_agent_triggers",
        "register_env_triggers",
        "reset_env",
        "review",
        "run_code",
        "run_container_unit_tests_verifier",
        "run_docker_container",
        "snapshot_agent_state",
        "snapshot_env",
        "sync_env_clock",
        "verify_sandbox",
    }
)


@dataclass
class Steps:
    """The steps of one file as far as they could be read, for the further checks."""

    label: str
    """The file, as messages name it."""
    ids: list[str | None]
    """Of all steps; ``None`` where there is no usable id."""
    steps: list[Step]
    """Those that could be read, in order."""
    unread: list[type[Step] | None]
    """Models of the others, as far as their types can be guessed."""
    ancestors: Sequence[frozenset[str]]
    """Of all steps: the ids of those that have ended before it starts."""

    def where(self, position: int, field: str = "") -> str:
        """A place in the file; ``position`` starts at 1."""
        return place(self.label, position, self.ids[position - 1], field)

    def above(self, step: Step) -> frozenset[str]:
        """The ids of the steps that have ended before ``step`` starts."""
        return self.ancestors[step.position - 1]

    def may_write(self, kind: NameKind) -> bool:
        """True when a step that could not be read might have written such a name."""
        return any(m is None or kind in m.written_kinds for m in self.unread)


def place(label: str, position: int, step_id: str | None, field: str = "") -> str:
    """``tasks/reply.json: step 2 'mail-up': env_id``."""
    step = f"step {position}" + (f" '{step_id}'" if step_id is not None else "")
    return f"{label}: {step}: {field}" if field else f"{label}: {step}"


def read_steps(
    raw: Sequence[Any],
    label: str,
    bundle: Bundle,
    step_types: Mapping[str, type[Step]],
    found: Findings,
) -> Steps:
    """Read all steps; what is wrong with one keeps no other from being read."""
    return _Reader(raw, label, bundle, step_types, found).read()


class _Reader:
    def __init__(
        self,
        raw: Sequence[Any],
        label: str,
        bundle: Bundle,
        step_types: Mapping[str, type[Step]],
        found: Findings,
    ) -> None:
        self.raw = raw
        self.label = label
        self.bundle = bundle
        self.step_types = step_types
        self.found = found
        self.ids = [step_id(step) for step in raw]
        self.first: dict[str, int] = {}
        for index, name in enumerate(self.ids):
            if name is not None:
                self.first.setdefault(name, index)

    def read(self) -> Steps:
        waits = [self._dependencies(index) for index in range(len(self.raw))]
        above = ancestors(zip(self.ids, waits, strict=True))
        result = Steps(self.label, self.ids, [], [], above)
        for index, ids in enumerate(waits):
            step, model = self._step(index, ids, above[index])
            if step is None:
                result.unread.append(model)
            else:
                result.steps.append(step)
        return result

    def problem(self, index: int, field: str, what: str, rule: str = SHAPE) -> None:
        where = place(self.label, index + 1, self.ids[index], field)
        self.found.problem(where, what, rule)

    def _dependencies(self, index: int) -> tuple[str, ...]:
        step = self.raw[index]
        depends_on = step.get("depends_on") if isinstance(step, dict) else None
        resolved = dependencies(depends_on, index, self.first, self.ids)
        for field, what in resolved.problems:
            self.problem(index, field, what, ORDER)
        if resolved.problems:
            # Whatever else was meant: what follows from it is no second mistake.
            resolved = dependencies(None, index, self.first, self.ids)
        return resolved.ids

    def _step(
        self, index: int, waits: tuple[str, ...], above: frozenset[str]
    ) -> tuple[Step | None, type[Step] | None]:
        """The step, or ``None`` with its type's model."""
        raw = self.raw[index]
        if not isinstance(raw, dict):
            self.problem(index, "", f"must be an object, not {shown(raw, JSON_WORDS)}")
            return None, None
        self._check_id(index, raw)
        model = self._model(index, raw)
        if model is None:
            return None, self._meant(raw.get("type"))

        raw = self._modernised(index, raw, model)
        for line in unread_keys(raw, model):
            self.found.warn(f"{place(self.label, index + 1, self.ids[index])}: {line}")
        given = {key: raw[key] for key in file_keys(model) if key in raw}
        given["id"] = self.ids[index] or "?"
        retry = given.pop("retry_config", None)
        if retry is not None:
            given["retry"] = self._retry(index, retry, above)
        # Null is a field that is not there, as for depends_on.
        given = {key: value for key, value in given.items() if value is not None}
        for name in _plain_tuples(model):
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
        given |= {"depends_on": waits, "position": index + 1, "raw": raw}
        return self._validated(index, given, model), model

    def _check_id(self, index: int, raw: Mapping[str, Any]) -> None:
        name = self.ids[index]
        if name is None:
            given = raw.get("id")
            what = f"must be a string, not {shown(given, JSON_WORDS)}"
            if "id" not in raw:
                what = "is missing"
            elif isinstance(given, str):
                what = "must not be empty"
            self.problem(index, "id", what, ORDER)
        elif self.first[name] != index:
            what = f"'{name}' is also the id of step {self.first[name] + 1}; rename one"
            self.problem(index, "id", what, ORDER)

    def _model(self, index: int, raw: Mapping[str, Any]) -> type[Step] | None:
        kind = raw.get("type")
        if not isinstance(kind, str):
            what = f"must be a string, not {shown(kind, JSON_WORDS)}"
            self.problem(index, "type", what if "type" in raw else "is missing")
            return None
        model = self.step_types.get(kind)
        if model is None:
            if kind in OTHER_TYPES:
                what = f"step type '{kind}' is not supported by pytest-harbor"
            else:
                near = get_close_matches(kind, self.step_types, n=1, cutoff=0)
                hint = f" (the closest is '{near[0]}')" if near else ""
                what = f"unknown step type '{kind}'{hint}"
            self.problem(index, "type", what)
        return model

    def _meant(self, kind: object) -> type[Step] | None:
        """The model of a type that is misspelt, so that the other steps' names are checked."""
        near = get_close_matches(kind, self.step_types) if isinstance(kind, str) else []
        return self.step_types[near[0]] if near else None

    def _modernised(
        self, index: int, raw: Mapping[str, Any], model: type[Step]
    ) -> dict[str, Any]:
        """The step with today's names, and with the bundle's skills in it."""
        step = dict(raw)
        for old, new in model.old_names.items():
            if old not in step:
                continue
            value = step.pop(old)
            if step.get(new) is not None and value is not None:
                self.problem(index, old, f"is the old name of {new}; keep one")
            elif value is not None:
                step[new] = value
        if issubclass(model, DeployAgent) and isinstance(step.get("skills"), list):
            step["skills"] = [
                self._skill(index, number, skill)
                for number, skill in enumerate(step["skills"])
            ]
        return step

    def _skill(self, index: int, number: int, skill: Any) -> Any:
        if isinstance(skill, dict) and "content" in skill:
            return {
                "skill_md" if key == "content" else key: value
                for key, value in skill.items()
            }
        if not isinstance(skill, str):
            return skill
        unread = {"name": f"unread-{number}", "skill_md": ""}
        try:
            entry = self.bundle.skill(skill)
        except TaskLoadError as error:
            self.found.add(error.problems)
            return unread
        if entry is None:
            near = self.bundle.near("skill", skill)
            hint = f" (did you mean '{near}'?)" if near else ""
            self.problem(
                index, f"skills[{number}]", f"no skill '{skill}' in the bundle{hint}"
            )
            return unread
        return {
            "name": entry.name,
            "description": entry.description,
            "skill_md": entry.text,
        }

    def _retry(self, index: int, retry: Any, above: frozenset[str]) -> Any:
        """``retry_config`` under today's name; the step must be there and earlier."""
        if not isinstance(retry, dict):
            return retry
        config = {
            key: retry[key]
            for key in ("retry_from_step_id", "max_retries")
            if retry.get(key) is not None
        }
        old = retry.get("go_to_step_id")
        if old is not None and config.setdefault("retry_from_step_id", old) != old:
            what = "is another name of retry_from_step_id; keep one"
            self.problem(index, "retry_config.go_to_step_id", what, ORDER)
        target, own = config.get("retry_from_step_id"), self.ids[index]
        if not isinstance(target, str) or not target or target == own or own is None:
            return config
        if target not in self.first:
            what = (
                f"'{target}' is no step of this task{did_you_mean(target, self.first)}"
            )
        elif target not in above:
            what = f"'{target}' is neither this step nor one that it waits for"
        else:
            return config
        self.problem(index, "retry_config.retry_from_step_id", what, ORDER)
        return config

    def _validated(
        self, index: int, given: dict[str, Any], model: type[Step]
    ) -> Step | None:
        def report(detail: ErrorDetails, path: KeyPath, _: object) -> None:
            if path[:1] == ("retry",):
                path = ("retry_config", *path[1:])
            what = message(detail, JSON_WORDS)
            if detail["type"] == "missing":
                path, what = (*path, detail["loc"][-1]), "is missing"
            self.problem(index, path_text(path), what)

        step, is_incomplete = read_model(
            given,
            model,
            report,
            lacks=("missing", REFUSED),
            blanks=_blanks(model),
            context=LOADING,
        )
        if step is None:
            return None
        for fault in step.faults():
            if not (fault.is_lack and is_incomplete):
                self.problem(index, fault.field, fault.text)
        for doubt in () if is_incomplete else step.doubts():
            where = place(self.label, index + 1, self.ids[index], doubt.field)
            self.found.warn(f"{where}: {doubt.text}")
        return step


@cache
def _blanks(model: type[Step]) -> Mapping[str, Any]:
    """What stands for required fields, so that the others can be checked."""
    return {
        name: UNKNOWN if field.annotation is str else ()
        for name, field in model.model_fields.items()
        if field.is_required()
        and (field.annotation is str or get_origin(field.annotation) is tuple)
    }


@cache
def _plain_tuples(model: type[Step]) -> frozenset[str]:
    """Fields of a project's type that are tuples: strict models refuse JSON's lists."""
    return frozenset(
        field.alias or name
        for name, field in model.model_fields.items()
        if not any(isinstance(entry, Strict) for entry in field.metadata)
        and any(
            get_origin(annotation) is tuple
            for annotation in (field.annotation, *get_args(field.annotation))
        )
    )


def step_id(step: Any) -> str | None:
    """The id of a step as the file has it, or ``None`` where it is not usable."""
    name = step.get("id") if isinstance(step, dict) else None
    return name if isinstance(name, str) and name.strip() else None
