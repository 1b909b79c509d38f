"""Test items: an episode, and a task that cannot be loaded."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.names import SEPARATORS, shown
from pytest_harbor.collection.private import fixture_info, name_place

if TYPE_CHECKING:
    import pluggy

    from pytest_harbor.collection.step_handles import StepRunHandle
    from pytest_harbor.episodes.result import EpisodeResult
    from pytest_harbor.errors import TaskLoadError


if TYPE_CHECKING:
    from _pytest.outcomes import Failed  # the type behind pytest.fail.Exception
else:
    Failed = pytest.fail.Exception


class EpisodeFailed(Failed):
    """Raised when an episode was graded and does not reach what it should."""

    __module__ = "builtins"  # as pytest's own outcomes: no module before the name


class TaskNode(pytest.Item if TYPE_CHECKING else object):  # type: ignore[misc]
    """Hooks of the ``conftest.py`` files above a task, never of one inside it.

    pytest picks the hooks of a node by its path. For a path in a folder whose
    ``conftest.py`` was not imported it would leave out those of the folders above, too.
    """

    @property
    def ihook(self) -> pluggy.HookRelay:
        """The hooks of the folder that holds the task."""
        node: pytest.Collector | None = self.parent
        while isinstance(node, TaskNode):
            node = node.parent
        assert node is not None
        return node.ihook


def printable_id(nodeid: str) -> Any:
    """The ``nodeid`` to give a node when the one that pytest would make is not fit to be shown.

    Such a one breaks the terminal, the messages between xdist's processes, and XML. ``None``
    leaves it to pytest.
    """
    clean = shown(nodeid)
    return None if clean == nodeid else clean


class TaskItem(pytest.Function):
    """One run of a task: its place is the task's file, and it fails with a plain message."""

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, self.name

    def repr_failure(
        self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kwargs: Any
    ) -> Any:
        """As pytest's, but the message begins with the reward, not with ``Failed:``."""
        shown = super().repr_failure(excinfo, *args, **kwargs)
        if isinstance(excinfo.value, EpisodeFailed):
            name_place(shown, str(self.path), str(excinfo.value))
        return shown


class Episode(TaskNode, TaskItem):
    """One attempt of one agent at one task.

    The episode runs in the item's set-up (fixture ``harbor_episode``), so that trouble with
    infrastructure is an error; the verdict on a graded one is the call, so that it is a failure.
    """


class StepTaskItem(TaskItem):
    """One run of a step task; in the item's set-up too (fixture ``harbor_run``)."""


def episode(request: pytest.FixtureRequest, harbor_episode: EpisodeResult) -> None:  # noqa: ARG001
    """Fail when the episode's reward says so."""
    from pytest_harbor.collection.judged import fail_by_verdict

    fail_by_verdict(request.node)


def step_task(request: pytest.FixtureRequest, harbor_run: StepRunHandle) -> None:  # noqa: ARG001
    """Fail when a step failed or a score says so."""
    from pytest_harbor.collection.judged import fail_by_verdict

    fail_by_verdict(request.node)


def items_of(
    module: pytest.Module, kind: type[TaskItem], function: types.FunctionType, name: str
) -> Iterator[TaskItem]:
    """Items around a function of ours: one, or as many as it is parametrised to.

    Marks, fixtures of every scope and ``pytest_generate_tests`` work as for a test in
    a Python file.
    """
    # A function of its own per task: plugins leave marks on function objects.
    own = types.FunctionType(
        function.__code__, function.__globals__, name, function.__defaults__
    )
    own.__doc__ = function.__doc__
    module.obj = types.ModuleType("pytest_harbor_task")
    setattr(module.obj, name, own)
    made: Any = module.ihook.pytest_pycollect_makeitem(
        collector=module, name=name, obj=own
    )
    for item in made or ():
        yield kind.from_parent(
            module,
            name=item.name,
            callobj=own,
            originalname=item.originalname,
            callspec=getattr(item, "callspec", None),
            fixtureinfo=fixture_info(item),
        )


class BrokenTask(TaskNode, pytest.Item):
    """A task or dataset that cannot be loaded: an error in set-up, beside the others.

    Not a collection error, which would stop the whole run where there is no xdist.
    """

    def __init__(
        self, name: str, parent: pytest.Collector, *, problems: tuple[str, ...]
    ) -> None:
        super().__init__(
            shown(name), parent, nodeid=printable_id(f"{parent.nodeid}::{name}")
        )
        self.problems = problems
        if any(shown(word) != word for word in self.keywords):
            # Reports carry these too, and the names of folders above are among them.
            self.keywords = {shown(word): on for word, on in self.keywords.items()}

    @classmethod
    def of_task(
        cls, parent: pytest.Collector, name: str, error: TaskLoadError
    ) -> BrokenTask:
        """The item of a task, by its name as IDs have it."""
        plain = shown(name)
        for sign in SEPARATORS:
            plain = plain.replace(sign, "_")
        problems = tuple(error.message.splitlines())
        item: BrokenTask = cls.from_parent(parent, name=plain, problems=problems)
        item.add_marker(pytest.mark.harbor(task=plain))
        return item

    def setup(self) -> NoReturn:
        from pytest_harbor.results.junit import clean

        session = sessions.of(self.config)
        text = "\n".join(clean(line) for line in self.problems)
        self.user_properties[:] = [("harbor.task", clean(self.name))]
        session.record_broken(self, self.name, text)
        pytest.fail(text, pytrace=False)

    def runtest(self) -> NoReturn:
        raise AssertionError("set-up always fails")

    def reportinfo(self) -> tuple[Path, int, str]:
        return Path(shown(str(self.path))), 0, self.name
