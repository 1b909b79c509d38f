"""What keeps a run from starting, and how agents and envs are found: no sandbox needed."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from pytest_harbor.errors import SandboxUnavailable, StepError, TaskRefused
from pytest_harbor.graphs.agents import ServerAgent, find_agent, limits_of
from pytest_harbor.graphs.envs import find_env
from pytest_harbor.graphs.instances import AgentLaunch
from pytest_harbor.graphs.objects import FolderStore
from pytest_harbor.graphs.open_run import RunParts
from pytest_harbor.graphs.preflight import needed_providers, refuse, secrets_of
from pytest_harbor.graphs.steps.api import Models, RunSettings
from pytest_harbor.sandboxes.api import Capabilities
from pytest_harbor.tasks.steps.bundle import Bundle
from pytest_harbor.tasks.steps.entries import AgentEntry, EnvEntry
from pytest_harbor.tasks.steps.model import DeployAgent, DeployEnv
from step_bundles import agent_up, ask, env_up, grade, load_steps, write_bundle


class Told:
    """A provider that only answers ``probe`` and ``check``."""

    def __init__(self, **capabilities):
        self.capabilities = Capabilities(**{"available": True, **capabilities})

    async def probe(self):
        return self.capabilities

    def check(self, spec, users):
        assert not users


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return Bundle(write_bundle(tmp_path / "bundle"))


def parts(task, providers, tmp_path, **options):
    return RunParts(
        task_id=task.name,
        bundle=task.bundle,
        providers=providers,
        logs=tmp_path,
        store=FolderStore(tmp_path),
        **{"environ": {}, **options},
    )


def refusal(tmp_path, steps, providers, **options):
    task = load_steps(tmp_path / "bundle", steps)
    with pytest.raises((TaskRefused, SandboxUnavailable)) as caught:
        anyio.run(refuse, task, parts(task, providers, tmp_path, **options))
    return str(caught.value)


def test_a_place_for_one_sandbox_is_no_place_for_two(tmp_path):
    providers = {"local": Told(concurrent=False, mode="in-place")}
    assert refusal(tmp_path, [env_up(), agent_up()], providers) == (
        "sandbox 'local' (in-place) holds one sandbox at a time, and this task needs 2; "
        "use another one"
    )
    task = load_steps(tmp_path / "bundle", [env_up()])
    anyio.run(refuse, task, parts(task, providers, tmp_path))


def test_a_judge_of_its_own_is_a_sandbox_too(tmp_path):
    steps = [agent_up(), ask(), grade(judge_a2a_agent_id="clerk")]
    providers = {"local": Told(concurrent=False, mode="in-place")}
    assert "this task needs 2" in refusal(tmp_path, steps, providers)


def test_a_sandbox_that_is_not_there_is_unavailable(tmp_path):
    providers = {"local": Told(available=False, reason="no bwrap here")}
    assert refusal(tmp_path, [env_up()], providers) == "no bwrap here"


def test_everything_that_is_missing_is_told_at_once(tmp_path):
    steps = [
        agent_up(env_vars={"A": "${NOT_A}"}),
        agent_up(id="r", a2a_agent_id="reader", agent_name="r"),
        ask(),
        grade(),
    ]
    assert refusal(tmp_path, steps, {"local": Told()}).splitlines() == [
        (
            "tasks/t.json: step 4 'grade': no agent: give judge_a2a_agent_id, or configure "
            "a default agent"
        ),
        (
            "step clerk-up (deploy_agent): env_vars needs the variable NOT_A, which is not "
            "set"
        ),
        "no sandbox provider 'docker'",
    ]


@pytest.mark.parametrize(
    ("steps", "settings", "expected"),
    [
        ([env_up(), agent_up()], {}, {"local"}),
        ([agent_up(a2a_agent_id="reader")], {}, {"docker"}),
        ([env_up(sandbox_type="other")], {}, {"other"}),
        ([env_up(), agent_up()], {"agent_sandbox": "other"}, {"local", "other"}),
        ([agent_up(a2a_agent_id="scripted")], {}, {"local"}),
        (
            [agent_up(), ask(), grade(judge_a2a_agent_id="reader")],
            {},
            {"local", "docker"},
        ),
        (
            [agent_up(), ask(), grade()],
            {"default_agent": "reader"},
            {"local", "docker"},
        ),
        ([agent_up(), ask(), grade(agent_name="clerk")], {}, {"local"}),
        (
            [agent_up(), ask(), grade(use_agent_judge=False)],
            {"default_agent": "reader"},
            {"local"},
        ),
    ],
)
def test_which_sandboxes_a_task_needs(tmp_path, steps, settings, expected):
    task = load_steps(tmp_path, steps)
    assert needed_providers(task, RunSettings(**settings)) == expected


def test_secrets_are_the_values_of_templates_and_the_keys_of_models(tmp_path):
    task = load_steps(
        tmp_path, [agent_up(env_vars={"A": "${A_KEY}", "B": "plain", "C": "${NO:-x}"})]
    )
    environ = {
        "A_KEY": "one",
        "LITELLM_API_KEY": "two",
        "OPENAI_API_KEY": "three",
        "LITELLM_BASE_URL": "http://no-secret",
        "OTHER": "no",
    }
    assert sorted(secrets_of(task, environ)) == ["one", "three", "two"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("scripte", " (did you mean 'scripted'?)"),
        ("clerc", " (did you mean 'clerk'?)"),
        ("xyz", ""),
    ],
)
def test_an_agent_that_nobody_knows(bundle, name, hint):
    with pytest.raises(StepError) as caught:
        find_agent(name, bundle, {})
    assert str(caught.value) == (
        f"no agent '{name}', neither in the bundle nor registered{hint}"
    )


def test_a_bundles_agent_goes_before_a_registered_one(bundle):
    mine = ServerAgent(AgentEntry("mine", Path("/"), command=("x",)))
    assert find_agent("mine", bundle, {"mine": mine}) is mine
    assert find_agent("clerk", bundle, {"clerk": mine}) is not mine
    assert find_agent("scripted", bundle, {"scripted": mine}) is mine


def test_an_agent_has_one_version(bundle):
    source = find_agent("clerk", bundle, {})
    source.check(AgentLaunch("clerk", "clerk", version=1))
    with pytest.raises(StepError, match="agent 'clerk' has version 1 only, not 2"):
        source.check(AgentLaunch("clerk", "clerk", version=2))


def test_an_env_is_found_or_not(bundle):
    assert find_env("library", 1, bundle).name == "library"
    problems = {
        ("librari", None): "no env 'librari' in the bundle (did you mean 'library'?)",
        ("library", 3): "env 'library' has version 1 only, not 3",
    }
    for arguments, message in problems.items():
        with pytest.raises(StepError) as caught:
            find_env(*arguments, bundle)
        assert str(caught.value) == message


def test_an_env_that_runs_already_is_not_deployed(tmp_path):
    live = EnvEntry("live", Path("/"), url="http://mcp.example/mcp")
    bundle = Bundle(write_bundle(tmp_path), registered=[live])
    with pytest.raises(StepError, match=r"already runs at http://mcp\.example/mcp"):
        find_env("live", None, bundle)


def test_only_a_disk_that_was_asked_for_is_a_limit():
    agent = DeployAgent(id="a", cpu=2, memory_mb=512)
    assert limits_of(agent).storage_mib is None
    assert (limits_of(agent).cpus, limits_of(agent).memory_mib) == (2.0, 512)
    wants = {"disk_size_gb": 3}
    assert limits_of(DeployAgent(id="a", disk_size_gb=3, raw=wants)).storage_mib == 3072
    assert limits_of(DeployEnv(id="e", env_id="library")).cpus is None


def judged_by_a_model(tmp_path, **fields):
    steps = [agent_up(), ask(), grade(use_agent_judge=False, **fields)]
    return load_steps(tmp_path / "bundle", steps)


def test_a_model_that_judges_needs_a_key(tmp_path):
    task = judged_by_a_model(tmp_path, default_model="openai/judge-small")
    with pytest.raises(TaskRefused) as caught:
        anyio.run(refuse, task, parts(task, {"local": Told()}, tmp_path))
    assert str(caught.value) == (
        "step grade (rubrics_verifier): the judge's model openai/judge-small needs "
        "OPENAI_API_KEY, which is not set; or name another endpoint (OPENAI_BASE_URL, "
        "default_model_api_base)"
    )


@pytest.mark.parametrize(
    ("fields", "environ", "options"),
    [
        ({}, {"OPENAI_API_KEY": "k"}, {}),
        ({}, {"OPENAI_BASE_URL": "http://models:4000"}, {}),
        ({}, {"LITELLM_BASE_URL": "http://models:4000"}, {}),
        ({"default_model_api_base": "http://models:4000"}, {}, {}),
        ({}, {}, {"settings": RunSettings(judges={"m": object})}),
        ({}, {}, {"settings": RunSettings(models=Models(api_base="http://m:4000"))}),
    ],
)
def test_a_model_that_judges_may_be_elsewhere(tmp_path, fields, environ, options):
    task = judged_by_a_model(tmp_path, default_model="m", **fields)
    run = parts(task, {"local": Told()}, tmp_path, environ=environ, **options)
    anyio.run(refuse, task, run)


def test_a_model_that_judges_needs_its_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    task = judged_by_a_model(tmp_path, default_model="m")
    run = parts(task, {"local": Told()}, tmp_path, environ={"OPENAI_API_KEY": "k"})
    with pytest.raises(TaskRefused, match=r"step grade .*pytest-harbor\[judge\]"):
        anyio.run(refuse, task, run)
