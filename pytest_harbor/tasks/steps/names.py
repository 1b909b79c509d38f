"""Names of the run context: each written once, and before it is read (spec 13, 3 and 4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.findings import Findings
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.model import PromptAgent, TeardownSandboxes
from pytest_harbor.tasks.steps.order import did_you_mean
from pytest_harbor.tasks.steps.read_steps import UNKNOWN, Steps
from pytest_harbor.tasks.steps.step import Name, NameKind, Step

TWICE = "13.3"
READ = "13.4"

# Per kind: how a name comes about, and what is said where it does not.
WORDS: Mapping[NameKind, tuple[str, str]] = {
    "env": ("env '{}' is deployed", "no step deploys env '{}'"),
    "agent": ("agent '{}' is deployed", "no step deploys an agent named '{}'"),
    "prompt": ("reply '{}' is written", "no step has the prompt_id '{}'"),
    "verifier": ("grade '{}' is written", "no step has the verifier_id '{}'"),
    "files": ("files of '{}' are collected", "'{}' is no step of this task"),
}


class Writer(NamedTuple):
    """A step that writes a name."""

    step: Step
    name: Name


def check_names(steps: Steps, bundle: Bundle, found: Findings) -> None:
    """Report names that two steps write, and names that are read too early or never."""
    writers: dict[tuple[NameKind, str], list[Writer]] = {}
    for step in steps.steps:
        for name in step.writes():
            if name.name == UNKNOWN:
                continue
            known = writers.setdefault((name.kind, name.name), [])
            if known:
                _tell_twice(steps, known[0], Writer(step, name), found)
            known.append(Writer(step, name))
    for step in steps.steps:
        for name in step.reads():
            if name.name != UNKNOWN and not _is_live(name, bundle):
                _check_read(steps, step, name, writers, found)
        if isinstance(step, TeardownSandboxes):
            _doubt_teardown(steps, step, writers, found)


def _tell_twice(steps: Steps, first: Writer, second: Writer, found: Findings) -> None:
    where = steps.where(second.step.position, second.name.field)
    other = f"step {first.step.position} '{first.step.id}'"
    kind, name = second.name.kind, second.name.name
    if kind == "env":
        found.warn(
            f"{where}: env '{name}' is already deployed by {other}, so this step fails"
        )
    elif kind == "agent":
        found.warn(f"{where}: {other} deploys an agent '{name}', so this step fails")
    elif kind != "files":  # these go by the step's id, which is checked as such
        field = second.name.field
        what = f"'{name}' is also the {field} of {other}; rename one"
        found.problem(where, what, TWICE)


def _is_live(name: Name, bundle: Bundle) -> bool:
    """True for an env that is registered as a server that already runs (spec 6)."""
    if name.kind != "env" or not name.field.startswith("env_ids"):
        return False
    try:
        env = bundle.env(name.name)
    except TaskLoadError:
        return False
    return env is not None and env.url is not None


def _check_read(
    steps: Steps,
    step: Step,
    name: Name,
    writers: Mapping[tuple[NameKind, str], list[Writer]],
    found: Findings,
) -> None:
    where = steps.where(step.position, name.field)
    known = writers.get((name.kind, name.name), [])
    if not known:
        if steps.may_write(name.kind):
            return
        what = _never_written(steps, name, writers)
        if isinstance(step, PromptAgent) and name.field == "agent_name":
            found.warn(f"{where}: {what}, so this step fails")
        else:
            found.problem(where, what, READ)
        return
    above = steps.above(step)
    if any(writer.step.id in above for writer in known):
        return
    writer = known[0].step
    what = WORDS[name.kind][0].format(name.name)
    what += f" by step {writer.position} '{writer.id}', "
    if writer.position == step.position:
        what += "which is this step"
    elif writer.position > step.position:
        what += "which comes later; move it before, and into depends_on"
    else:
        what += f"which this step does not wait for; add '{writer.id}' to depends_on"
    found.problem(where, what, READ)


def _never_written(
    steps: Steps, name: Name, writers: Mapping[tuple[NameKind, str], list[Writer]]
) -> str:
    if name.kind == "files":
        for other in steps.steps:
            if other.id == name.name:
                return f"'{name.name}' ({other.type}) collects no files"
    what = WORDS[name.kind][1].format(name.name)
    for other in steps.steps:
        is_nameless = isinstance(other, PromptAgent) and other.prompt_id is None
        if name.kind == "prompt" and other.id == name.name and is_nameless:
            return f"{what}; step {other.position} '{other.id}' needs one"
    return what + did_you_mean(name.name, list(_known(name.kind, writers)))


def _known(
    kind: NameKind, writers: Mapping[tuple[NameKind, str], list[Writer]]
) -> Iterator[str]:
    yield from (name for other, name in writers if other == kind)


def _doubt_teardown(
    steps: Steps,
    step: TeardownSandboxes,
    writers: Mapping[tuple[NameKind, str], list[Writer]],
    found: Findings,
) -> None:
    kinds: tuple[tuple[NameKind, str, tuple[str, ...]], ...] = (
        ("agent", "agent_names", step.agent_names),
        ("env", "env_ids", step.env_ids),
    )
    for kind, field, names in kinds:
        for number, name in enumerate(names):
            if (kind, name) in writers or steps.may_write(kind):
                continue
            where = steps.where(step.position, f"{field}[{number}]")
            what = WORDS[kind][1].format(name)
            found.warn(
                f"{where}: {what}{did_you_mean(name, list(_known(kind, writers)))}"
            )
