"""Rules for the paths of artifact entries (spec 3.10, 7)."""

from __future__ import annotations

import posixpath

ARTIFACTS_FOLDER = "/logs/artifacts"
MANIFEST = "manifest.json"

# What the runner itself owns around verification (spec 7, Q10). A separate verifier
# gets each artifact at its source path, so one of these would bring the agent's version
# of them into the verifier's sandbox.
PROTECTED = ("/tests", "/logs/verifier", "/logs/agent")


def source_problem(source: str, *, sidecar: bool) -> str | None:
    """Why ``source`` cannot be collected, or ``None``."""
    if not source.strip():
        return "the source is empty"
    if "\0" in source:
        return "the source holds a NUL character"
    if ".." in source.split("/"):
        return "the source must not hold '..'"
    if sidecar and not source.startswith("/"):
        return "the source must be an absolute path in a sidecar"
    return None


def destination_problem(source: str, destination: str | None) -> str | None:
    """Why the artifact cannot be stored at ``destination``, or ``None``."""
    if not destination:
        place = mirrored(source)
        bad = {"set a destination, the source has no name of its own": not place}
    else:
        place = posixpath.normpath(destination)
        bad = {
            f"destination '{destination}' must use forward slashes": "\\"
            in destination,
            f"destination '{destination}' must be relative": destination[0] == "/",
            f"destination '{destination}' must not hold '..'": (
                ".." in destination.split("/")
            ),
            "the destination holds a NUL character": "\0" in destination,
            f"destination '{destination}' is empty": place == ".",
        }
    bad[f"destination '{MANIFEST}' is the name of the list of artifacts"] = (
        place == MANIFEST
    )
    return next((problem for problem, applies in bad.items() if applies), None)


def mirrored(source: str) -> str:
    """Where an entry without a destination goes: its source path without the root."""
    place = posixpath.normpath(source).lstrip("/")
    return "" if place == "." else place


def normal_source(source: str, workdir: str | None) -> str:
    """``source`` without detours, absolute where the working directory is known."""
    return posixpath.normpath(posixpath.join(workdir or "", source))


def protected_by(source: str, workdir: str | None) -> str | None:
    """The protected folder that ``source`` is, is in, or holds; or ``None``."""
    path = normal_source(source, workdir)
    if not path.startswith("/"):
        return None
    path = "/" + path.lstrip("/")
    for folder in PROTECTED:
        if path == "/" or f"{path}/".startswith(f"{folder}/"):
            return folder
        if folder.startswith(f"{path}/"):
            return folder
    return None
