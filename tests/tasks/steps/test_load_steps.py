"""What a load accepts and what it makes of the file (task-steps spec 1, 4 to 10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, field_validator

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.load import load_step_task
from pytest_harbor.tasks.steps.model import (
    AggregateVerifiers,
    CollectArtifacts,
    DeployAgent,
    DeployEnv,
    EnvOutcomeVerifier,
    LoadArtifact,
    PromptAgent,
    RubricsVerifier,
    TeardownSandboxes,
)
from pytest_harbor.tasks.steps.sources import download_names
from pytest_harbor.tasks.steps.step import Step
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

SKILL_MD = "---\nname: fines\ndescription: How late fees are worked out\n---\n10 cents."

# The worked examples of the specification, as one task.
LENDING_DESK: list[dict[str, Any]] = [
    {
        "id": "library-up",
        "type": "deploy_env",
        "env_id": "library",
        "ttl_seconds": 1800,
        "depends_on": [],
    },
    {
        "id": "reader-up",
        "type": "deploy_agent",
        "a2a_agent_id": "reader",
        "agent_name": "reader",
        "depends_on": [],
    },
    {
        "id": "shelves",
        "type": "load_artifact",
        "env_id": "library",
        "artifact_id": "shelves",
        "depends_on": ["library-up"],
    },
    {
        "id": "clerk-up",
        "type": "deploy_agent",
        "a2a_agent_id": "codex",
        "agent_name": "clerk",
        "env_ids": ["library"],
        "system_prompt": "You run the lending desk.",
        "skills": [
            {
                "name": "fines",
                "description": "How late fees are worked out",
                "skill_md": SKILL_MD,
            }
        ],
        "depends_on": ["library-up"],
    },
    {
        "id": "serve",
        "type": "prompt_agent",
        "agent_name": "clerk",
        "prompt_id": "serve",
        "prompt": "A reader is at the desk. Help them until they leave.",
        "max_conversation_turns": 6,
        "user_agent_name": "reader",
        "timeout_seconds": 300,
        "depends_on": ["shelves", "clerk-up", "reader-up"],
    },
    {
        "id": "desk-manners",
        "type": "rubrics_verifier",
        "prompt_id": "serve",
        "verifier_id": "desk-manners",
        "use_agent_judge": False,
        "default_model": "openai/judge-small",
        "score_aggregator": "weighted_average",
        "criteria": [
            {"id": "found", "criterion": "The clerk says where.", "weight": 2},
            {"id": "kind", "criterion": "The clerk stays friendly.", "weight": 1},
            {"id": "invents", "criterion": "The clerk invents a book.", "weight": -1},
        ],
        "depends_on": ["serve"],
    },
    {
        "id": "take",
        "type": "collect_artifacts",
        "agent_name": "clerk",
        "base_path": "/app/artifact",
        "artifact_paths": ["receipt.pdf", "loans/today.csv"],
        "depends_on": ["serve"],
    },
    {
        "id": "auditor-up",
        "type": "deploy_agent",
        "agent_name": "auditor",
        "depends_on": [],
    },
    {
        "id": "pass-on",
        "type": "load_artifact",
        "agent_name": "auditor",
        "artifact_from_step_id": "take",
        "depends_on": ["take", "auditor-up"],
    },
    {
        "id": "audit",
        "type": "rubrics_verifier",
        "agent_name": "auditor",
        "prompt_id": "serve",
        "verifier_id": "audit",
        "criteria": [{"id": "sum", "criterion": "The fines add up.", "weight": 1}],
        "depends_on": ["pass-on"],
    },
    {
        "id": "lent",
        "type": "env_outcome_verifier",
        "env_id": "library",
        "file_artifact_id": "check_loan",
        "verifier_id": "lent",
        "depends_on": ["serve"],
    },
    {
        "id": "close-desk",
        "type": "teardown_sandboxes",
        "agent_names": ["clerk"],
        "depends_on": ["take"],
    },
]


def test_the_specifications_examples_load(desk: Path) -> None:
    task = load_steps(desk, LENDING_DESK)

    assert task.name == "t"
    assert task.label == "tasks/t.json"
    assert task.bundle.root == desk
    assert task.warnings == ()
    assert [type(step) for step in task.steps] == [
        DeployEnv,
        DeployAgent,
        LoadArtifact,
        DeployAgent,
        PromptAgent,
        RubricsVerifier,
        CollectArtifacts,
        DeployAgent,
        LoadArtifact,
        RubricsVerifier,
        EnvOutcomeVerifier,
        TeardownSandboxes,
    ]
    assert [step.position for step in task.steps] == list(range(1, 13))
    assert [step.id for step in task.steps] == [step["id"] for step in LENDING_DESK]
    assert [step.raw for step in task.steps] == LENDING_DESK
    serve = task.by_id["serve"]
    assert isinstance(serve, PromptAgent)
    assert serve.depends_on == ("shelves", "clerk-up", "reader-up")
    assert serve.timeout_seconds == 300
    assert task.ancestors["serve"] == {"shelves", "clerk-up", "reader-up", "library-up"}


# Every field that is left out, as the specification's tables have it.
DEFAULTS: list[tuple[type[Step], dict[str, Any], dict[str, Any]]] = [
    (
        DeployEnv,
        {"env_id": "e"},
        {
            "env_version": None,
            "ttl_seconds": 7200,
            "cpu": None,
            "memory_mb": None,
            "disk_size_gb": 10,
            "sandbox_type": None,
            "gateway_mode": "performance",
            "metadata": {},
        },
    ),
    (
        LoadArtifact,
        {"env_id": "e", "artifact_id": "a"},
        {
            "agent_name": None,
            "artifact_version": None,
            "artifacts": (),
            "artifact_from_step_id": None,
            "urls": (),
            "destination_path": None,
        },
    ),
    (
        DeployAgent,
        {},
        {
            "a2a_agent_id": None,
            "a2a_agent_version": None,
            "agent_name": "default-agent",
            "env_ids": (),
            "skills": (),
            "system_prompt": None,
            "env_vars": {},
            "role": None,
            "sandbox_type": None,
            "ttl_seconds": 7200,
            "cpu": 1,
            "memory_mb": 8192,
            "disk_size_gb": 10,
            "agent_description": None,
            "network_policy": None,
            "metadata": {},
        },
    ),
    (
        PromptAgent,
        {"prompt": "Hello."},
        {
            "parts": (),
            "agent_name": "default-agent",
            "prompt_id": None,
            "timeout_seconds": 600,
            "model": None,
            "output_format": None,
            "max_conversation_turns": 1,
            "user_agent_name": "human_agent",
            "user_a2a_url": None,
            "system_prompt": None,
            "max_turns": None,
            "context_id": None,
            "poll_interval_seconds": 2,
            "user_agent_timeout_seconds": 600,
            "user_output_format": None,
            "user_model": None,
            "model_params": None,
            "effort": None,
            "max_thinking_tokens": None,
        },
    ),
    (
        RubricsVerifier,
        {"prompt_id": "p", "criteria": []},
        {
            "verifier_id": None,
            "agent_name": None,
            "use_agent_judge": True,
            "judge_a2a_agent_id": None,
            "default_model": None,
            "use_trajectory": True,
            "score_aggregator": "all_pass",
            "output_format": "rubric_binary",
            "judge_timeout_seconds": 1000,
            "grading_policy_prompt": None,
            "context_facts_for_judge": {},
            "default_model_api_base": None,
            "effort": None,
            "max_thinking_tokens": None,
        },
    ),
    (
        CollectArtifacts,
        {},
        {
            "agent_name": "default-agent",
            "base_path": "/app/artifact",
            "artifact_paths": (),
            "artifacts_key": "expected_artifacts",
            "exclude_basenames": (),
            "universe_id_suffix": "",
        },
    ),
    (
        EnvOutcomeVerifier,
        {"env_id": "e", "file_artifact_id": "f"},
        {
            "file_artifact_version": None,
            "verifier_id": None,
            "score_aggregator": "all_pass",
            "prompt_id": None,
        },
    ),
    (
        AggregateVerifiers,
        {"verifier_ids": ["v"]},
        {"verifier_id": None, "score_aggregator": "weighted_average"},
    ),
    (
        TeardownSandboxes,
        {"env_ids": ["e"]},
        {"agent_names": (), "sandbox_names": (), "fail_task_on_error": False},
    ),
]


@pytest.mark.parametrize(
    ("model", "given", "expected"), DEFAULTS, ids=lambda value: str(value)[:40]
)
def test_defaults(
    model: type[Step], given: dict[str, Any], expected: dict[str, Any]
) -> None:
    step = model(id="s", **given)

    common = {
        "id": step.id,
        "type": step.type,
        "depends_on": (),
        "fail_task_on_error": True,
        "retry": None,
        "version": None,
        "position": 0,
        "raw": {},
    }
    assert set(model.model_fields) == {*common, *given, *expected}
    for name, value in {**common, **expected}.items():
        assert getattr(step, name) == value, name


def test_a_stored_task_is_the_same_list_in_an_object(tmp_path: Path) -> None:
    stored = {"id": "whatever", "type": "task", "version": 3, "steps": [env_up()]}

    task = load_steps(tmp_path, stored)

    assert task.name == "t"
    assert [step.id for step in task.steps] == ["up"]
    assert task.warnings == ()


@pytest.mark.parametrize(
    ("name", "root", "task"),
    [
        ("tasks/reply.json", ".", "reply"),
        ("tasks/reply.task.json", ".", "reply"),
        ("reply.task.json", ".", "reply"),
        ("sub/reply.v2.json", "sub", "reply.v2"),
    ],
)
def test_a_task_is_named_by_its_file(
    tmp_path: Path, name: str, root: str, task: str
) -> None:
    write_bundle(tmp_path)
    write_bundle(tmp_path / "sub", files={})
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps([env_up()]))

    loaded = load_step_task(file)

    assert loaded.name == task
    assert loaded.file == file
    assert loaded.bundle.root == tmp_path / root


def test_a_byte_order_mark_is_tolerated(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf" + json.dumps([env_up()]).encode()
    assert load_steps(tmp_path, text).steps[0].id == "up"


# depends_on of the third of three steps.
DEPENDS_ON: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "objects": ({"depends_on": [{"task_step_id": "up"}]}, ("up",)),
    "ids": ({"depends_on": ["clerk-up", "up"]}, ("clerk-up", "up")),
    "both": ({"depends_on": ["up", {"task_step_id": "clerk-up"}]}, ("up", "clerk-up")),
    "one twice": ({"depends_on": ["up", {"task_step_id": "up"}]}, ("up",)),
    "none": ({"depends_on": []}, ()),
    "null": ({"depends_on": None}, ("up", "clerk-up")),
    "absent": ({}, ("up", "clerk-up")),
}


@pytest.mark.parametrize("case", DEPENDS_ON)
def test_depends_on(desk: Path, case: str) -> None:
    fields, expected = DEPENDS_ON[case]
    last = load(env_id="library", artifact_id="shelves", **fields)
    if case == "none":  # what reads nothing needs nothing
        last = env_up(id="load", depends_on=[])
    task = load_steps(desk, [env_up(), agent_up(depends_on=[]), last])
    assert task.steps[2].depends_on == expected


def test_the_first_step_waits_for_nothing(tmp_path: Path) -> None:
    assert load_steps(tmp_path, [env_up()]).steps[0].depends_on == ()


@pytest.mark.parametrize("key", ["retry_from_step_id", "go_to_step_id"])
@pytest.mark.parametrize("target", ["up", "clerk-up", "ask"])
def test_a_retry_goes_back_to_the_step_or_an_ancestor(
    desk: Path, key: str, target: str
) -> None:
    steps = [env_up(), agent_up(), ask(retry_config={key: target, "max_retries": 3})]

    retry = load_steps(desk, steps).steps[2].retry

    assert retry is not None
    assert (retry.retry_from_step_id, retry.max_retries) == (target, 3)


def test_a_retry_is_one_by_default(tmp_path: Path) -> None:
    step = env_up(retry_config={"retry_from_step_id": "up"})
    retry = load_steps(tmp_path, [step]).steps[0].retry
    assert retry is not None
    assert retry.max_retries == 1


def test_null_is_a_field_that_is_not_there(desk: Path) -> None:
    step = env_up(ttl_seconds=None, metadata=None, sandbox_type=None, retry_config=None)
    assert load_steps(desk, [step]).steps[0] == load_steps(desk, [env_up()]).steps[
        0
    ].model_copy(update={"raw": step})


def test_numbers_stay_what_the_file_has(desk: Path) -> None:
    steps = [agent_up(), ask(timeout_seconds=30, poll_interval_seconds=0.5)]
    step = load_steps(desk, steps).steps[1]
    assert isinstance(step, PromptAgent)
    assert repr(step.timeout_seconds) == "30"
    assert step.poll_interval_seconds == 0.5


PARTS: dict[str, dict[str, Any]] = {
    "text 0.3": {"kind": "text", "text": "Hello"},
    "data 0.3": {"kind": "data", "data": {"a": [1]}, "metadata": {"b": 2}},
    "file by uri 0.3": {"kind": "file", "file": {"uri": "https://x/y", "name": "y"}},
    "file by bytes 0.3": {"kind": "file", "file": {"bytes": "aGk=", "mimeType": "a/b"}},
    "text 1.0": {"text": "Hello"},
    "data 1.0": {"data": [1, 2], "metadata": {}},
    "url 1.0": {"url": "https://x/y", "filename": "y", "mediaType": "a/b"},
    "raw 1.0": {"raw": "aGk=", "filename": "hi.txt"},
}


@pytest.mark.parametrize("case", PARTS)
def test_parts_of_either_protocol_version_stay_as_they_are(
    desk: Path, case: str
) -> None:
    question = ask(parts=[PARTS[case]])
    del question["prompt"]

    step = load_steps(desk, [agent_up(), question]).steps[1]

    assert isinstance(step, PromptAgent)
    assert step.parts == (PARTS[case],)
    assert step.prompt is None


OUTCOMES: dict[str, Any] = {
    "numbers": [0, 0.5, 1],
    "labels": [{"label": "good", "score": 0.7}, {"label": "bad", "score": 0}],
    "a scale": {"min": -1, "max": 1},
    "a long scale": {
        "min": {"value": 0, "means": "never"},
        "max": {"value": 10, "means": "always"},
    },
}


@pytest.mark.parametrize("case", OUTCOMES)
def test_outcomes_of_a_criterion(desk: Path, case: str) -> None:
    criterion = {
        "id": "kind",
        "criterion": "The clerk is kind.",
        "outcomes": OUTCOMES[case],
        "pass_threshold": 0.6,
        "note": "for the judge",
    }
    steps = [
        agent_up(),
        ask(),
        grade(output_format="rubric_partial", criteria=[criterion]),
    ]

    task = load_steps(desk, steps)

    step = task.steps[2]
    assert isinstance(step, RubricsVerifier)
    (read,) = step.criteria
    assert read.pass_threshold == 0.6
    assert read.weight == 1
    assert read.model_extra == {"note": "for the judge"}
    assert step.raw["criteria"] == [criterion]
    assert task.warnings == ()


def test_skills_with_their_text_and_of_the_bundle(tmp_path: Path) -> None:
    skills = [
        "fines",
        {"name": "old", "description": "d", "content": "text"},
        {"name": "far", "object_url": "https://x/y"},
    ]
    step = load_steps(tmp_path, [agent_up(skills=skills)]).steps[0]

    assert isinstance(step, DeployAgent)
    fines, old, far = step.skills
    assert fines.name == "fines"
    assert fines.description == "How fees are worked out"
    assert (fines.skill_md or "").endswith("Ten cents.\n")
    assert (old.description, old.skill_md) == ("d", "text")
    assert (far.skill_md, far.object_url) == (None, "https://x/y")


def test_urls_with_and_without_a_filename(tmp_path: Path) -> None:
    urls = [
        "https://x/a.txt",
        {"url": "https://x/?id=3", "filename": "b.txt"},
        "https://y/a.txt?c#d",
        "https://z/%61.txt",
    ]
    steps = [agent_up(), load(agent_name="clerk", urls=urls)]

    step = load_steps(tmp_path, steps).steps[1]

    assert isinstance(step, LoadArtifact)
    names = download_names(step.urls)
    assert names == ["a.txt", "b.txt", "a-1.txt", "a-2.txt"]


def test_the_sources_of_a_load(tmp_path: Path) -> None:
    up = [env_up(), agent_up()]
    one = load(env_id="library", artifact_id="shelves", artifact_version=1)
    several = load(agent_name="clerk", artifacts=[{"id": "rules"}, {"id": "maps"}])

    loads = [load_steps(tmp_path, [*up, step]).steps[2] for step in (one, several)]

    assert all(isinstance(step, LoadArtifact) for step in loads)
    assert [
        [(source.id, source.version) for source in step.sources] for step in loads
    ] == [[("shelves", 1)], [("rules", None), ("maps", None)]]


def test_the_old_name_of_a_hand_off(tmp_path: Path) -> None:
    hand_on = load(agent_name="clerk", collected_artifacts_step_id="take")
    task = load_steps(tmp_path, [agent_up(), take(), hand_on])
    step = task.steps[2]
    assert isinstance(step, LoadArtifact)
    assert step.artifact_from_step_id == "take"
    assert task.warnings == ()


def test_a_slash_at_the_end_of_base_path_is_dropped(tmp_path: Path) -> None:
    step = load_steps(tmp_path, [agent_up(), take(base_path="/app/out/")]).steps[1]
    assert isinstance(step, CollectArtifacts)
    assert step.base_path == "/app/out"


def test_entries_of_artifact_paths_that_are_fine(tmp_path: Path) -> None:
    paths = ["a", "b/../c", "/etc/motd", "/app/../b", "https://x/../../../y", "..."]
    step = load_steps(tmp_path, [agent_up(), take(artifact_paths=paths)]).steps[1]
    assert isinstance(step, CollectArtifacts)
    assert step.artifact_paths == tuple(paths)


def test_one_word_may_name_things_of_several_kinds(tmp_path: Path) -> None:
    word = "library"
    steps = [
        env_up(id=word),
        agent_up(id="a", agent_name=word, env_ids=[word]),
        ask(id="b", agent_name=word, prompt_id=word),
        grade(id="c", prompt_id=word, verifier_id=word),
    ]
    assert load_steps(tmp_path, steps).warnings == ()


class Wait(Step):
    """A project's own step type."""

    seconds: float
    agent_name: str | None = None


