"""From a name to an agent."""

from __future__ import annotations

import pytest

from pytest_harbor.agents import catalogue
from pytest_harbor.agents.nop import NopAgent
from pytest_harbor.agents.oracle import OracleAgent
from pytest_harbor.agents.registry import resolve_agent
from pytest_harbor.errors import SettingsError

MODULE = """\
class Mine:
    name = "mine"
    def __init__(self, *, model=None):
        self.model = model
    def run(self, turn): ...

class NoModel:
    def run(self, turn): ...

class Broken:
    def __init__(self, *, model=None):
        raise RuntimeError("no API key")

class Leaving:
    def __init__(self, *, model=None):
        raise SystemExit(2)

class NoRun: ...

def factory(**options):
    return Mine(**options)

ready = Mine(model="its own")
text = "not an agent"

class Inner:
    Deep = Mine
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "agents_of_mine.py").write_text(MODULE)
    (tmp_path / "agents_that_break.py").write_text("import no_such_library")
    (tmp_path / "agents_that_raise.py").write_text("1 / 0")
    (tmp_path / "agents_that_leave.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    import sys

    sys.modules.pop("agents_of_mine", None)


@pytest.mark.parametrize(("name", "kind"), [("oracle", OracleAgent), ("nop", NopAgent)])
def test_built_in(name, kind):
    agent = resolve_agent(name, model="m", known={name: lambda **_: None})
    assert type(agent) is kind
    assert agent.name == name


@pytest.mark.parametrize("attribute", ["Mine", "factory", "Inner.Deep"])
def test_class_or_factory_gets_the_model(attribute):
    agent = resolve_agent(f"agents_of_mine:{attribute}", model="large")
    assert agent.model == "large"


def test_object_is_taken_as_it_is():
    assert resolve_agent("agents_of_mine:ready", model="x").model == "its own"


def test_model_is_left_out_where_nobody_asks_for_it():
    assert resolve_agent("agents_of_mine:NoModel", model=None)
    with pytest.raises(SettingsError, match="model"):
        resolve_agent("agents_of_mine:NoModel", model="large")


def test_registered():
    known = {"house": lambda model: NopAgent()}
    assert isinstance(resolve_agent("house", model=None, known=known), NopAgent)


KNOWN = ", ".join(sorted(["house", "nop", "oracle", *catalogue.MODULES]))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("oracel", f"Did you mean 'oracle'? Known ones: {KNOWN}"),
        ("claude-cod", f"Did you mean 'claude-code'? Known ones: {KNOWN}"),
        ("zzz", f"Known ones: {KNOWN}"),
        (":x", "unknown agent"),
        ("no_such_module_at_all:X", "pythonpath"),
        ("agents_that_break:X", "No module named 'no_such_library'"),
        ("agents_that_raise:X", "ZeroDivisionError: division by zero"),
        ("agents_of_mine:Missing", "module agents_of_mine has no 'Missing'"),
        ("agents_of_mine:Broken", "RuntimeError: no API key"),
        ("agents_that_leave:X", "SystemExit: 2"),
        ("agents_of_mine:Leaving", "SystemExit: 2"),
        ("agents_of_mine:NoRun", "NoRun has no method run(turn)"),
        ("agents_of_mine:text", "expected a class, a factory or an object"),
    ],
)
def test_what_cannot_be_had_is_explained(name, says):
    with pytest.raises(SettingsError) as caught:
        resolve_agent(name, model=None, known={"house": NopAgent})
    assert says in str(caught.value)
    assert name in str(caught.value)


def test_a_library_that_is_missing_is_not_blamed_on_the_path():
    with pytest.raises(SettingsError) as caught:
        resolve_agent("agents_that_break:X", model=None)
    assert "pythonpath" not in str(caught.value)
