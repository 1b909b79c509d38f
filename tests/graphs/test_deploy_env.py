"""``deploy_env`` on the local sandbox: what an instance is, and each way it fails."""

from __future__ import annotations

import anyio
import pytest

from pytest_harbor.graphs.steps.api import RunSettings
from step_bundles import agent_up, ask, env_up, load


def error_of(result, step_id="up"):
    step = result.step(step_id)
    assert step.status == "failed", result
    assert not result.step(step_id).warnings
    return step.error


def test_an_instance_is_recorded_with_its_card(run_steps, library):
    result = run_steps(env_up(metadata={"cost": "books"}, ttl_seconds=600))
    assert result.outcome == "unscored", result.failure_reason
    (env,) = result.context.deployed_envs
    assert (env.env_id, env.env_version) == ("library", 1)
    assert env.mcp_server_name == "library"
    assert env.environment_card["name"] == "library"
    assert env.environment_card_url.endswith("/.well-known/agent-env.json")
    assert env.mcp_url.startswith("http://127.0.0.1:")
    assert env.mcp_url.endswith("/mcp")
    assert env.sandbox_type == "local"
    assert env.sandbox_ids == (env.sandbox_id,)
    assert env.metadata == {"cost": "books", "deploy_step_id": "up"}
    assert env.created_at_utc < env.expires_at_utc
    (deployed,) = [event for event in library.events if event.kind == "deployed"]
    assert deployed.data["what"] == "env 'library'"
    assert deployed.data["sandbox"] == env.sandbox_id
    assert result.sandboxes == ("local",)


def test_a_plain_mcp_server_has_no_data_plane(run_steps, library):
    library.env(card=False)
    result = run_steps(env_up(), load(env_id="library", artifact_id="shelves"))
    (env,) = result.context.deployed_envs
    assert env.environment_card is None
    assert env.mcp_server_name == "library"
    assert error_of(result, "load") == (
        "env 'library' has no data plane: it is a plain MCP server without a card, so no "
        "data can be loaded into it"
    )


@pytest.mark.parametrize("depends", [{}, {"depends_on": []}], ids=["later", "at once"])
def test_an_env_is_deployed_once(run_steps, depends):
    result = run_steps(
        env_up(depends_on=[]), env_up(id="again", fail_task_on_error=False, **depends)
    )
    assert result.step("again").error == "Env 'library' is already deployed"
    assert result.step("up").status == "passed"
    assert len(result.context.deployed_envs) == 1
    assert not result.is_infrastructure


def test_a_server_that_ends_shows_its_log(run_steps, library):
    library.env(exit=5, says="no such shelf")
    result = run_steps(env_up())
    assert error_of(result) == (
        "env 'library' ended by itself (exit code 5)\n"
        "The end of its log:\nstarting\nno such shelf"
    )
    assert result.failure_kind == "harbor:server_not_ready"
    assert result.is_infrastructure
    assert result.context.deployed_envs == []


def test_a_server_that_never_answers(run_steps, library):
    library.env(sleeps=True)
    result = run_steps(env_up(), settings=RunSettings(env_ready_seconds=0.6))
    assert error_of(result).startswith("env 'library' was not ready after 0.6 s: ")
    assert result.failure_kind == "harbor:server_not_ready"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"card_name": "museum"},
            "env 'library': its card has the name 'museum', its env.toml the environment_name 'library'; they must be equal",
        ),
        ({"tools": []}, "env 'library' lists no MCP tool; it needs at least one"),
        (
            {"tools": ["a", "b", "a"]},
            "env 'library' lists more than one tool named a",
        ),
    ],
    ids=["name", "no tool", "tool twice"],
)
def test_an_env_that_is_not_what_it_should_be(run_steps, library, config, message):
    library.env(**config)
    running, types = still_running()
    result = run_steps(
        env_up(fail_task_on_error=False), {"id": "look", "type": "look"}, **types
    )
    assert result.step("up").error == message
    assert result.context.deployed_envs == []
    assert running == [False], "the step itself stops what it could not deploy"


def still_running():
    """A step type that notes, for each instance of the run, whether it still runs."""
    from pytest_harbor.graphs.steps.api import StepType
    from pytest_harbor.tasks.steps.step import Step

    running = []

    async def look(_, run):
        instances = run._run.deployments.all()
        running.extend(not instance.is_stopped for instance in instances)

    return running, {"step_types": {"look": StepType(Step, look)}}


