"""Reward files: what a verifier left, read into numbers (spec 9).

Pure but for reading two files. Nothing in the folder is trusted: a verifier runs beside
what an agent left, so only regular files that lie in the folder are opened, and
only up to a size.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from pytest_harbor.errors import INVALID_REWARD_FILE, NO_REWARD_FILE

KEYS_SHOWN: Final = 5
HEADLINE_KEY: Final = "reward"
JSON_NAME: Final = "reward.json"
TEXT_NAME: Final = "reward.txt"
MAX_REWARD_BYTES: Final = 1024 * 1024
"""A reward file is a handful of numbers; more is a mistake or an attack."""


@dataclass(frozen=True)
class RewardReading:
    """What the reward files of one turn say.

    Either ``reward`` is a number and ``file`` says where it came from, or ``kind`` is
    the failure kind and ``problem`` says what is wrong with which file.
    """

    rewards: Mapping[str, float] = field(default_factory=dict)
    """The keys of the file, as numbers."""
    reward: float | None = None
    """The headline reward."""
    file: Literal["json", "txt"] | None = None
    kind: str | None = None
    problem: str = ""
    headline_problem: str = ""
    """Why a valid file counts as 0.0: it has no headline key."""
    warnings: tuple[str, ...] = ()

    @property
    def is_valid(self) -> bool:
        """True when there is a valid reward file."""
        return self.file is not None


class _Invalid(ValueError):
    """Internal: the file is there and cannot be used."""


def read_rewards(
    folder: Path, *, reward_key: str | None = None, dropped: Collection[str] = ()
) -> RewardReading:
    """Read ``reward.json``, or else ``reward.txt``, of a verifier's log folder.

    ``reward.json`` wins by existing, valid or not. ``reward_key`` names the headline of a
    ``reward.json`` without ``reward``. ``dropped`` are names of reward files that exist
    in the sandbox but were not copied out, because they are links out or no files.
    """
    has_json = _exists(folder, JSON_NAME, dropped)
    has_text = _exists(folder, TEXT_NAME, dropped)
    if not has_json and not has_text:
        problem = f"neither {JSON_NAME} nor {TEXT_NAME}"
        return RewardReading(kind=NO_REWARD_FILE, problem=problem)
    name = JSON_NAME if has_json else TEXT_NAME
    try:
        content = _read(folder, name)
        rewards = parse_json(content) if has_json else parse_text(content)
    except _Invalid as error:
        unread = f"; {TEXT_NAME} exists and was not read" if has_json else ""
        return RewardReading(
            kind=INVALID_REWARD_FILE,
            problem=f"{name}: {error}{unread if has_text else ''}",
        )
    if not has_json:
        return RewardReading(rewards, rewards[HEADLINE_KEY], "txt")
    reward, headline_problem = headline(rewards, reward_key)
    warnings: tuple[str, ...] = ()
    if headline_problem:
        warnings += (f"{headline_problem}; it counts as 0.0",)
    if has_text:
        warnings += _disagreement(folder, reward)
    return RewardReading(
        rewards, reward, "json", headline_problem=headline_problem, warnings=warnings
    )


def headline(rewards: Mapping[str, float], reward_key: str | None) -> tuple[float, str]:
    """The headline reward of a valid file, and why it is 0.0 for want of a key.

    Spec Q1, field notes 3.4.
    """
    if HEADLINE_KEY in rewards:
        return rewards[HEADLINE_KEY], ""
    if reward_key is not None and reward_key in rewards:
        return rewards[reward_key], ""
    if reward_key is None:
        advice = "name one with [metadata.pytest_harbor] reward_key"
        missing = f"no key {HEADLINE_KEY!r}"
    else:
        advice = "correct reward_key"
        missing = f"neither {HEADLINE_KEY!r} nor the reward_key {reward_key!r}"
    keys = sorted(rewards)
    shown = ", ".join(_shortened(key) for key in keys[:KEYS_SHOWN])
    more = ", ..." if len(keys) > KEYS_SHOWN else ""
    return 0.0, f"{JSON_NAME} has {missing} (only {shown}{more}); {advice}"


def parse_text(content: bytes) -> dict[str, float]:
    """The number in a ``reward.txt``."""
    text = _decode(content).strip()
    if not text:
        raise _Invalid("is empty, expected one number")
    try:
        value = float(text)
    except ValueError:
        raise _Invalid(f"found {_shortened(text)}, expected one number") from None
    return {HEADLINE_KEY: _finite(value, "the number", text)}


def parse_json(content: bytes) -> dict[str, float]:
    """The numbers in a ``reward.json``; one bad value spoils the file."""
    text = _decode(content)
    if not text.strip():
        raise _Invalid("is empty, expected an object of numbers")
    try:
        # Python reads no integer of more than 4300 digits, but as a float: infinite.
        data = json.loads(text, parse_int=float)
    except (ValueError, RecursionError) as error:
        raise _Invalid(f"is not JSON ({error})") from None
    if not isinstance(data, dict):
        raise _Invalid(f"is {_kind_of(data)}, expected an object of numbers")
    if not data:
        raise _Invalid("is an empty object, expected at least one number")
    return {key: _number(key, value) for key, value in data.items()}


def _number(key: str, value: object) -> float:
    if not isinstance(value, (bool, float)):
        raise _Invalid(f"key {key!r} is {_kind_of(value)}, expected a number")
    number = float(value)
    return _finite(number, f"key {key!r}", str(number))


def _finite(value: float, what: str, text: str) -> float:
    if not math.isfinite(value):
        raise _Invalid(f"{what} is {_shortened(text)}, expected a finite number")
    return value


def _decode(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise _Invalid(f"is not UTF-8 ({error.reason})") from None


def _kind_of(value: object) -> str:
    names = {
        str: "a string",
        list: "a list",
        dict: "an object",
        bool: "a boolean",
        float: "a number",
    }
    return "null" if value is None else names[type(value)]


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")


def _exists(folder: Path, name: str, dropped: Collection[str]) -> bool:
    return name in dropped or os.path.lexists(folder / name)


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    if not os.path.lexists(path):
        raise _Invalid("is a link out of the folder or no regular file")
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise _Invalid("is a link to nothing") from None
    if not real.is_relative_to(folder.resolve()):
        raise _Invalid("is a link that leaves the folder")
    if not real.is_file():
        raise _Invalid("is no regular file")
    with real.open("rb") as file:
        content = file.read(MAX_REWARD_BYTES + 1)
    if len(content) > MAX_REWARD_BYTES:
        raise _Invalid(f"is larger than {MAX_REWARD_BYTES} bytes")
    return content


def _disagreement(folder: Path, reward: float) -> tuple[str, ...]:
    """A warning when both files are valid and say different things."""
    try:
        other = parse_text(_read(folder, TEXT_NAME))[HEADLINE_KEY]
    except _Invalid:
        return ()
    if other == reward:
        return ()
    return (
        f"{JSON_NAME} says {reward:g} and {TEXT_NAME} {other:g}: {JSON_NAME} counts",
    )
