"""Scripts of the scripted agent: which answer is given, what is filled in, what is refused."""

from __future__ import annotations

import json

import pytest

from pytest_harbor.agents.scripted.script import (
    Action,
    ScriptedAnswer,
    filled,
    read_script,
)
from pytest_harbor.errors import SettingsError


def script(*answers):
    return read_script(json.dumps(list(answers)), "script.json")


def test_a_list_is_a_script_without_a_name():
    read = script({"answer": "a"})
    assert (read.name, read.answers[0].answer) == ("scripted", "a")
    named = read_script('{"name": "clerk", "answers": []}', "s")
    assert (named.name, named.answers) == ("clerk", ())


@pytest.mark.parametrize(
    ("answer", "prompt", "given", "fits"),
    [
        ({}, "anything", 0, True),
        ({}, "anything", 1, False),
        ({"times": 2}, "anything", 1, True),
        ({"times": 2}, "anything", 2, False),
        ({"when": "off-?site"}, "The OFFSITE?", 0, True),
        ({"when": "off-?site"}, "The OFFSITE?", 99, True),
        ({"when": "offsite", "times": 1}, "offsite", 1, False),
        ({"when": "offsite"}, "lunch", 0, False),
    ],
)
def test_what_fits(answer, prompt, given, fits):
    assert ScriptedAnswer.model_validate(answer).fits(prompt, given) is fits


@pytest.mark.parametrize(
    ("action", "verb"),
    [
        ({"call": "search"}, "call"),
        ({"call": "search", "arguments": {"q": 1}, "server": "m", "save": "x"}, "call"),
        ({"write": "/a", "text": ""}, "write"),
        ({"write": "/a", "base64": "AA=="}, "write"),
        ({"run": ["true"], "save": "x"}, "run"),
        ({"wait": 0}, "wait"),
        ({"hang": True}, "hang"),
        ({"exit": 0}, "exit"),
    ],
)
def test_actions(action, verb):
    assert Action.model_validate(action).verb == verb


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"do": [{}]}, "answers[0].do[0]: needs exactly one of call, write"),
        ({"do": [{"call": "a", "wait": 1}]}, "answers[0].do[0]: needs exactly one of"),
        ({"do": [{"wait": 1, "save": "x"}]}, "'save' does not belong to 'wait'"),
        ({"do": [{"write": "/a"}]}, "write needs either text or base64"),
        (
            {"do": [{"write": "/a", "text": "", "base64": ""}]},
            "write needs either text or base64",
        ),
        ({"do": [{"hang": False}]}, "answers[0].do[0].hang"),
        ({"when": "("}, "answers[0].when: is no regular expression"),
        ({"anser": "x"}, "answers[0].anser: Extra inputs"),
        ({"state": "done"}, "answers[0].state"),
        ({"times": 0}, "answers[0].times"),
    ],
)
def test_what_is_no_script(answer, says):
    with pytest.raises(SettingsError) as refused:
        script(answer)
    assert str(refused.value).startswith("script.json: ")
    assert says in str(refused.value)


def test_every_problem_is_told_with_its_place():
    with pytest.raises(SettingsError) as refused:
        script({"when": "("}, {"do": [{}]})
    assert len(str(refused.value).splitlines()) == 2


def test_what_is_not_json():
    with pytest.raises(SettingsError, match=r"script\.json: is not JSON"):
        read_script("[", "script.json")


SAVED = {"found": [{"date": "12 May", "n": 3}], "word": "x", "prompt": "hi"}


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("on {{found.0.date}}.", "on 12 May."),
        ("{{found.0.n}}", 3),
        ("{{ found.0.n }} and {{word}}", "3 and x"),
        ("{{found.0}}", {"date": "12 May", "n": 3}),
        ("all: {{found}}", 'all: [{"date": "12 May", "n": 3}]'),
        ({"a": ["{{word}}", 1, None]}, {"a": ["x", 1, None]}),
        ("{single} {{}} {{ }}", "{single} {{}} {{ }}"),
    ],
)
def test_filled(value, result):
    assert filled(value, SAVED) == result


@pytest.mark.parametrize("path", ["none", "found.1", "found.x", "word.0", "found.0.no"])
def test_what_was_not_saved(path):
    with pytest.raises(LookupError, match=f"nothing is saved as {{{{{path}}}}}"):
        filled(f"a {{{{{path}}}}}", SAVED)
