"""Which provider a task gets."""

from __future__ import annotations

import pytest

from pytest_harbor.errors import SettingsError
from pytest_harbor.sandboxes.choose import check_known, provider_name


@pytest.mark.parametrize(
    ("setting", "needs_container", "name"),
    [
        ("auto", True, "docker"),
        ("auto", False, "local"),
        ("local", True, "local"),
        ("docker", False, "docker"),
        ("modal", True, "modal"),
    ],
)
def test_provider_name(setting, needs_container, name):
    assert provider_name(setting, needs_container) == name


def test_an_unknown_one_is_refused_with_the_nearest():
    with pytest.raises(
        SettingsError, match=r"'dokcer'.*'docker'.*auto, docker, local, m"
    ):
        check_known("dokcer", ["modal"])
    check_known("modal", ["modal"])
