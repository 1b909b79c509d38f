"""Hook specifications of pytest-harbor, for ``conftest.py`` files and plugins.

None of them is called in a session that collects no task. With pytest-xdist each
worker is a process of its own; the docstrings say which process calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytest_harbor.agents.api import Agent
    from pytest_harbor.agents.command.declaration import AgentDeclaration
    from pytest_harbor.episodes.result import EpisodeResult
    from pytest_harbor.events import Event
    from pytest_harbor.graphs.steps.api import StepType
    from pytest_harbor.sandboxes.api import Provider
    from pytest_harbor.tasks.folder.task import Task
    from pytest_harbor.verification.judges.api import JudgeFactory


@pytest.hookspec
def pytest_harbor_sandbox_providers(
    config: pytest.Config,
) -> Mapping[str, Callable[[], Provider]] | None:
    """Offer further kinds of sandboxes for ``--harbor-sandbox NAME``.

    Returns names with a factory each; the factory is called without arguments, once
    per process, when the first task needs it. A name replaces a built-in one of the same name.
    Called in every process that runs episodes, and in the controller of
    pytest-xdist for clean-up after a worker that died.
    """


@pytest.hookspec
def pytest_harbor_agents(
    config: pytest.Config,
) -> Mapping[str, Callable[..., Agent] | AgentDeclaration] | None:
    """Offer further agents for ``--harbor-agent NAME``.

    Returns names with a class or factory each, which is called with ``model`` as a
    keyword, once per episode, or with an ``AgentDeclaration`` of a command-line agent. A
    name wins over those of configuration files and of the catalogue, not over the built-in ones.
    Called once in every process that collects tasks, and for ``--harbor-agents``.
    """


@pytest.hookspec
def pytest_harbor_step_types(
    config: pytest.Config,
) -> Mapping[str, StepType] | None:
    """Offer further step types for step tasks.

    Returns names with a ``StepType`` each: the model of the step's fields and the async
    function that does its work. A name replaces a built-in one of the same name. Called
    once in every process that collects step tasks.
    """


@pytest.hookspec
def pytest_harbor_judges(
    config: pytest.Config,
) -> Mapping[str, JudgeFactory] | None:
    """Offer further judges for ``rubrics_verifier`` steps.

    Returns names with a class or factory each; a step names one as ``judge_a2a_agent_id``
    or ``default_model``. The factory is called with ``model`` as a keyword, once per
    grading. Called once in every process that runs step tasks.
    """


@pytest.hookspec(firstresult=True)
def pytest_harbor_modify_task(task: Task, config: pytest.Config) -> Task | None:
    """Change a task after it was loaded, before items are made of it.

    ``task`` is frozen: return a changed copy (``dataclasses.replace``), or ``None`` to
    leave it. The first result that is not ``None`` wins. Called during collection, once
    per task, in every process that collects, so it must come to the same answer in all
    of them. An exception makes the task a broken one: its item is an error.
    """


@pytest.hookspec
def pytest_harbor_event(event: Event, item: pytest.Item) -> None:
    """Hear of each event of a running episode, in order.

    Called in the process that runs the episode, in its main thread, while the episode
    goes on; a slow hook delays the reports, not the episode.
    """


@pytest.hookspec
def pytest_harbor_episode_finished(result: EpisodeResult, item: pytest.Item) -> None:
    """Hear of an episode's end, whatever it came to, after its record was written.

    Called in the process that ran the episode, in its main thread, in the set-up of
    ``item``, before the item passes or fails. ``result.logs`` is the episode's folder. Not
    called for an episode that was interrupted (Ctrl-C, a time limit of the item).
    """
