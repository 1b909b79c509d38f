"""What a load only warns of, and refuses in strict mode (task-steps spec 1.1, 5.1, 13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_harbor.errors import TaskLoadError
from pytest_harbor.tasks.steps.model import STEP_TYPES
from step_bundles import agent_up, ask, env_up, grade, load, load_steps, take

READY: list[Any] = [env_up(), agent_up(), ask()]
CRITERION = {"id": "a", "criterion": "b"}


class Case(NamedTuple):
    """Steps, and what is said of them after "tasks/t.json: "."""

    steps: list[Any]
    warnings: list[str]


KEYS: dict[str, Case] = {
    "unknown": Case(
        [env_up(cpus=2)], ["step 1 'up': unknown key 'cpus' (did you mean 'cpu'?)"]
    ),
    "nothing near": Case([env_up(zzz=2)], ["step 1 'up': unknown key 'zzz'"]),
    "of another type": Case(
        [env_up(prompt="Hello.")], ["step 1 'up': unknown key 'prompt'"]
    ),
    "our own": Case(
        [env_up(position=3, raw={}, retry={})],
        [
            "step 1 'up': unknown key 'position'",
            "step 1 'up': unknown key 'raw'",
            "step 1 'up': unknown key 'retry'",
        ],
    ),
    "in a list": Case(
        [agent_up(skills=[{"name": "a", "skill_md": "", "text": ""}])],
        ["step 1 'clerk-up': unknown key 'skills[0].text'"],
    ),
    "in an object": Case(
        [agent_up(network_policy={"mod": "allowlist"})],
        ["step 1 'clerk-up': unknown key 'network_policy.mod' (did you mean 'mode'?)"],
    ),
    "in an artifact": Case(
        [agent_up(), load(agent_name="clerk", artifacts=[{"id": "rules", "ver": 1}])],
        ["step 2 'load': unknown key 'artifacts[0].ver'"],
    ),
    "in a url": Case(
        [
            agent_up(),
            load(agent_name="clerk", urls=[{"url": "a:/b", "file_name": "c"}]),
        ],
        [
            "step 2 'load': unknown key 'urls[0].file_name' (did you mean 'filename'?)",
        ],
    ),
    "in a dependency": Case(
        [env_up(), agent_up(depends_on=[{"task_step_id": "up", "optional": True}])],
        ["step 2 'clerk-up': unknown key 'depends_on[0].optional'"],
    ),
    "in a retry": Case(
        [env_up(retry_config={"retry_from_step_id": "up", "delay": 3})],
        ["step 1 'up': unknown key 'retry_config.delay'"],
    ),
    "free places": Case(
        [
            env_up(metadata={"a": 1}),
            agent_up(env_vars={"A": "b"}, metadata={"c": []}),
            ask(model_params={"temperature": 0}),
            grade(criteria=[{**CRITERION, "hint": "x"}]),
        ],
        [],
    ),
}
SUPPORTED_ELSEWHERE = {
    "deploy_env": (
        env_up(),
        "artifact_id artifact_version env_state_type env_state_instance_id priority",
    ),
    "load_artifact": (
        load(agent_name="clerk", artifact_id="rules"),
        "env_step_id sandbox_name container_name snapshot_after_load",
    ),
    "deploy_agent": (
        agent_up(id="other", agent_name="other"),
        (
            "env_step_id litellm_base_url priority sandbox_name enable_docker"
            " agent_snapshot_files_artifact_id agent_snapshot_files_artifact_version"
            " agent_snapshot_target_context_id enable_agent_changelog"
            " agent_changelog_object_url agent_changelog_toolcall_position_exclusive"
        ),
    ),
    "prompt_agent": (
        ask(),
        (
            "live_trajectory harness agentenv_tools trajectory_output_prefix"
            " snapshot_config"
        ),
    ),
    "rubrics_verifier": (
        grade(prompt_id="first"),
        (
            "judge_batch_size judge_batch_concurrency grade_up_to_turn"
            " run_context_for_judge trajectory_filter judge_sandbox_type judge_priority"
        ),
    ),
    "collect_artifacts": (
        take(),
        "manifest_step_id env_id sandbox_name container_name",
    ),
}
BEFORE: dict[str, list[Any]] = {
    "deploy_env": [],
    "rubrics_verifier": [agent_up(), ask(id="first", prompt_id="first")],
}
for kind, (step, names) in SUPPORTED_ELSEWHERE.items():
    before = BEFORE.get(kind, [agent_up()])
    keys = names.split()
    where = f"step {len(before) + 1} '{step['id']}'"
    KEYS[f"not supported of {kind}"] = Case(
        [*before, {**step, **dict.fromkeys(keys, 1)}],
        [
            f"{where}: '{key}' is not supported by pytest-harbor, and ignored"
            for key in keys
        ],
    )
    KEYS[f"not asked for of {kind}"] = Case(
        [*before, {**step, **dict.fromkeys(keys, False)}], []
    )


DOUBTS: dict[str, Case] = {
    "env twice": Case(
        [env_up(), env_up(id="again")],
        [
            (
                "step 2 'again': env_id: env 'library' is already deployed by step 1 'up',"
                " so this step fails"
            )
        ],
    ),
    "agent twice": Case(
        [agent_up(), agent_up(id="again")],
        [
            (
                "step 2 'again': agent_name: step 1 'clerk-up' deploys an agent 'clerk', so"
                " this step fails"
            )
        ],
    ),
    "prompted agent that nobody deploys": Case(
        [agent_up(), ask(agent_name="clark")],
        [
            (
                "step 2 'ask': agent_name: no step deploys an agent named 'clark' (did you"
                " mean 'clerk'?), so this step fails"
            )
        ],
    ),
    "nothing to grade": Case(
        [*READY, grade(criteria=[])],
        ["step 4 'grade': criteria: is empty: the score is always 0"],
    ),
    "misspelt keys of criteria": Case(
        [
            *READY,
            grade(
                criteria=[
                    CRITERION,
                    {"id": "b", "criterion": "c", "wieght": 3, "threshold": 1},
                    {"id": "c", "criterion": "c", "weight": 3, "weights": [1]},
                ]
            ),
        ],
        [
            (
                "step 4 'grade': criteria[1].wieght: goes to the judge as it is (did you"
                " mean 'weight'?)"
            ),
            (
                "step 4 'grade': criteria[1].threshold: goes to the judge as it is (did"
                " you mean 'pass_threshold'?)"
            ),
        ],
    ),
    "role": Case(
        [agent_up(role="admin")],
        [
            (
                "step 1 'clerk-up': role: is not sent to envs (not supported by"
                " pytest-harbor)"
            )
        ],
    ),
    "teardown of what nobody deploys": Case(
        [
            env_up(),
            {
                "id": "down",
                "type": "teardown_sandboxes",
                "agent_names": ["clerk"],
                "env_ids": ["library", "libary"],
            },
        ],
        [
            "step 2 'down': agent_names[0]: no step deploys an agent named 'clerk'",
            (
                "step 2 'down': env_ids[1]: no step deploys env 'libary' (did you mean"
                " 'library'?)"
            ),
        ],
    ),
    "two loads, one after the other": Case(
        [
            env_up(),
            load(env_id="library", artifact_id="shelves"),
            load(id="more", env_id="library", artifact_id="shelves"),
        ],
        [
            (
                "step 3 'more': also loads into env 'library', and each load replaces the"
                " data: nothing is left of step 2 'load'"
            )
        ],
    ),
    "two loads side by side": Case(
        [
            env_up(),
            load(env_id="library", artifact_id="shelves"),
            load(
                id="more",
                env_id="library",
                artifact_id="shelves",
                depends_on=["up"],
            ),
        ],
        [
            (
                "step 3 'more': also loads into env 'library', and each load replaces the"
                " data: the order with step 2 'load' is open; add it to depends_on"
            )
        ],
    ),
    "two loads in one step": Case(
        [
            env_up(),
            load(env_id="library", artifacts=[{"id": "shelves"}, {"id": "shelves"}]),
        ],
        [
            (
                "step 2 'load': also loads into env 'library', and each load replaces the"
                " data of the one before"
            )
        ],
    ),
    "files beside a load": Case(
        [
            env_up(),
            load(env_id="library", artifact_id="shelves"),
            load(id="files", env_id="library", artifact_id="rules"),
        ],
        [],
    ),
    "data into an agent": Case(
        [
            env_up(),
            agent_up(),
            load(env_id="library", artifact_id="shelves"),
            load(id="files", agent_name="clerk", artifact_id="shelves"),
        ],
        [],
    ),
    "a person may be the user": Case(
        [agent_up(), ask(max_conversation_turns=3)],
        [],
    ),
    "a user that is not asked": Case(
        [agent_up(), ask(user_agent_name="nobody")],
        [],
    ),
    "a user at a url": Case(
        [
            agent_up(),
            ask(
                max_conversation_turns=3,
                user_agent_name="nobody",
                user_a2a_url="http://x/",
            ),
        ],
        [],
    ),
    "a judge's name beside a model judge": Case(
        [*READY, grade(agent_name="nobody", use_agent_judge=False)],
        [],
    ),
}
ALL = {**KEYS, **DOUBTS}


@pytest.mark.parametrize("case", ALL)
def test_warnings(desk: Path, case: str) -> None:
    steps, warnings = ALL[case]
    expected = [f"tasks/t.json: {line}" for line in warnings]

    assert list(load_steps(desk, steps).warnings) == expected

    if not expected:
        load_steps(desk, steps, strict=True)
        return
    with pytest.raises(TaskLoadError) as caught:
        load_steps(desk, steps, strict=True)
    assert [str(problem) for problem in caught.value.problems] == expected


def test_a_refusal_has_the_warnings_too(desk: Path) -> None:
    steps: list[Any] = [{"id": "up", "type": "deploy_env", "envid": "library"}]
    with pytest.raises(TaskLoadError) as caught:
        load_steps(desk, steps)
    warning = "tasks/t.json: step 1 'up': unknown key 'envid' (did you mean 'env_id'?)"
    assert caught.value.warnings == (warning,)
    assert str(caught.value).splitlines() == [
        "tasks/t.json: step 1 'up': env_id: is missing",
        f"warning: {warning}",
    ]


def test_an_unknown_key_beside_the_steps(desk: Path) -> None:
    task = load_steps(desk, {"steps": [env_up()], "author": "me"})
    assert task.warnings == ("tasks/t.json: unknown key 'author' beside the steps",)


def test_the_tests_know_every_unsupported_key() -> None:
    unsupported = {
        (kind, key) for kind, model in STEP_TYPES.items() for key in model.unsupported
    }
    tested = {
        (kind, key)
        for kind, (_, keys) in SUPPORTED_ELSEWHERE.items()
        for key in keys.split()
    }
    assert tested == unsupported