def test_a_projects_own_step_type(tmp_path: Path) -> None:
    steps = [env_up(), {"id": "wait", "type": "wait", "seconds": 3.5}]

    step = load_steps(tmp_path, steps, step_types={"wait": Wait}).steps[1]

    assert isinstance(step, Wait)
    assert step.seconds == 3.5
    assert step.type == "wait"
    assert step.depends_on == ("up",)
    assert step.raw == steps[1]


class Pause(Step):
    """One that has rules of its own, and a key that is no name in Python."""

    length: float = Field(alias="for")

    @field_validator("length")
    @classmethod
    def _short(cls, value: float) -> float:
        if value > 5:
            raise ValueError("is longer than anybody waits")
        return value


class Teach(Step):
    """One with skills that are no agent's."""

    skills: tuple[str, ...] = ()
    pupils: tuple[str, ...] | None = None


def test_skills_of_a_projects_own_type_are_left_alone(tmp_path: Path) -> None:
    steps = [{"id": "a", "type": "teach", "skills": ["fines", "juggling"]}]
    step = load_steps(tmp_path, steps, step_types={"teach": Teach}).steps[0]
    assert isinstance(step, Teach)
    assert step.skills == ("fines", "juggling")
    assert step.pupils is None

    steps[0] |= {"skills": ["fines", 3], "pupils": "Ann"}
    with pytest.raises(TaskLoadError) as caught:
        load_steps(tmp_path, steps, step_types={"teach": Teach})
    assert [str(problem) for problem in caught.value.problems] == [
        "tasks/t.json: step 1 'a': skills: must be a string, not the number 3",
        "tasks/t.json: step 1 'a': pupils: must be a list, not the string 'Ann'",
    ]


