"""What the local sandbox refuses before anything starts: pure, but for the host's users."""

from __future__ import annotations

import pwd

from pytest_harbor.errors import UnsupportedByProvider
from pytest_harbor.sandboxes.environment import EnvironmentSpec, User
from pytest_harbor.sandboxes.local.broker import joined


def refuse_compose(spec: EnvironmentSpec) -> None:
    """Raises UnsupportedByProvider for a spec with services (X36)."""
    if spec.compose_file is not None:
        raise UnsupportedByProvider(
            "environment/docker-compose.yaml: the local sandbox cannot run Compose "
            "services; use --harbor-sandbox docker"
        )


def has_image(spec: EnvironmentSpec) -> bool:
    """Whether it names an image or a Dockerfile."""
    return spec.image is not None or spec.build_context is not None


def image_key(spec: EnvironmentSpec) -> str:
    """What names the image, for messages."""
    return "docker_image" if spec.image is not None else "environment/Dockerfile"


def refuse_wandering(workdir: str | None) -> None:
    """Raises UnsupportedByProvider for a path that may lead elsewhere."""
    # What it leads to depends on what is there by then, links included.
    if workdir is not None and (
        not workdir.startswith("/") or ".." in workdir.split("/")
    ):
        raise UnsupportedByProvider(
            f"workdir = {workdir!r}: the local sandbox needs an absolute path without "
            "'..'; write where it leads to"
        )


def refuse_unknown_user(user: User | None) -> None:
    """Raises UnsupportedByProvider for a user that this machine does not have."""
    if user is None:
        return
    if isinstance(user, int) or user.isdecimal():
        if joined.parse_id(str(user)) is None:
            raise UnsupportedByProvider(
                f"user = {user!r}: no such user; uids are 0 to {joined.LAST_ID}"
            )
        return
    try:
        pwd.getpwnam(user)
    except KeyError:
        raise UnsupportedByProvider(
            f"user = {user!r}: the local sandbox has the users of this machine's "
            "/etc/passwd, and there is none of that name; "
            "add it here, or use --harbor-sandbox docker"
        ) from None


def refuse_user(user: User | None, *, one_uid: bool) -> None:
    """Raises UnsupportedByProvider for a user that no local sandbox can switch to."""
    if isinstance(user, str) and ":" in user:
        raise UnsupportedByProvider(
            f"user = {user!r}: the local sandbox does not know name:group; "
            "name the user alone, or use --harbor-sandbox docker"
        )
    if one_uid and user not in (None, 0, "0", "root"):
        raise UnsupportedByProvider(
            f"user = {user!r}: the local sandbox of a normal user has root alone "
            "(one uid); run as root, or use --harbor-sandbox docker"
        )
