"""Say which extra of pytest-harbor a missing SDK belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_harbor.errors import MissingExtra


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Imports in this block belong to ``extra``; ``what`` is what needs them.

    Raises:
        MissingExtra: one of them is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pytest_harbor"):
            raise
        raise MissingExtra(
            f"{what} needs the package {error.name.partition('.')[0]!r}, which is not "
            f"installed: pip install 'pytest-harbor[{extra}]'",
            name=error.name,
        ) from error
