"""Every static problem of a task file, with step, field and remedy (task-steps spec 13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.load import load_step_task
from step_bundles import (
    agent_up,
    ask,
    env_up,
    grade,
    load,
    load_steps,
    take,
    write_bundle,
)


def problems_of(root: Path, steps: Any, **options: Any) -> list[str]:
    with pytest.raises(TaskLoadError) as caught:
        load_steps(root, steps, **options)
    assert caught.value.folder == str(root / "tasks/t.json")
    return [str(problem) for problem in caught.value.problems]


def without(step: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name != key}


# Text of the file, and what is said of it after "tasks/t.json".
TEXTS: dict[str, tuple[str | bytes, str]] = {
    "a comma too much": (
        '[\n  {"id": "up",}\n]',
        (
            ": line 2, column 15: is not valid JSON: illegal trailing comma before end of"
            " object"
        ),
    ),
    "nothing": ("", ": line 1, column 1: is not valid JSON: expecting value"),
    "two values": ("[] []", ": line 1, column 4: is not valid JSON: extra data"),
    "a comment": (
        "// steps\n[]",
        ": line 1, column 1: is not valid JSON: expecting value",
    ),
    "not UTF-8": (b'["\xff"]', ": is not UTF-8 (byte 2)"),
    "not a number": ("[NaN]", ": is not valid JSON: NaN is no number"),
    "infinity": ("[-Infinity]", ": is not valid JSON: -Infinity is no number"),
    "a number without end": (
        "[" + "1" * 5000 + "]",
        ": holds a number that is too long",
    ),
    "half a character": (
        r'["\uD800"]',
        r": holds half of a surrogate pair (\ud800 to \udfff)",
    ),
    "deep": ("[" * 102 + "]" * 102, ": is nested deeper than 100 levels"),
    "too deep": ("[" * 100_000, ": is nested too deeply"),
    "null": ("null", ": is null"),
    "a number": (
        "3",
        ": must be a list of steps, or an object with 'steps', not the number 3",
    ),
    "an object": ('{"id": "t"}', ": is an object without 'steps'"),
    "steps of another kind": (
        '{"steps": {"a": 1}}',
        ": steps: must be a list, not an object",
    ),
    "no steps": ("[]", ": has no steps"),
    "a key twice": (
        (
            '{"steps": [], "steps": [{"id": "up", "type": "deploy_env",'
            ' "env_id": "library"}]}'
        ),
        ": steps: is given twice; keep one",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_a_file_that_is_no_list_of_steps(tmp_path: Path, case: str) -> None:
    text, expected = TEXTS[case]
    found = problems_of(tmp_path, text)
    if "trailing comma" in expected:  # Python 3.13 says it so, others otherwise
        assert found[0].startswith("tasks/t.json: line 2, column ")
        assert "is not valid JSON: " in found[0]
    else:
        assert found == [f"tasks/t.json{expected}"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    write_bundle(tmp_path)
    with pytest.raises(TaskLoadError) as caught:
        load_step_task(tmp_path / "tasks/t.json")
    assert str(caught.value) == (
        "tasks/t.json: cannot be read: No such file or directory"
    )


class Case(NamedTuple):
    """Steps, and what is said of them after "tasks/t.json: "."""

    steps: list[Any]
    problem: str
    rule: str = "13.1"


READY: list[Any] = [env_up(), agent_up(), ask()]

SHAPES: dict[str, Case] = {
    "no object": Case(["up"], "step 1: must be an object, not the string 'up'"),
    "type missing": Case([{"id": "up"}], "step 1 'up': type: is missing"),
    "type of another kind": Case(
        [env_up(type=3)], "step 1 'up': type: must be a string, not the number 3"
    ),
    "unknown type": Case(
        [env_up(type="deploy_envs")],
        "step 1 'up': type: unknown step type 'deploy_envs' (the closest is"
        " 'deploy_env')",
    ),
    "unsupported type": Case(
        [env_up(type="run_code")],
        "step 1 'up': type: step type 'run_code' is not supported by pytest-harbor",
    ),
    "missing field": Case(
        [without(env_up(), "env_id")], "step 1 'up': env_id: is missing"
    ),
    "missing in a list": Case(
        [*READY, grade(criteria=[{"id": "a"}])],
        "step 4 'grade': criteria[0].criterion: is missing",
    ),
    "a string for a number": Case(
        [env_up(ttl_seconds="60")],
        "step 1 'up': ttl_seconds: must be a number, not the string '60'",
    ),
    "a boolean for a number": Case(
        [env_up(cpu=True)], "step 1 'up': cpu: must be a number, not true"
    ),
    "a fraction for an integer": Case(
        [env_up(memory_mb=1.5)],
        "step 1 'up': memory_mb: must be an integer, not the number 1.5",
    ),
    "a number for a boolean": Case(
        [env_up(fail_task_on_error=1)],
        "step 1 'up': fail_task_on_error: must be true or false, not the number 1",
    ),
    "a number for a string": Case(
        [*READY[:2], ask(prompt=3)],
        "step 3 'ask': prompt: must be a string, not the number 3",
    ),
    "a string for a list": Case(
        [*READY[:1], agent_up(env_ids="library")],
        "step 2 'clerk-up': env_ids: must be a list, not the string 'library'",
    ),
    "a list for an object": Case(
        [env_up(metadata=[])],
        "step 1 'up': metadata: must be an object, not a list",
    ),
    "a number among variables": Case(
        [agent_up(env_vars={"A": 1})],
        "step 1 'clerk-up': env_vars.A: must be a string, not the number 1",
    ),
    "a bad variable": Case(
        [agent_up(env_vars={"A=B": ""})],
        "step 1 'clerk-up': env_vars: variable 'A=B': no '=', NUL or empty name",
    ),
    "no time": Case(
        [env_up(ttl_seconds=0)],
        "step 1 'up': ttl_seconds: must be a positive number, not 0",
    ),
    "no version": Case(
        [env_up(env_version=0)],
        "step 1 'up': env_version: must be an integer of at least 1, not 0",
    ),
    "a number beyond any machine": Case(
        [env_up(ttl_seconds=1e300)],
        "step 1 'up': ttl_seconds: must be a number from -9007199254740992 to"
        " 9007199254740992, not the number 1e+300",
    ),
    "no name": Case([env_up(env_id=" ")], "step 1 'up': env_id: must not be empty"),
    "gateway mode": Case(
        [env_up(gateway_mode="fast")],
        "step 1 'up': gateway_mode: the string 'fast' is not \"performance\" or"
        ' "consistent"',
    ),
    "no turns": Case(
        [*READY[:2], ask(max_conversation_turns=0)],
        "step 3 'ask': max_conversation_turns: must be an integer of at least 1, not 0",
    ),
    "two prompts": Case(
        [*READY[:2], ask(parts=[{"text": "a"}])],
        "step 3 'ask': has two prompts: give either prompt or parts",
    ),
    "no prompt": Case(
        [*READY[:2], without(ask(), "prompt")],
        "step 3 'ask': has no prompt: give prompt or parts",
    ),
    "no parts": Case(
        [*READY[:2], without(ask(parts=[]), "prompt")],
        "step 3 'ask': has no prompt: give prompt or parts",
    ),
    "output format": Case(
        [*READY[:2], ask(output_format={"type": "json_schema"})],
        'step 3 \'ask\': output_format: must be {"type": "json_schema", "schema":'
        " {...}}, not an object",
    ),
    "aggregator": Case(
        [*READY, grade(score_aggregator="mean")],
        "step 4 'grade': score_aggregator: the string 'mean' is not \"all_pass\","
        ' "any_pass" or "weighted_average"',
    ),
    "rubric format": Case(
        [*READY, grade(output_format="stars")],
        "step 4 'grade': output_format: the string 'stars' is not \"rubric_binary\" or"
        ' "rubric_partial"',
    ),
    "unsupported rubric format": Case(
        [*READY, grade(output_format="rubric_evidence")],
        "step 4 'grade': output_format: 'rubric_evidence' is not supported by"
        " pytest-harbor",
    ),
    "criteria with one id": Case(
        [*READY, grade(criteria=[{"id": "a", "criterion": "b"}] * 2)],
        "step 4 'grade': criteria: two criteria have the id 'a'",
    ),
    "criterion without id": Case(
        [*READY, grade(criteria=[{"id": "", "criterion": "b"}])],
        "step 4 'grade': criteria[0].id: must not be empty",
    ),
    "weight": Case(
        [*READY, grade(criteria=[{"id": "a", "criterion": "b", "weight": "2"}])],
        "step 4 'grade': criteria[0].weight: must be a number, not the string '2'",
    ),
    "outcomes": Case(
        [*READY, grade(criteria=[{"id": "a", "criterion": "b", "outcomes": [2]}])],
        "step 4 'grade': criteria[0].outcomes[0]: must be a number from 0 to 1, not 2",
    ),
    "outcomes of another kind": Case(
        [*READY, grade(criteria=[{"id": "a", "criterion": "b", "outcomes": "all"}])],
        "step 4 'grade': criteria[0].outcomes: must be a list, not the string 'all'",
    ),
    "scale": Case(
        [
            *READY,
            grade(
                criteria=[
                    {"id": "a", "criterion": "b", "outcomes": {"min": 2, "max": 1}}
                ]
            ),
        ],
        "step 4 'grade': criteria[0].outcomes: min must be less than max, not 2 and 1",
    ),
    "half a scale": Case(
        [
            *READY,
            grade(criteria=[{"id": "a", "criterion": "b", "outcomes": {"min": 2}}]),
        ],
        "step 4 'grade': criteria[0].outcomes.max: is missing",
    ),
    "load without target": Case(
        [load(artifact_id="rules")],
        "step 1 'load': has no target: give env_id or agent_name",
    ),
    "load with two targets": Case(
        [*READY[:2], load(env_id="library", agent_name="clerk", artifact_id="rules")],
        "step 3 'load': has two targets: give either env_id or agent_name",
    ),
    "load without source": Case(
        [*READY[:2], load(agent_name="clerk")],
        "step 3 'load': has no source: give artifact_id, artifacts,"
        " artifact_from_step_id or urls",
    ),
    "hand-off with another source": Case(
        [
            *READY[:2],
            take(),
            load(
                agent_name="clerk",
                artifact_from_step_id="take",
                artifact_id="rules",
                urls=["https://x/y"],
            ),
        ],
        "step 4 'load': artifact_from_step_id: cannot go with artifact_id and urls;"
        " use a step for each",
    ),
    "artifact and artifacts": Case(
        [
            *READY[:2],
            load(agent_name="clerk", artifact_id="rules", artifacts=[{"id": "maps"}]),
        ],
        "step 3 'load': artifact_id: cannot go with artifacts; put it into the list",
    ),
    "version without artifact": Case(
        [
            *READY[:2],
            load(agent_name="clerk", artifacts=[{"id": "maps"}], artifact_version=1),
        ],
        "step 3 'load': artifact_version: needs artifact_id",
    ),
    "hand-off by two names": Case(
        [
            *READY[:2],
            take(),
            load(
                agent_name="clerk",
                artifact_from_step_id="take",
                collected_artifacts_step_id="take",
            ),
        ],
        "step 4 'load': collected_artifacts_step_id: is the old name of"
        " artifact_from_step_id; keep one",
    ),
    "urls into an env": Case(
        [*READY[:1], load(env_id="library", urls=["https://x/y"])],
        "step 2 'load': urls: are loaded into an agent: give agent_name",
    ),
    "url without a name": Case(
        [*READY[:2], load(agent_name="clerk", urls=["https://x/"])],
        "step 3 'load': urls[0]: 'https://x/' has no file name: give a filename with"
        " it",
    ),
    "no url": Case(
        [*READY[:2], load(agent_name="clerk", urls=["x/y"])],
        "step 3 'load': urls[0]: 'x/y' is no URL",
    ),
    "url with a hostile name": Case(
        [*READY[:2], load(agent_name="clerk", urls=["https://x/a%2F..%2F.."])],
        "step 3 'load': urls[0]: '..' is no plain file name",
    ),
    "hostile filename": Case(
        [
            *READY[:2],
            load(agent_name="clerk", urls=[{"url": "https://x/y", "filename": "../y"}]),
        ],
        "step 3 'load': urls[0]: '../y' is no plain file name",
    ),
    "filename twice": Case(
        [
            *READY[:2],
            load(
                agent_name="clerk",
                urls=[
                    {"url": "https://x/y", "filename": "z"},
                    {"url": "https://x/q", "filename": "z"},
                ],
            ),
        ],
        "step 3 'load': urls: two of them have the filename 'z'",
    ),
    "filename of another url": Case(
        [
            *READY[:2],
            load(
                agent_name="clerk",
                urls=["https://x/z", {"url": "https://x/q", "filename": "z"}],
            ),
        ],
        "step 3 'load': urls: 'https://x/z' would be saved as 'z', another one's"
        " filename",
    ),
    "relative destination": Case(
        [
            *READY[:2],
            load(agent_name="clerk", artifact_id="rules", destination_path="a"),
        ],
        "step 3 'load': destination_path: must be an absolute path, not 'a'",
    ),
    "destination with dots": Case(
        [
            *READY[:2],
            load(agent_name="clerk", artifact_id="rules", destination_path="/a/../b"),
        ],
        "step 3 'load': destination_path: '/a/../b' holds '..'; write the path without"
        " it",
    ),
    "skill without text": Case(
        [agent_up(skills=[{"name": "a"}])],
        "step 1 'clerk-up': skills[0]: needs either skill_md or object_url",
    ),
    "skill with two texts": Case(
        [agent_up(skills=[{"name": "a", "skill_md": "", "object_url": "https://x/y"}])],
        "step 1 'clerk-up': skills[0]: needs either skill_md or object_url",
    ),
    "skill name": Case(
        [agent_up(skills=[{"name": "../a", "skill_md": ""}])],
        "step 1 'clerk-up': skills[0].name: '../a' is no skill name: use letters,"
        " digits, '.', '_', '-', starting with a letter or digit, at most 128",
    ),
    "skill twice": Case(
        [agent_up(skills=["fines", {"name": "fines", "skill_md": ""}])],
        "step 1 'clerk-up': skills: 'fines' is there twice",
    ),
    "unknown skill": Case(
        [agent_up(skills=["fine"])],
        "step 1 'clerk-up': skills[0]: no skill 'fine' in the bundle (did you mean"
        " 'fines'?)",
    ),
    "env twice": Case(
        [*READY[:1], agent_up(env_ids=["library", "library"])],
        "step 2 'clerk-up': env_ids: 'library' is there twice",
    ),
    "network policy": Case(
        [agent_up(network_policy={"mode": "open"})],
        "step 1 'clerk-up': network_policy.mode: the string 'open' is not"
        ' "allow_all" or "allowlist"',
    ),
    "person at no URL": Case(
        [
            agent_up(),
            ask(max_conversation_turns=2, user_a2a_url="localhost:8000"),
        ],
        "step 2 'ask': user_a2a_url: must be an http or https URL, not 'localhost:8000'",
    ),
    "judge's endpoint that is no URL": Case(
        [*READY, grade(use_agent_judge=False, default_model_api_base="http://")],
        "step 4 'grade': default_model_api_base: must be an http or https URL, not"
        " 'http://'",
    ),
    "path out of base_path": Case(
        [*READY[:2], take(artifact_paths=["a", "b/../../c"])],
        "step 3 'take': artifact_paths[1]: 'b/../../c' leaves base_path",
    ),
    "empty path": Case(
        [*READY[:2], take(artifact_paths=[""])],
        "step 3 'take': artifact_paths[0]: must not be empty",
    ),
    "relative base_path": Case(
        [*READY[:2], take(base_path="out")],
        "step 3 'take': base_path: must be an absolute path, not 'out'",
    ),
    "a fatal teardown": Case(
        [
            *READY[:1],
            {
                "id": "down",
                "type": "teardown_sandboxes",
                "env_ids": ["library"],
                "fail_task_on_error": True,
            },
        ],
        "step 2 'down': fail_task_on_error: cannot be true for this type; remove it",
    ),
    "an empty teardown": Case(
        [{"id": "down", "type": "teardown_sandboxes", "env_ids": []}],
        "step 1 'down': stops nothing: give agent_names, env_ids or sandbox_names",
    ),
    "an empty aggregate": Case(
        [{"id": "all", "type": "aggregate_verifiers", "verifier_ids": []}],
        "step 1 'all': verifier_ids: must name a verifier",
    ),
    "retry of another kind": Case(
        [env_up(retry_config="up")],
        "step 1 'up': retry_config: must be an object, not the string 'up'",
    ),
    "retry without a step": Case(
        [env_up(retry_config={"max_retries": 1})],
        "step 1 'up': retry_config.retry_from_step_id: is missing",
    ),
    "negative retries": Case(
        [env_up(retry_config={"retry_from_step_id": "up", "max_retries": -1})],
        "step 1 'up': retry_config.max_retries: must be an integer of at least 0,"
        " not -1",
    ),
}

PART = "step 3 'ask': parts[0]: "
NO_PART = (
    'is no A2A part: write {"kind": "text", "text": "..."}, {"kind": "data", "data":'
    ' ...} or {"kind": "file", "file": {"uri" or "bytes": "..."}}'
)
PARTS: dict[str, tuple[Any, str]] = {
    "a string": ("Hello", "must be an object, not the string 'Hello'"),
    "unknown kind": ({"kind": "image", "image": "x"}, NO_PART),
    "kind of another kind": ({"kind": ["text"], "text": "x"}, NO_PART),
    "kind alone": ({"kind": "text"}, NO_PART),
    "nothing": ({}, NO_PART),
    "two contents": ({"text": "a", "data": 1}, NO_PART),
    "text of another kind": ({"kind": "text", "text": 3}, "text must be a string"),
    "file without content": (
        {"kind": "file", "file": {"name": "a"}},
        "a file part needs either uri or bytes",
    ),
    "file with two": (
        {"kind": "file", "file": {"uri": "a", "bytes": ""}},
        "a file part needs either uri or bytes",
    ),
    "no base64 0.3": ({"kind": "file", "file": {"bytes": "§"}}, "bytes is not base64"),
    "more than base64": ({"raw": "aG!k="}, "raw is not base64"),
    "no base64 1.0": ({"raw": "a"}, "raw is not base64"),
}
for name, (part, what) in PARTS.items():
    question = without(ask(parts=[part]), "prompt")
    SHAPES[f"part: {name}"] = Case([*READY[:2], question], PART + what)

ORDERS: dict[str, Case] = {
    "id missing": Case([without(env_up(), "id")], "step 1: id: is missing"),
    "id of another kind": Case(
        [env_up(id=3)], "step 1: id: must be a string, not the number 3"
    ),
    "id empty": Case([env_up(id=" ")], "step 1: id: must not be empty"),
    "id twice": Case(
        [env_up(), agent_up(id="up")],
        "step 2 'up': id: 'up' is also the id of step 1; rename one",
    ),
    "depends on a string": Case(
        [env_up(), agent_up(depends_on="up")],
        "step 2 'clerk-up': depends_on: must be a list of step ids, not the string"
        " 'up'",
    ),
    "depends on a number": Case(
        [env_up(), agent_up(depends_on=["up", 3])],
        "step 2 'clerk-up': depends_on[1]: must be a step id or {\"task_step_id\":"
        ' "<id>"}, not the number 3',
    ),
    "depends on another object": Case(
        [env_up(), agent_up(depends_on=[{"id": "up"}])],
        "step 2 'clerk-up': depends_on[0]: must be a step id or {\"task_step_id\":"
        ' "<id>"}, not an object',
    ),
    "depends on nobody": Case(
        [env_up(), agent_up(depends_on=["upp"])],
        "step 2 'clerk-up': depends_on[0]: 'upp' is no step of this task (did you mean"
        " 'up'?)",
    ),
    "depends on a later step": Case(
        [env_up(depends_on=["clerk-up"]), agent_up()],
        "step 1 'up': depends_on[0]: 'clerk-up' is step 2, which comes later; move it"
        " before",
    ),
    "depends on itself": Case(
        [env_up(depends_on=["up"])],
        "step 1 'up': depends_on[0]: 'up' is this step itself",
    ),
    "retry from nobody": Case(
        [env_up(retry_config={"retry_from_step_id": "upp"})],
        "step 1 'up': retry_config.retry_from_step_id: 'upp' is no step of this task"
        " (did you mean 'up'?)",
    ),
    "retry from a step beside": Case(
        [
            env_up(),
            agent_up(depends_on=[], retry_config={"go_to_step_id": "up"}),
        ],
        "step 2 'clerk-up': retry_config.retry_from_step_id: 'up' is neither this step"
        " nor one that it waits for",
    ),
    "retry from two steps": Case(
        [
            env_up(),
            agent_up(
                retry_config={"retry_from_step_id": "clerk-up", "go_to_step_id": "up"}
            ),
        ],
        "step 2 'clerk-up': retry_config.go_to_step_id: is another name of"
        " retry_from_step_id; keep one",
    ),
}

NAMES: dict[str, Case] = {
    "prompt_id twice": Case(
        [*READY, ask(id="again")],
        "step 4 'again': prompt_id: 'reply' is also the prompt_id of step 3 'ask';"
        " rename one",
        "13.3",
    ),
    "verifier_id twice": Case(
        [*READY, grade(), grade(id="again")],
        "step 5 'again': verifier_id: 'manners' is also the verifier_id of step 4"
        " 'grade'; rename one",
        "13.3",
    ),
    "verifier_id of another type": Case(
        [
            *READY,
            grade(),
            {
                "id": "lent",
                "type": "env_outcome_verifier",
                "env_id": "library",
                "file_artifact_id": "check_loan",
                "verifier_id": "manners",
            },
        ],
        "step 5 'lent': verifier_id: 'manners' is also the verifier_id of step 4"
        " 'grade'; rename one",
        "13.3",
    ),
    "env that nobody deploys": Case(
        [load(env_id="library", artifact_id="shelves")],
        "step 1 'load': env_id: no step deploys env 'library'",
        "13.4",
    ),
    "near env": Case(
        [env_up(), load(env_id="libary", artifact_id="shelves")],
        "step 2 'load': env_id: no step deploys env 'libary' (did you mean 'library'?)",
        "13.4",
    ),
    "env of an agent": Case(
        [env_up(), agent_up(env_ids=["library", "mail"])],
        "step 2 'clerk-up': env_ids[1]: no step deploys env 'mail'",
        "13.4",
    ),
    "env that is not waited for": Case(
        [env_up(), agent_up(env_ids=["library"], depends_on=[])],
        "step 2 'clerk-up': env_ids[0]: env 'library' is deployed by step 1 'up',"
        " which this step does not wait for; add 'up' to depends_on",
        "13.4",
    ),
    "env that comes later": Case(
        [agent_up(env_ids=["library"]), env_up()],
        "step 1 'clerk-up': env_ids[0]: env 'library' is deployed by step 2 'up',"
        " which comes later; move it before, and into depends_on",
        "13.4",
    ),
    "agent of a load": Case(
        [load(agent_name="clerk", artifact_id="rules")],
        "step 1 'load': agent_name: no step deploys an agent named 'clerk'",
        "13.4",
    ),
    "agent of a collect step": Case(
        [take(agent_name=None)],
        "step 1 'take': agent_name: no step deploys an agent named 'default-agent'",
        "13.4",
    ),
    "prompted agent that is not waited for": Case(
        [agent_up(), ask(depends_on=[])],
        "step 2 'ask': agent_name: agent 'clerk' is deployed by step 1 'clerk-up',"
        " which this step does not wait for; add 'clerk-up' to depends_on",
        "13.4",
    ),
    "user that nobody deploys": Case(
        [agent_up(), ask(max_conversation_turns=2, user_agent_name="reader")],
        "step 2 'ask': user_agent_name: no step deploys an agent named 'reader'",
        "13.4",
    ),
    "judge that nobody deploys": Case(
        [*READY, grade(agent_name="judge")],
        "step 4 'grade': agent_name: no step deploys an agent named 'judge'",
        "13.4",
    ),
    "reply that nobody gives": Case(
        [*READY, grade(prompt_id="replies")],
        "step 4 'grade': prompt_id: no step has the prompt_id 'replies' (did you mean"
        " 'reply'?)",
        "13.4",
    ),
    "reply of a step without a prompt_id": Case(
        [agent_up(), ask(prompt_id=None), grade(prompt_id="ask")],
        "step 3 'grade': prompt_id: no step has the prompt_id 'ask'; step 2 'ask' needs"
        " one",
        "13.4",
    ),
    "reply that is not waited for": Case(
        [*READY, grade(depends_on=["up"])],
        "step 4 'grade': prompt_id: reply 'reply' is written by step 3 'ask', which"
        " this step does not wait for; add 'ask' to depends_on",
        "13.4",
    ),
    "hand-off of nobody": Case(
        [*READY[:2], load(agent_name="clerk", artifact_from_step_id="take")],
        "step 3 'load': artifact_from_step_id: 'take' is no step of this task",
        "13.4",
    ),
    "hand-off of another type": Case(
        [*READY, load(agent_name="clerk", artifact_from_step_id="ask")],
        "step 4 'load': artifact_from_step_id: 'ask' (prompt_agent) collects no files",
        "13.4",
    ),
    "hand-off that is not waited for": Case(
        [
            *READY[:2],
            take(),
            load(
                agent_name="clerk",
                artifact_from_step_id="take",
                depends_on=["clerk-up"],
            ),
        ],
        "step 4 'load': artifact_from_step_id: files of 'take' are collected by step 3"
        " 'take', which this step does not wait for; add 'take' to depends_on",
        "13.4",
    ),
    "hand-off of itself": Case(
        [*READY[:2], take(), load(agent_name="clerk", artifact_from_step_id="load")],
        "step 4 'load': artifact_from_step_id: 'load' (load_artifact) collects no"
        " files",
        "13.4",
    ),
    "grade that nobody gives": Case(
        [
            *READY,
            grade(),
            {"id": "all", "type": "aggregate_verifiers", "verifier_ids": ["manner"]},
        ],
        "step 5 'all': verifier_ids[0]: no step has the verifier_id 'manner' (did you"
        " mean 'manners'?)",
        "13.4",
    ),
}

ENTRIES: dict[str, Case] = {
    "unknown env": Case(
        [env_up(env_id="libary")],
        "step 1 'up': env_id: no env 'libary' in the bundle (did you mean 'library'?)",
        "13.5",
    ),
    "path as env": Case(
        [env_up(env_id="../envs/library")],
        "step 1 'up': env_id: no env '../envs/library' in the bundle (did you mean"
        " 'library'?)",
        "13.5",
    ),
    "placeholder as env": Case(
        [env_up(env_id="<env>")],
        "step 1 'up': env_id: no env '<env>' in the bundle; is it a placeholder that no"
        " seed fills?",
        "13.5",
    ),
    "version of an env": Case(
        [env_up(env_version=2)],
        "step 1 'up': env_version: env 'library' is a folder, whose one version is 1,"
        " not 2; remove it",
        "13.5",
    ),
    "version of an agent": Case(
        [agent_up(a2a_agent_version=3)],
        "step 1 'clerk-up': a2a_agent_version: agent 'clerk' is a folder, whose one"
        " version is 1, not 3; remove it",
        "13.5",
    ),
    "version of an artifact": Case(
        [agent_up(), load(agent_name="clerk", artifact_id="rules", artifact_version=2)],
        "step 2 'load': artifact_version: artifact 'rules' is a folder, whose one"
        " version is 1, not 2; remove it",
        "13.5",
    ),
    "version in a list": Case(
        [
            agent_up(),
            load(agent_name="clerk", artifacts=[{"id": "rules", "version": 2}]),
        ],
        "step 2 'load': artifacts[0].version: artifact 'rules' is a folder, whose one"
        " version is 1, not 2; remove it",
        "13.5",
    ),
    "unknown artifact": Case(
        [agent_up(), load(agent_name="clerk", artifact_id="rule")],
        "step 2 'load': artifact_id: no artifact 'rule' in the bundle (did you mean"
        " 'rules'?)",
        "13.5",
    ),
    "unknown artifact in a list": Case(
        [agent_up(), load(agent_name="clerk", artifacts=[{"id": "maps"}, {"id": "x"}])],
        "step 2 'load': artifacts[1].id: no artifact 'x' in the bundle",
        "13.5",
    ),
    "an image": Case(
        [agent_up(), load(agent_name="clerk", artifact_id="image")],
        "step 2 'load': artifact_id: 'image' is an image, which no step loads",
        "13.5",
    ),
    "a check that is no file": Case(
        [
            env_up(),
            {
                "id": "lent",
                "type": "env_outcome_verifier",
                "env_id": "library",
                "file_artifact_id": "maps",
            },
        ],
        "step 2 'lent': file_artifact_id: 'maps' is no file artifact"
        " (file_artifact_universe)",
        "13.5",
    ),
    "a check that is not there": Case(
        [
            env_up(),
            {
                "id": "lent",
                "type": "env_outcome_verifier",
                "env_id": "library",
                "file_artifact_id": "check_loans",
            },
        ],
        "step 2 'lent': file_artifact_id: no artifact 'check_loans' in the bundle (did"
        " you mean 'check_loan'?)",
        "13.5",
    ),
    "version of a check": Case(
        [
            env_up(),
            {
                "id": "lent",
                "type": "env_outcome_verifier",
                "env_id": "library",
                "file_artifact_id": "check_loan",
                "file_artifact_version": 2,
            },
        ],
        "step 2 'lent': file_artifact_version: artifact 'check_loan' is a folder, whose"
        " one version is 1, not 2; remove it",
        "13.5",
    ),
}
ALL: dict[str, Case] = {
    **SHAPES,
    **{name: case._replace(rule="13.2") for name, case in ORDERS.items()},
    **NAMES,
    **ENTRIES,
}


@pytest.mark.parametrize("case", ALL)
def test_refusal(desk: Path, case: str) -> None:
    steps, problem, rule = ALL[case]
    with pytest.raises(TaskLoadError) as caught:
        load_steps(desk, steps)
    assert [str(found) for found in caught.value.problems] == [
        f"tasks/t.json: {problem}"
    ]
    assert [found.rule for found in caught.value.problems] == [rule]


@pytest.mark.parametrize("options", [{}, {"seed": {"a": 1}, "overrides": {"b": 2}}])
def test_a_key_of_a_step_that_is_given_twice(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    text = (
        '[{"id": "up", "type": "deploy_env", "env_id": "x", "env_id": "library",'
        ' "metadata": {"a": 1, "b": [{"c": 1, "c": 2, "c": 3}]}}]'
    )
    assert problems_of(tmp_path, text, **options) == [
        "tasks/t.json: step 1 'up': env_id: is given twice; keep one",
        "tasks/t.json: step 1 'up': metadata.b[0].c: is given twice; keep one",
    ]


def test_a_stored_task_of_another_type(tmp_path: Path) -> None:
    stored = {"type": "eval", "steps": [env_up()]}
    assert problems_of(tmp_path, stored) == [
        "tasks/t.json: type: must be \"task\", not the string 'eval'"
    ]


def test_an_artifact_for_another_environment(tmp_path: Path) -> None:
    files = {"envs/library/env.toml": 'command = ["x"]\nenvironment_name = "archive"\n'}
    steps = [env_up(), load(env_id="library", artifact_id="shelves")]
    assert problems_of(tmp_path, steps, files=files) == [
        (
            "tasks/t.json: step 2 'load': artifact_id: 'shelves' is for the environment"
            " 'library', and env 'library' is 'archive'"
        )
    ]


def test_an_environment_without_a_name_in_its_toml_is_not_judged(
    tmp_path: Path,
) -> None:
    files = {"envs/library/env.toml": 'command = ["x"]\n'}
    steps = [env_up(), load(env_id="library", artifact_id="shelves")]
    assert load_steps(tmp_path, steps, files=files).warnings == ()


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    steps = [agent_up(), load(agent_name="clerk", artifact_id="notes")]
    found = problems_of(tmp_path, steps, files={"artifacts/notes.md": ""})
    assert found == [
        (
            "tasks/t.json: step 2 'load': artifact_id: no artifact 'notes' in the bundle;"
            " artifacts/notes.md is a file, put it into a folder artifacts/notes"
        )
    ]


def test_an_env_that_already_runs_is_not_deployed(tmp_path: Path) -> None:
    files = {"envs/live/env.toml": 'url = "https://mcp.example/mcp"\n'}
    found = problems_of(tmp_path, [env_up(env_id="live")], files=files)
    assert found == [
        (
            "tasks/t.json: step 1 'up': env_id: 'live' already runs at"
            " https://mcp.example/mcp; name it in env_ids and do not deploy it"
        )
    ]


@pytest.mark.parametrize("name", ["live", "https://mcp.example/mcp"])
def test_an_env_that_already_runs_needs_no_step(tmp_path: Path, name: str) -> None:
    files = {"envs/live/env.toml": 'url = "https://mcp.example/mcp"\n'}
    assert load_steps(tmp_path, [agent_up(env_ids=[name])], files=files).warnings == ()


def test_everything_is_told_at_once_in_the_order_of_the_steps(tmp_path: Path) -> None:
    steps: list[Any] = [
        env_up(ttl_seconds="1", env_id="libary"),
        agent_up(id="up", env_ids=["mail"], a2a_agent_version=2),
        7,
        grade(criteria=[{"id": "a"}, {"id": "b", "criterion": "c", "weight": None}]),
        without(grade(id="last", verifier_id="manners", depends_on=["grades"]), "type"),
        ask(prompt_id="other", agent_name="clerk", depends_on=[]),
    ]
    assert [
        line.removeprefix("tasks/t.json: ") for line in problems_of(tmp_path, steps)
    ] == [
        "step 1 'up': ttl_seconds: must be a number, not the string '1'",
        "step 1 'up': env_id: no env 'libary' in the bundle (did you mean 'library'?)",
        "step 2 'up': id: 'up' is also the id of step 1; rename one",
        (
            "step 2 'up': a2a_agent_version: agent 'clerk' is a folder, whose one version"
            " is 1, not 2; remove it"
        ),
        "step 3: must be an object, not the number 7",
        "step 4 'grade': criteria[0].criterion: is missing",
        "step 4 'grade': criteria[1].weight: must be a number, not null",
        (
            "step 5 'last': depends_on[0]: 'grades' is no step of this task (did you mean"
            " 'grade'?)"
        ),
        "step 5 'last': type: is missing",
        (
            "step 6 'ask': agent_name: agent 'clerk' is deployed by step 2 'up', which this"
            " step does not wait for; add 'up' to depends_on"
        ),
    ]


# What follows from a mistake is no second message.
FOLLOW_UPS: dict[str, tuple[list[Any], list[str]]] = {
    "a bad dependency": (
        [env_up(), agent_up(), ask(depends_on=["clark-up"])],
        [
            (
                "step 3 'ask': depends_on[0]: 'clark-up' is no step of this task (did you"
                " mean 'clerk-up'?)"
            )
        ],
    ),
    "an unknown type may write any name": (
        [env_up(type="deploy"), load(env_id="library", artifact_id="shelves")],
        ["step 1 'up': type: unknown step type 'deploy' (the closest is 'deploy_env')"],
    ),
    "a misspelt type writes what the type that was meant does": (
        [
            env_up(),
            agent_up(env_ids=["libary"]),
            ask(type="promt_agent"),
            grade(prompt_id="replay"),
        ],
        [
            (
                "step 2 'clerk-up': env_ids[0]: no step deploys env 'libary'"
                " (did you mean 'library'?)"
            ),
            (
                "step 3 'ask': type: unknown step type 'promt_agent' (the closest is"
                " 'prompt_agent')"
            ),
        ],
    ),
    "a name that is missing is not looked up": (
        [without(env_up(), "env_id"), agent_up(), ask(), without(grade(), "prompt_id")],
        [
            "step 1 'up': env_id: is missing",
            "step 4 'grade': prompt_id: is missing",
        ],
    ),
    "two names that are missing are not the same": (
        [without(env_up(), "env_id"), without(env_up(id="more"), "env_id")],
        ["step 1 'up': env_id: is missing", "step 2 'more': env_id: is missing"],
    ),
    "an id that is there twice": (
        [env_up(), agent_up(id="up", env_ids=["library"])],
        ["step 2 'up': id: 'up' is also the id of step 1; rename one"],
    ),
    "a refused prompt is no lack of one": (
        [agent_up(), ask(prompt=3)],
        ["step 2 'ask': prompt: must be a string, not the number 3"],
    ),
    "a refused prompt beside parts": (
        [agent_up(), ask(prompt=3, parts=[{"text": "a"}])],
        ["step 2 'ask': prompt: must be a string, not the number 3"],
    ),
    "a step with a refused field is still checked": (
        [agent_up(), ask(), grade(judge_timeout_seconds=0, prompt_id="x")],
        [
            "step 3 'grade': judge_timeout_seconds: must be a positive number, not 0",
            "step 3 'grade': prompt_id: no step has the prompt_id 'x'",
        ],
    ),
    "a step that lacks a field is still checked": (
        [agent_up(), ask(), without(grade(agent_name="x"), "criteria")],
        [
            "step 3 'grade': criteria: is missing",
            "step 3 'grade': agent_name: no step deploys an agent named 'x'",
        ],
    ),
}


@pytest.mark.parametrize("case", FOLLOW_UPS)
def test_follow_ups_are_not_told(tmp_path: Path, case: str) -> None:
    steps, expected = FOLLOW_UPS[case]
    found = problems_of(tmp_path, steps, strict=True)
    assert [line.removeprefix("tasks/t.json: ") for line in found] == expected
