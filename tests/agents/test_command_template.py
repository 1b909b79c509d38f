"""Placeholders and the commands that they make."""

from __future__ import annotations

import pytest

from pytest_harbor.agents.command import template
from pytest_harbor.agents.command.declaration import AgentDeclaration
from pytest_harbor.errors import SettingsError


def declared(*command: str, **fields) -> AgentDeclaration:
    return AgentDeclaration("x", command, instruction="stdin", **fields)


MODEL = template.model_values("openai/gpt/5")


def test_a_model_and_its_parts():
    assert MODEL == {
        "model": "openai/gpt/5",
        "provider": "openai",
        "model_name": "gpt/5",
    }
    plain = {"model": "gpt", "provider": None, "model_name": "gpt"}
    assert template.model_values("gpt") == plain
    assert template.model_values(None) == {}


@pytest.mark.parametrize(
    ("part", "filled"),
    [
        ("plain", "plain"),
        ("{session}", "s"),
        ("a{session}b{logs}", "asb/l"),
        ("{provider}", None),
        ("{unset}", "{unset}"),
        ('{"a": {session}}', '{"a": s}'),
        ("{}", "{}"),
    ],
)
def test_fill(part, filled):
    values = {"session": "s", "logs": "/l", "provider": None}
    assert template.fill(part, values) == filled


def test_a_value_is_not_filled_again():
    assert template.fill("{session}", {"session": "{logs}", "logs": "x"}) == "{logs}"


COMMANDS = {
    "no flags": (("a", "b"), {}, {}, False, ["a", "b"]),
    "flags at the end": (
        ("a",),
        {"model_flag": ("-m", "{model_name}"), "mcp_flag": ("-c", "{mcp_config}")},
        {**MODEL, "mcp_config": "/c"},
        True,
        ["a", "-m", "gpt/5", "-c", "/c"],
    ),
    "flags in their places": (
        ("a", "{mcp_flag}", "b", "{model_flag}", "c"),
        {"model_flag": ("--m={model}",), "mcp_flag": ("--x", "{mcp_config}")},
        {**MODEL, "mcp_config": "/c"},
        True,
        ["a", "--x", "/c", "b", "--m=openai/gpt/5", "c"],
    ),
    "flags without a use": (
        ("a", "{mcp_flag}", "b"),
        {"model_flag": ("-m", "{model}"), "mcp_flag": ("-c",)},
        {},
        False,
        ["a", "b"],
    ),
}


@pytest.mark.parametrize("case", COMMANDS.values(), ids=COMMANDS)
def test_argv(case):
    command, fields, values, has_servers, expected = case
    declaration = declared(*command, **fields)
    made = template.argv(
        declaration, declaration.command, values, has_servers=has_servers
    )
    assert made == expected


def test_a_placeholder_without_a_value_is_named():
    declaration = declared("a", "--resume={session}")
    with pytest.raises(ValueError, match=r"\{session\} has no value.*--resume"):
        template.argv(declaration, declaration.command, {}, has_servers=False)


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("", {}, "a name has letters"),
        ("a b", {}, "a name has letters"),
        ("a@1", {}, "a name has letters"),
        ("../x", {}, "a name has letters"),
        ("a", {"command": ()}, "command is empty"),
        ("a", {"command": ("x",)}, "put {instruction} into it"),
        (
            "a",
            {"command": ("x", "{instruction}"), "continue_command": ("y",)},
            "continue_command does not say where the instruction is",
        ),
        (
            "a",
            {"command": ("x", "{instruction}"), "probe": ("x",)},
            "there is no install",
        ),
    ],
)
def test_what_is_no_declaration(name, fields, says):
    command = fields.pop("command", ("x", "{instruction}"))
    with pytest.raises(SettingsError) as caught:
        AgentDeclaration(name, command, **fields)
    assert says in str(caught.value)
