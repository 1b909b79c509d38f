"""Test items: an episode, and a task that cannot be loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from pytest_harbor.collection import session as sessions
from pytest_harbor.collection.names import shown
from pytest_harbor.collection.private import name_place

if TYPE_CHECKING:
    import pluggy

    from pytest_harbor.episodes.result import EpisodeResult


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


class Episode(TaskNode, pytest.Function):
    """One attempt of one agent at one task.

    The episode runs in the item's set-up (fixture ``harbor_episode``), so that trouble with
    infrastructure is an error; the verdict on a graded one is the call, so that it is a failure.
    """

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


def episode(request: pytest.FixtureRequest, harbor_episode: EpisodeResult) -> None:  # noqa: ARG001
    """Fail when the episode's reward says so."""
    from pytest_harbor.collection.running import fail_by_verdict

    fail_by_verdict(request.node)


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
