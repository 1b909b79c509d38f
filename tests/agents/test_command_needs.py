"""What a declared agent needs from the host, and what is told before anything starts."""

from __future__ import annotations

import pytest

from chatty import chatty
from pytest_harbor.agents.command.agent import CommandAgent
from pytest_harbor.settings import Settings
from pytest_harbor.tasks.folder.load import load_task
from pytest_harbor.tasks.folder.plan import plan_episode
from task_folders import write_task


@pytest.fixture
def needs(tmp_path):
    def ask(environ=None, *, model=None, toml="", **fields):
        agent = CommandAgent(chatty(**fields), model=model)
        task = load_task(write_task(tmp_path / "task", toml))
        plan = plan_episode(task, Settings(), agent=agent.name)
        return agent.needs(plan, environ or {})

    return ask


def test_variables_of_the_host(needs):
    found = needs(
        {"KEY": "sesame-open", "EMPTY": "", "ONE": "first-one", "OTHER": "unseen-one"},
        env={
            "KEY": "${KEY}",
            "WITH_DEFAULT": "${UNSET:-default}",
            "LEFT_OUT": "${UNSET:-}",
            "EMPTY": "${EMPTY}",
            "TEXT": "plain ${KEY}",
        },
        required_env=(("ONE", "TWO"),),
    )
    assert found.env == {
        "KEY": "sesame-open",
        "WITH_DEFAULT": "default",
        "TEXT": "plain ${KEY}",
        "ONE": "first-one",
    }
    assert set(found.secrets) == {"sesame-open", "", "first-one"}
    assert found.missing_keys == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"env": {"X": "${KEY}"}},
            ["environment variable 'KEY' is not set (needed by env of agent 'chatty')"],
        ),
        (
            {"required_env": (("KEY",), ("ONE", "TWO"))},
            [
                "environment variable 'KEY' is not set (needed by agent 'chatty')",
                (
                    "none of the environment variables 'ONE', 'TWO' is set (needed by agent "
                    "'chatty')"
                ),
            ],
        ),
        (
            {"env": {"KEY": "${KEY}"}, "required_env": (("KEY",),)},
            ["environment variable 'KEY' is not set (needed by env of agent 'chatty')"],
        ),
    ],
)
def test_what_is_missing_is_named_once(needs, fields, says):
    found = needs({"TWO": ""}, **fields)
    assert [problem.what for problem in found.missing_keys] == says


PROVIDERS = {"one": ("KEY_ONE",), "two": ("KEY_TWO", "TOKEN_TWO")}


@pytest.mark.parametrize(
    ("model", "passed_on", "missing"),
    [
        ("one/m", {"KEY_ONE"}, []),
        ("two/m", set(), ["'KEY_TWO', 'TOKEN_TWO' is set"]),
        ("three/m", set(), []),
        (None, set(), []),
    ],
)
def test_keys_of_other_providers_stay_on_the_host(needs, model, passed_on, missing):
    found = needs({"KEY_ONE": "first-one"}, model=model, provider_env=PROVIDERS)
    assert set(found.env) == passed_on
    said = [problem.what for problem in found.missing_keys]
    assert len(said) == len(missing)
    assert all(text in problem for text, problem in zip(missing, said, strict=True))


@pytest.mark.parametrize(
    ("model", "fields", "says"),
    [
        (None, {}, []),
        ("m", {}, []),
        ("m", {"model_flag": ()}, ["cannot be told a model: leave out --harbor-model"]),
        ("m", {"model_flag": (), "env": {"MODEL": "{model}"}}, []),
        (
            None,
            {"command": ("x", "{model}", "{instruction}")},
            ["needs a model: name it with --harbor-model"],
        ),
        (
            "m",
            {"model_flag": ("--provider", "{provider}")},
            ["needs the model's provider: write --harbor-model provider/m"],
        ),
        ("p/m", {"model_flag": ("--provider", "{provider}")}, []),
        (
            "m",
            {"provider_env": PROVIDERS},
            ["needs the model's provider: write --harbor-model provider/m"],
        ),
    ],
)
def test_models(needs, model, fields, says):
    problems = [problem.what for problem in needs(model=model, **fields).problems]
    assert len(problems) == len(says)
    assert all(text in problem for problem, text in zip(problems, says, strict=True))


@pytest.mark.parametrize(
    ("network", "mode", "warns"),
    [(True, "no-network", True), (True, "public", False), (False, "no-network", False)],
)
def test_a_task_without_network_is_told_of(needs, network, mode, warns):
    toml = f'[environment]\nnetwork_mode = "{mode}"\n'
    warnings = needs(network=network, toml=toml).warnings
    assert ["may not reach its model" in text for text in warnings] == [True] * warns


def test_what_is_installed(needs):
    install = needs().install
    assert install.variables == {
        "AGENT_VERSION": "1.0",
        "AGENT_PREFIX": "/opt/harbor-agents/chatty",
    }
    assert needs(install=None, probe=()).install is None


def test_variables_of_the_installation(needs):
    install_env = {"PROXY": "${PROXY:-}", "MIRROR": "${MIRROR}", "MODE": "quick"}
    found = needs({"MIRROR": "https://me:pass@mirror"}, install_env=install_env)
    assert found.install.env == {
        "MIRROR": "https://me:pass@mirror",
        "MODE": "quick",
        "AGENT_VERSION": "1.0",
    }
    assert found.secrets == found.install.secrets == ("https://me:pass@mirror",)
    assert found.env == {}
    [problem] = needs({}, install_env=install_env).missing_keys
    assert "'MIRROR' is not set (needed by install_env of" in problem.what


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"install": "other"},
        {"probe": ()},
        {"install_env": {"A": "b"}},
    ],
)
def test_another_installation_is_told_apart(needs, change):
    one, other = needs().install, needs(**change).install
    assert one.digest("image") == needs().install.digest("image")
    assert one.digest("image") != other.digest("image")
    assert one.digest("image") != one.digest("another")