def test_what_a_projects_own_type_refuses(tmp_path: Path) -> None:
    types = {"pause": Pause}
    step = load_steps(
        tmp_path, [{"id": "a", "type": "pause", "for": 5}], step_types=types
    ).steps[0]
    assert isinstance(step, Pause)
    assert step.length == 5

    with pytest.raises(TaskLoadError) as caught:
        load_steps(
            tmp_path,
            [{"id": "a", "type": "pause", "for": 6}, {"id": "b", "type": "pause"}],
            step_types=types,
        )
    assert [str(problem) for problem in caught.value.problems] == [
        "tasks/t.json: step 1 'a': for: is longer than anybody waits",
        "tasks/t.json: step 2 'b': for: is missing",
    ]


def test_a_projects_type_replaces_a_built_in_one(tmp_path: Path) -> None:
    steps = [{"id": "up", "type": "deploy_env", "seconds": 1.0}]
    step = load_steps(tmp_path, steps, step_types={"deploy_env": Wait}).steps[0]
    assert isinstance(step, Wait)


def test_steps_can_be_made_in_python_too() -> None:
    with pytest.raises(ValueError, match="has no prompt: give prompt or parts"):
        PromptAgent(id="ask")
    with pytest.raises(ValueError, match=r"skills: 'a' is there twice"):
        DeployAgent.model_validate(
            {"id": "up", "skills": [{"name": "a", "skill_md": ""}] * 2}
        )
    assert PromptAgent(id="ask", prompt="Hello.").prompt == "Hello."


def test_a_loaded_step_cannot_be_changed(tmp_path: Path) -> None:
    step = load_steps(tmp_path, [env_up()]).steps[0]
    with pytest.raises(ValueError, match="frozen"):
        step.id = "other"
