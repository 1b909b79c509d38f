"""Refusals at seed, before any sandbox starts (spec 19.6, X04 and X31 to X37)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_harbor.episodes.seed import check_provider, make_seed
from pytest_harbor.errors import Problem, UnsupportedByProvider
from pytest_harbor.sandboxes.docker.provider import DockerProvider
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from pytest_harbor.tasks.folder.plan_types import EpisodePlan
from pytest_harbor.tasks.folder.seed import seed_problems
from task_folders import write_task

TWO_STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
FILES = {"steps/a/instruction.md": "", "steps/b/instruction.md": ""}
IMAGE = '[environment]\ndocker_image = "debian:12"\n'
CONTINUE = Settings(turn_sessions="continue")


def plan_of(
    folder: Path,
    toml: str = "",
    *,
    agent: str = "mine",
    settings: Settings | None = None,
    files: Mapping[str, str] = {},
) -> EpisodePlan:
    task = load_task(write_task(folder / "task", toml, files=files))
    return plan_episode(task, settings or Settings(), agent=agent)


def problems(plan: EpisodePlan, **changes: Any) -> tuple[Problem, ...]:
    facts: dict[str, Any] = {"groups": False, "can_continue": False, "environ": {}}
    return seed_problems(plan, **{**facts, **changes})


def test_an_ordinary_task_is_not_refused(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TWO_STEPS, files=FILES, settings=Settings())

    assert problems(plan) == ()


@pytest.mark.parametrize("agent", ["mine", "nop", "oracle"])
def test_a_prior_trajectory_of_the_first_step(tmp_path: Path, agent: str) -> None:
    files = {**FILES, "steps/a/trajectory.json": "{}"}
    found = problems(plan_of(tmp_path, TWO_STEPS, agent=agent, files=files))

    if agent == "oracle":
        assert found == ()
    else:
        assert [(problem.rule, str(problem)) for problem in found] == [
            (
                "X31",
                (
                    "steps/a/trajectory.json: step 'a': a seed trajectory.json is not"
                    " supported; remove it"
                ),
            )
        ]


def test_a_prior_trajectory_of_a_later_step_does_not_matter(tmp_path: Path) -> None:
    files = {**FILES, "steps/b/trajectory.json": "{}"}

    assert problems(plan_of(tmp_path, TWO_STEPS, files=files)) == ()


@pytest.mark.parametrize(
    ("toml", "where"),
    [
        ("[agent]\nuser = 'a:staff'\n", "task.toml: [agent].user"),
        ("[verifier]\nuser = 'a:staff'\n", "task.toml: [verifier].user"),
        (
            TWO_STEPS + "[steps.agent]\nuser = 'a:staff'\n",
            "task.toml: step 'b': [agent].user",
        ),
        (
            TWO_STEPS + "[steps.verifier]\nuser = 'a:staff'\n",
            "task.toml: step 'b': [verifier].user",
        ),
    ],
)
def test_a_user_with_a_group(tmp_path: Path, toml: str, where: str) -> None:
    plan = plan_of(tmp_path, toml, files=FILES)
    (problem,) = problems(plan)

    assert problem == Problem(
        where, "user 'a:staff' names a group; only Docker supports that", "X32"
    )
    assert problems(plan, groups=True) == ()


def test_an_agent_that_cannot_continue(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, TWO_STEPS, settings=CONTINUE, files=FILES)
    (problem,) = problems(plan)

    assert problem.rule == "X33"
    assert "agent 'mine' cannot continue a session" in str(problem)
    assert problems(plan, can_continue=True) == ()


def test_a_single_step_never_needs_to_continue(tmp_path: Path) -> None:
    assert problems(plan_of(tmp_path, settings=CONTINUE)) == ()


def test_a_switch_of_users_under_continue(tmp_path: Path) -> None:
    toml = TWO_STEPS + "[steps.agent]\nuser = 'agent'\n"
    plan = plan_of(tmp_path, toml, settings=CONTINUE, files=FILES)
    (problem,) = problems(plan, can_continue=True)

    assert problem.rule == "X34"
    assert str(problem) == (
        "task.toml: step 'b': [steps.agent].user: turn_sessions: continue needs one"
        " agent user for all steps; step 'a' runs as the image's default user, this"
        " one as 'agent'"
    )


@pytest.mark.parametrize(
    ("task_user", "step_user", "rule"),
    [
        (None, None, None),
        ("'agent'", "'agent'", None),
        ("1000", "'1000'", None),
        ("'agent'", "'root'", "X34"),
        ("0", "1000", "X34"),
    ],
)
def test_users_that_differ_in_effect(
    tmp_path: Path, task_user: str | None, step_user: str | None, rule: str | None
) -> None:
    toml = (f"[agent]\nuser = {task_user}\n" if task_user else "") + TWO_STEPS
    if step_user:
        toml += f"[steps.agent]\nuser = {step_user}\n"
    plan = plan_of(tmp_path, toml, settings=CONTINUE, files=FILES)

    found = problems(plan, can_continue=True)

    assert [problem.rule for problem in found] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("agents", "rule"), [("cook", None), ("root", "X34"), (None, "X34")]
)
def test_the_agents_own_user_stands_in_for_one_that_is_not_named(
    tmp_path: Path, agents: str | None, rule: str | None
) -> None:
    toml = TWO_STEPS + "[steps.agent]\nuser = 'cook'\n"
    plan = plan_of(tmp_path, toml, settings=CONTINUE, files=FILES)

    found = problems(plan, can_continue=True, agent_user=agents)

    assert [problem.rule for problem in found] == ([rule] if rule else [])
    if agents == "root":
        assert "step 'a' runs as 'root', this one as 'cook'" in str(found[0])


def test_a_deadline_shorter_than_one_start(tmp_path: Path) -> None:
    short = Settings(enforce_task_timeouts=False, default_episode_timeout_seconds=599)
    (problem,) = problems(plan_of(tmp_path, settings=short))

    assert problem.rule == "X35"
    assert "default_episode_timeout_seconds is shorter than one sandbox" in str(problem)
    enough = short.with_changes(default_episode_timeout_seconds=600)
    assert problems(plan_of(tmp_path, settings=enough)) == ()
    enforced = short.with_changes(enforce_task_timeouts=True)
    assert problems(plan_of(tmp_path, settings=enforced)) == ()


def test_all_unset_variables_at_once_each_with_its_table(tmp_path: Path) -> None:
    toml = """
    [verifier]
    env = { K = "${JUDGE_KEY}", D = "${OTHER:-x}" }
    [solution]
    env = { K = "${SOLUTION_KEY}" }
    [environment]
    docker_image = "x"
    env = { A = "${A_KEY}", B = "${SET}" }
    [verifier.environment]
    docker_image = "y"
    env = { C = "${A_KEY}" }
    """
    plan = plan_of(tmp_path, toml, agent="oracle")

    found = problems(plan, environ={"SET": "1"})

    assert {problem.rule for problem in found} == {"X37"}
    assert [problem.what for problem in found] == [
        f"environment variable '{name}' is not set (needed by {table}.env)"
        for name, table in [
            ("A_KEY", "[environment]"),
            ("SOLUTION_KEY", "[solution]"),
            ("JUDGE_KEY", "[verifier]"),
            ("A_KEY", "[verifier.environment]"),
        ]
    ]


def test_variables_of_the_solution_matter_to_the_oracle_alone(tmp_path: Path) -> None:
    toml = "[solution]\nenv = { K = '${SOLUTION_KEY}' }\n"

    assert problems(plan_of(tmp_path, toml, agent="mine")) == ()


def test_a_task_without_an_environment_is_refused_by_docker(tmp_path: Path) -> None:
    """X04; asked of the provider, as an episode does. It needs no daemon for that."""
    plan = plan_of(tmp_path)

    with pytest.raises(UnsupportedByProvider) as caught:
        check_provider(DockerProvider(), plan, make_seed(plan, {}))

    assert str(caught.value) == (
        "no environment: set [environment].docker_image or add environment/Dockerfile;"
        " docker needs one of them, --harbor-sandbox local neither"
    )
    plan = plan_of(tmp_path / "with-image", IMAGE)
    check_provider(DockerProvider(), plan, make_seed(plan, {}))


FORCED = Settings(separate_verifier_for_artifacts=True)


def test_own_tests_when_the_settings_make_it_separate(tmp_path: Path) -> None:
    files = {
        **FILES,
        "steps/a/tests/test.sh": "",
        "environment/Dockerfile": "FROM x",
    }
    toml = "artifacts = ['/app/x']\n" + TWO_STEPS
    assert problems(plan_of(tmp_path, toml, files=files)) == ()

    (problem,) = problems(plan_of(tmp_path, toml, settings=FORCED, files=files))

    assert problem.rule == "X11"
    assert "step 'a' verifies separately with its own tests/" in str(problem)


def test_protected_artifacts_when_the_settings_make_it_separate(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "artifacts = ['/logs/agent']\n" + IMAGE, settings=FORCED)
    (problem,) = problems(plan)

    assert problem.rule == "X19"
    assert "/logs/agent: overlaps /logs/agent" in str(problem)


def test_no_image_when_the_settings_make_it_separate(tmp_path: Path) -> None:
    toml = (
        IMAGE
        + "[verifier.environment]\ndocker_image = ''\n"
        + '[[steps]]\nname = "a"\nartifacts = ["/app/x"]\n'
        + "[steps.verifier]\nenvironment_mode = 'shared'\n"
    )
    (problem,) = problems(plan_of(tmp_path, toml, settings=FORCED, files=FILES))

    assert problem.rule == "X24"
    assert "[verifier.environment]" in str(problem)


@pytest.mark.parametrize(
    ("toml", "table"),
    [
        ("[agent]\nnetwork_mode = 'no-network'\n", "[agent]"),
        ("[verifier]\nnetwork_mode = 'no-network'\n", "[verifier]"),
        (
            "[agent]\nnetwork_mode = 'public'\n[environment]\nallow_internet = false\n",
            "[agent]",
        ),
        (
            (
                "[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a.org']\n"
                "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['b.org']\n"
            ),
            "[agent]",
        ),
    ],
)
def test_a_network_that_would_have_to_be_switched(
    tmp_path: Path, toml: str, table: str
) -> None:
    plan = plan_of(tmp_path, toml)
    (problem,) = problems(plan, provider="local")

    assert problem.where == f"task.toml: {table}.network_mode"
    assert "the network of a local sandbox cannot be switched" in problem.what
    assert "set it in [environment]" in problem.what
    assert problems(plan, switches_network=True) == ()


@pytest.mark.parametrize(
    "toml",
    [
        "[agent]\nnetwork_mode = 'public'\n",
        "[agent]\nnetwork_mode = 'no-network'\n[environment]\nallow_internet = false\n",
        "[verifier]\nnetwork_mode = 'no-network'\nenvironment_mode = 'separate'\n",
    ],
)
def test_a_network_that_is_the_sandboxes_own(tmp_path: Path, toml: str) -> None:
    assert problems(plan_of(tmp_path, toml)) == ()
