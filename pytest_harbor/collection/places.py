"""Where an episode or a run of a step task writes: its records and a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_harbor.errors import SettingsError
from pytest_harbor.results.records import Records

if TYPE_CHECKING:
    from pytest_harbor.collection.session import HarborSession


def run_places(session: HarborSession, name: str) -> tuple[Records, Path]:
    """The record files of this run, and a new folder in it.

    Raises:
        SettingsError: the results folder cannot be written.
    """
    folder = session.run_folder
    try:
        return Records(folder.path), folder.new_episode(name)
    except OSError as error:
        raise SettingsError(
            f"results folder {folder.results} cannot be written: {error.strerror}. "
            f"Choose another one with --harbor-results"
        ) from error
