"""Makes task folders for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PASSING_TEST = "echo 1 > /logs/verifier/reward.txt"


def write_task(
    folder: Path,
    toml: str = "",
    *,
    test: str | None = PASSING_TEST,
    instruction: str | None = "Do it.",
    solve: str | None = None,
    files: Mapping[str, str | bytes] = {},
) -> Path:
    """Write a task folder and return it.

    ``toml`` is the text of ``task.toml``. ``test`` becomes ``tests/test.sh``,
    ``instruction`` the top-level ``instruction.md`` and ``solve``
    ``solution/solve.sh``; ``None`` leaves the file out. ``files`` are further
    files (and win over those), by their path inside the folder; a path with a
    trailing slash makes an empty folder.
    """
    content: dict[str, str | bytes] = {"task.toml": toml}
    if test is not None:
        content["tests/test.sh"] = test
    if instruction is not None:
        content["instruction.md"] = instruction
    if solve is not None:
        content["solution/solve.sh"] = solve

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {**content, **files}.items():
        path = folder / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def write_steps_task(
    folder: Path,
    *names: str,
    toml: str = "",
    test: str | None = PASSING_TEST,
    files: Mapping[str, str | bytes] = {},
) -> Path:
    """Write a multi-step task whose steps only have an instruction.

    The ``[[steps]]`` tables come after ``toml``; write them yourself in ``toml``
    and give no ``names`` when they need keys of their own.
    """
    tables = "".join(f'\n[[steps]]\nname = "{name}"\n' for name in names)
    instructions = {f"steps/{name}/instruction.md": f"Do {name}." for name in names}
    return write_task(
        folder,
        toml + tables,
        test=test,
        instruction=None,
        files={**instructions, **files},
    )
