"""``deploy_agent`` on the local sandbox: the order of its work, and each way it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_harbor.graphs.steps.api import Models, RunSettings, StepType
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.steps.step import Step
from step_bundles import agent_up, ask, env_up, take

LIVE = "http://127.0.0.1:9/mcp"


def failed(result, step_id="clerk-up"):
    assert result.step(step_id).status == "failed", result
    return result.step(step_id).error


def diary(result):
    """What the agent was told, in order: its environment first."""
    url = result.context.metadata["collected_artifacts"]["take"]["artifacts"][
        "diary.jsonl"
    ]
    text = Path(url.removeprefix("file://")).read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_an_agent_is_given_tools_skills_and_prompt_in_the_formats_order(
    run_steps, library
):
    library.env("museum")
    library.files["artifacts/x/x.txt"] = "x"
    secret = "s3cret-of-the-house"
    result = run_steps(
        env_up(depends_on=[]),
        env_up(id="up2", env_id="museum", depends_on=[]),
        agent_up(
            env_ids=["museum", "library", LIVE],
            skills=[{"name": "fines", "description": "d", "skill_md": "Ten cents."}],
            system_prompt="You run the desk.",
            agent_description="The desk.",
            role="clerk",
            env_vars={"DESK": "3", "KEY": "${HOUSE_KEY}"},
            metadata={"cost": "x"},
            ttl_seconds=900,
        ),
        take(base_path="/app/artifact"),
        environ={
            "HOUSE_KEY": secret,
            "LITELLM_BASE_URL": "http://models",
            "OPENAI_API_KEY": "k",
        },
    )
    assert result.outcome == "unscored", result.failure_reason
    envs = {env.env_id: env.mcp_url for env in result.context.deployed_envs}
    (_, variables), *told = diary(result)
    assert told == [
        ["/ext/mcp-config", {"url": envs["museum"], "name": "museum"}],
        ["/ext/mcp-config", {"url": envs["library"], "name": "library"}],
        ["/ext/mcp-config", {"url": LIVE}],
        [
            "/ext/skill-config",
            {"name": "fines", "description": "d", "skill_md": "Ten cents."},
        ],
        ["/ext/agent-config", {"system_prompt": "You run the desk."}],
        ["/ext/agent-config", {"name": "clerk", "role": "clerk"}],
    ]
    assert variables["DESK"] == "3"
    assert variables["KEY"] == "***", "what is kept of it is masked"
    assert variables["KEY_BACKWARDS"][::-1] == secret
    assert variables["LITELLM_BASE_URL"] == "http://models"
    assert variables["A2A_HOST"] == "127.0.0.1"
    secrets = [name for name in variables if "TOKEN" in name or "OPENAI" in name]
    assert secrets == ["HARBOR_AGENT_TOKEN"], "neither that of envs nor our own keys"
    (agent,) = result.context.deployed_agents
    assert agent.a2a_url == agent.api_url == f"http://127.0.0.1:{variables['A2A_PORT']}"
    assert agent.a2a_card["name"] == "plain"
    assert agent.role == "clerk"
    assert agent.sandbox_type == "local"
    assert agent.metadata == {
        "cost": "x",
        "a2a_agent_id": "clerk",
        "deploy_step_id": "clerk-up",
    }
    kept = (library.root / "logs" / "context.json").read_text()
    assert secret not in kept


def test_the_default_model_is_that_of_the_role(run_steps, library):
    result = run_steps(
        agent_up(),
        settings=RunSettings(models=Models(default="plain", agent="clever")),
    )
    assert result.context.default_agent_model == "clever"
    assert result.model == "clever"


def test_an_agent_can_be_the_runs_default_one(run_steps):
    step = agent_up()
    del step["a2a_agent_id"], step["agent_name"]
    result = run_steps(step, settings=RunSettings(default_agent="clerk"))
    assert [one.agent_name for one in result.context.deployed_agents] == [
        "default-agent"
    ]


@pytest.mark.parametrize("depends", [{}, {"depends_on": []}], ids=["later", "at once"])
def test_a_name_is_given_once(run_steps, depends):
    result = run_steps(agent_up(depends_on=[]), agent_up(id="again", **depends))
    assert failed(result, "again") == "Agent with name 'clerk' is already deployed"
    assert not result.is_infrastructure


def test_an_env_that_is_not_deployed_is_told_before_any_sandbox_exists(
    run_steps, library
):
    library.env(exit=1)
    result = run_steps(env_up(fail_task_on_error=False), agent_up(env_ids=["library"]))
    assert failed(result) == "Env 'library' not found in context.deployed_envs"
    assert not [one for one in library.events if one.kind == "deployed"]
    assert {one.kind for one in library.events if one.step == "clerk-up"} == {
        "step_started",
        "step_ended",
    }


def test_an_agent_that_ends_shows_its_log(run_steps, library):
    library.agent(exit=2, says="no model")
    assert failed(run_steps(agent_up())) == (
        "agent 'clerk' ended by itself (exit code 2)\nThe end of its log:\nno model"
    )


def test_a_card_that_never_comes(run_steps, library):
    library.files["agents/clerk/agent.py"] = "import time; time.sleep(600)\n"
    result = run_steps(agent_up(), settings=RunSettings(agent_ready_seconds=0.4))
    assert failed(result).startswith("agent 'clerk' was not ready after 0.4 s: ")
    assert result.is_infrastructure


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (
            {"refuses": ["/ext/mcp-config"]},
            {"env_ids": [LIVE]},
            "answered 400",
        ),
        (
            {"refuses": ["/ext/skill-config"]},
            {"skills": [{"name": "s", "skill_md": "x"}]},
            "answered 400",
        ),
        (
            {"refuses": ["/ext/agent-config"]},
            {"system_prompt": "x"},
            "answered 400",
        ),
        (
            {"lacks": ["mcp-config"]},
            {"env_ids": [LIVE]},
            "agent 'clerk' takes no MCP servers, so env_ids must be empty: agent ",
        ),
        (
            {"lacks": ["skill-config"]},
            {"skills": [{"name": "s", "skill_md": "x"}]},
            "agent 'clerk' takes no skills, so the step must have none: agent ",
        ),
        (
            {},
            {"skills": [{"name": "s", "object_url": "file:///etc/passwd"}]},
            "skill 's' cannot be read",
        ),
    ],
    ids=["mcp", "skill", "config", "no mcp", "no skills", "foreign skill"],
)
def test_an_agent_that_does_not_take_what_it_gets_is_stopped(
    run_steps, library, config, fields, message
):
    running = []

    async def look(_, run):
        instances = run._run.deployments.all()
        running.extend(not instance.is_stopped for instance in instances)

    library.agent(**config)
    result = run_steps(
        agent_up(fail_task_on_error=False, **fields),
        {"id": "look", "type": "look"},
        step_types={"look": StepType(Step, look)},
    )
    assert message in result.step("clerk-up").error
    assert result.context.deployed_agents == []
    assert running == [False], "the step itself stops it"


def test_a_system_prompt_that_is_not_taken_is_a_warning(run_steps, library):
    library.agent(takes=["model"])
    result = run_steps(agent_up(system_prompt="x"))
    assert result.step("clerk-up").warnings == (
        "agent 'clerk' takes no system prompt; the step's was not set",
    )
    assert result.outcome == "unscored"


def test_a_variable_that_is_not_set_is_told_before_anything_starts(run_steps):
    result = run_steps(agent_up(env_vars={"KEY": "${NO_SUCH_KEY}"}))
    assert result.failure_reason == (
        "step clerk-up (deploy_agent): env_vars needs the variable NO_SUCH_KEY, which "
        "is not set"
    )


def test_a_filtered_network_is_refused_where_it_cannot_be_had(run_steps):
    policy = {"mode": "allowlist", "allow_hosts": ["models.example"]}
    result = run_steps(agent_up(network_policy=policy))
    assert result.failure_kind == "harbor:refused"
    assert "allowlist" in result.failure_reason
    assert result.step("clerk-up").status == "not_run"


def test_a_deployed_agent_answers(run_steps, library):
    library.agent(answer="Good day.")
    result = run_steps(agent_up(), ask())
    assert [one.response for one in result.context.prompt_responses] == ["Good day."]


@pytest.mark.slow
def test_the_scripted_agent_is_always_there(run_steps):
    script = json.dumps([{"answer": "By the script."}])
    result = run_steps(
        agent_up(a2a_agent_id="scripted", env_vars={"SCRIPTED_AGENT": script}), ask()
    )
    assert [one.response for one in result.context.prompt_responses] == [
        "By the script."
    ]


def test_a_command_alone_is_no_image(run_steps, library):
    library.providers = {**library.providers, "docker": library.providers["local"]}
    result = run_steps(agent_up(sandbox_type="docker"))
    assert result.failure_reason == (
        "step clerk-up (deploy_agent): agent 'clerk' has no image, which sandbox "
        "'docker' needs; add a Dockerfile to its folder, or use the local sandbox"
    )


def test_models_by_their_roles():
    settings = Settings(model="run", agent_model="a", judge_model="j", user_model="u")
    of_run = RunSettings.of(settings)
    assert of_run.run_model == "run"
    assert of_run.models == Models(agent="a", judge="j", user="u")