def test_what_a_sandbox_cannot_do_is_told_before_anything_starts(run_steps, library):
    library.files["envs/museum/Dockerfile"] = "FROM scratch\n"
    result = run_steps(env_up(env_id="museum", sandbox_type="local"))
    assert result.failure_kind == "harbor:refused"
    assert result.failure_reason == (
        "step up (deploy_env): env 'museum' needs an image, which sandbox 'local' does "
        "not build; add `command` to its env.toml, or use another sandbox"
    )
    assert result.step("up").status == "not_run"


def test_a_kind_of_sandbox_that_is_not_there_is_told(run_steps, library):
    library.files["envs/museum/Dockerfile"] = "FROM scratch\n"
    result = run_steps(env_up(env_id="museum"))
    assert result.failure_reason == "no sandbox provider 'docker'"
    assert result.step("up").status == "not_run"


@pytest.mark.slow
def test_an_instance_lives_as_long_as_it_may(run_steps, library, portal):
    library.agent(answer="late")
    result = run_steps(
        env_up(ttl_seconds=2),
        {"id": "wait", "type": "wait"},
        load(env_id="library", artifact_id="shelves"),
        **waiting(library),
    )
    assert error_of(result, "load").startswith("the sandbox of env 'library' is gone: ")
    assert "it reached its lifetime of 2 s (ttl_seconds)" in error_of(result, "load")
    assert result.step("load").failure_kind == "harbor:sandbox_lost"
    assert any("env 'library' reached its lifetime" in one for one in result.warnings)


def waiting(library):
    """A step type that waits until an instance has ended."""
    from pytest_harbor.graphs.steps.api import StepType
    from pytest_harbor.tasks.steps.step import Step

    class Wait(Step):
        pass

    async def wait(_, run):
        env = run.instance(run.context.deployed_envs[0].instance_id)
        with anyio.fail_after(20):
            while not env.is_stopped:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.02)

    return {"step_types": {"wait": StepType(Wait, wait)}}


def test_a_server_that_dies_in_mid_run_is_named_where_it_is_missed(run_steps, library):
    result = run_steps(
        env_up(),
        agent_up(env_ids=["library"]),
        {"id": "stop", "type": "stop"},
        load(env_id="library", artifact_id="shelves"),
        **stopping(),
    )
    text = error_of(result, "load")
    assert "env 'library' ended by itself (exit code 3)" in text
    assert text.endswith("starting\ntold to stop")
    assert result.is_infrastructure
    assert any("ended by itself (exit code 3)" in one for one in result.warnings)
    assert result.step("clerk-up").status == "passed"


def stopping():
    """A step type that calls the env's tool ``stop``."""
    from pytest_harbor.errors import HarborError
    from pytest_harbor.graphs.steps.api import StepType
    from pytest_harbor.protocols import mcp
    from pytest_harbor.tasks.steps.step import Step

    class Stop(Step):
        pass

    async def stop(_, run):
        env = run.context.env("library")
        try:
            async with mcp.connect(env.mcp_url) as session:
                await session.call_tool("stop")
        except HarborError:
            pass
        with anyio.fail_after(20):
            while not run.instance(env.instance_id).death:  # noqa: ASYNC110 - nobody tells
                await anyio.sleep(0.02)

    return {"step_types": {"stop": StepType(Stop, stop)}}


def test_a_dead_agent_is_named_by_the_prompt(run_steps, library):
    library.agent(exits_when_asked=True)
    result = run_steps(agent_up(), ask())
    text = error_of(result, "ask")
    assert text.count("exit code 7") == 1
    assert text.count("cannot go on") == 1


@pytest.mark.slow
def test_requirements_are_an_environment_of_their_own(
    run_steps, library, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library.files["envs/library/requirements.txt"] = "# nothing but Python\n"
    said, types = [], still_running()[1]

    async def look(_, run):
        sandbox = run.instance(run.context.env("library").instance_id).sandbox
        (folder,) = (tmp_path / "cache/pytest-harbor/python").glob("*/.complete")
        python = folder.with_name("bin") / "python"
        script = "import sys; print(sys.prefix); import pydantic"
        result = await sandbox.exec([str(python), "-c", script])
        said.append((result.stdout.strip(), str(folder.parent), result.ok))
        said.append((await sandbox.exec(f"touch {folder.parent}/new")).ok)

    kinds = types["step_types"]["look"]
    types["step_types"]["look"] = type(kinds)(kinds.model, look)
    result = run_steps(env_up(), {"id": "look", "type": "look"}, **types)
    assert result.outcome == "unscored", result.failure_reason
    (prefix, folder, has_pydantic), may_write = said
    assert prefix == folder
    assert not has_pydantic, "the runner's packages are not its own"
    assert not may_write
