"""The types of values in ``task.toml``: times, users, hosts, gates (spec 3).

A validator that finds a value the specification refuses names the refusal's ID as the
error's type (``X27``); see :func:`~pytest_harbor.tasks.validation.refusal`.
"""

from __future__ import annotations

import math
import posixpath
import re
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, PlainValidator, Strict

from pytest_harbor.tasks.folder.names import (
    SERVICE_NAME,
    normal_host,
    step_name_problem,
)
from pytest_harbor.tasks.validation import refusal

MAX_COUNT = 2**53  # beyond any machine, and exact in every JSON reader
MAX_USER_ID = 2**32 - 2  # the highest number means "no user" to the kernel
NO_WORKDIR = (
    *("/proc", "/sys", "/dev"),  # the kernel's
    *("/tests", "/solution", "/logs/verifier", "/logs/agent"),  # emptied and filled
)
PLATFORM = re.compile(r"linux/[a-z0-9_]+(/[a-z0-9.]+)?")
TOPOLOGY = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*){1,2}")


def _positive(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise refusal("X27", f"must be a positive number, not {value:g}")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise refusal("X27", f"must be a finite number, not {value:g}")
    return value


def _amount(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise refusal("X01", f"must be a number of at least 0, not {value:g}")
    return value


def _count(value: int) -> int:
    if not 0 <= value <= MAX_COUNT:
        raise refusal("X01", f"must be an integer from 0 to {MAX_COUNT}")
    return value


def _platform(value: str) -> str:
    if not PLATFORM.fullmatch(value):
        raise refusal("X01", f"must be linux/ARCHITECTURE[/VARIANT], not '{value}'")
    return value


def _user(value: object) -> str | int:
    if isinstance(value, str) and value:
        for part in value.split(":"):
            _check_user_part(part)
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        if 0 <= value <= MAX_USER_ID:
            return value
        raise refusal("X01", f"must be a user ID from 0 to {MAX_USER_ID}, not {value}")
    raise refusal("X01", "must be a user name or a user ID")


def _check_user_part(part: str) -> None:
    if not part.isdigit():
        return
    if not part.isascii():
        raise refusal("X01", f"'{part}' is no user: write the ID in the digits 0 to 9")
    if len(part) > len(str(MAX_USER_ID)) or int(part) > MAX_USER_ID:
        raise refusal("X01", f"must be an ID from 0 to {MAX_USER_ID}, not '{part}'")


def _min_reward(value: object) -> float | dict[str, float]:
    if isinstance(value, dict):
        return {str(key): _gate(entry) for key, entry in value.items()}
    return _gate(value)


def _gate(value: object) -> float:
    # A boolean is taken as 1.0 or 0.0 (spec 3.5); the load warns of it.
    if isinstance(value, (bool, int, float)):
        try:
            number = float(value)
        except OverflowError:  # an integer that no float can hold
            number = math.nan
        if not math.isnan(number):
            return number
    raise refusal("X18", "must be a number or a table of numbers")


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise refusal("X01", "must be an absolute path")
    if ".." in value.split("/"):
        raise refusal("X01", f"'{value}' holds '..'; write the path without it")
    return value


def _workdir(value: str) -> str:
    path = posixpath.normpath("/" + value.lstrip("/"))
    for folder in NO_WORKDIR:
        if path == folder or path.startswith(f"{folder}/"):
            where = "is" if path == folder else "lies in"
            raise refusal(
                "X01", f"'{value}' {where} {folder}; choose another folder, as /app"
            )
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise refusal("X01", f"variable {name!r}: no '=', NUL or empty name")
    return value


def _operating_system(value: object) -> str:
    if isinstance(value, str) and value.lower() in ("linux", "windows"):
        return value.lower()
    raise refusal("X01", 'must be "linux" or "windows"')


def _host(value: str) -> str:
    host = normal_host(value)
    if host is None:
        raise refusal(
            "X21",
            f"'{value}' is no host name, '*.' pattern, IP address or CIDR range"
            " (no URL, port or path)",
        )
    return host


def _service(value: str) -> str:
    if not SERVICE_NAME.fullmatch(value):
        raise refusal(
            "X20",
            f"'{value}' is no service name: use letters, digits, '.', '_', '-',"
            " starting with a letter or digit",
        )
    return value


def _step_name(value: str) -> str:
    if problem := step_name_problem(value):
        raise refusal("X10", problem)
    return value


def _topology(value: str) -> str:
    if not TOPOLOGY.fullmatch(value):
        raise refusal("X01", f"must be NxM or NxMxK, not '{value}'")
    return value


Seconds: TypeAlias = Annotated[float, AfterValidator(_positive)]
Amount: TypeAlias = Annotated[float, AfterValidator(_amount)]
Platform: TypeAlias = Annotated[str, AfterValidator(_platform)]
Count: TypeAlias = Annotated[int, AfterValidator(_count)]
User: TypeAlias = Annotated[
    str | int, PlainValidator(_user, json_schema_input_type=str | int)
]
MinReward: TypeAlias = Annotated[
    float | dict[str, float],
    PlainValidator(_min_reward, json_schema_input_type=float | dict[str, float]),
]
OperatingSystem: TypeAlias = Annotated[
    Literal["linux", "windows"],
    PlainValidator(
        _operating_system, json_schema_input_type=Literal["linux", "windows"]
    ),
]
Variables: TypeAlias = Annotated[dict[str, str], AfterValidator(_variables)]
ServiceName: TypeAlias = Annotated[str, AfterValidator(_service)]
NetworkMode: TypeAlias = Literal["public", "no-network", "allowlist"]
# TOML arrays arrive as lists; a tuple keeps a loaded task from being changed.
Strings: TypeAlias = Annotated[tuple[str, ...], Strict(False)]
Hosts: TypeAlias = Annotated[
    tuple[Annotated[str, AfterValidator(_host)], ...], Strict(False)
]
FiniteNumber: TypeAlias = Annotated[float, AfterValidator(_finite)]
AbsolutePath: TypeAlias = Annotated[str, AfterValidator(_absolute)]
Workdir: TypeAlias = Annotated[AbsolutePath, AfterValidator(_workdir)]
StepName: TypeAlias = Annotated[str, AfterValidator(_step_name)]
Topology: TypeAlias = Annotated[str, AfterValidator(_topology)]
