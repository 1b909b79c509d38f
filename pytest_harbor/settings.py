"""One frozen :class:`Settings` object: what a run was asked to do.

The pytest layer resolves it from options, ini keys and defaults
(``collection.options``); scripts that use the engine alone construct it directly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pytest_harbor.errors import SettingsError

Unavailable: TypeAlias = Literal["error", "skip"]
Keep: TypeAlias = Literal["never", "failed", "always"]
TurnSessions: TypeAlias = Literal["fresh", "continue"]
LocalMode: TypeAlias = Literal["auto", "namespace", "in-place"]

DEFAULT_EPISODE_TIMEOUT_SECONDS = 21_600.0  # spec 5 and 14
DEFAULT_EGRESS_IMAGE = "python:3.13-slim"


@dataclass(frozen=True)
class Settings:
    """Settings of a run. Times are in seconds.

    Raises:
        SettingsError: a value is out of its range.
    """

    agents: tuple[str, ...] = ("oracle",)
    agents_file: Path | None = None
    """Declares agents beside ``pyproject.toml``."""
    model: str | None = None
    sandbox: str = "auto"
    unavailable: Unavailable = "error"
    min_reward: float | None = None
    """Threshold for tasks that name none; ``None`` means 1.0."""
    reward_key: str | None = None
    """Headline key of a reward.json without ``reward`` (field notes 3.4)."""
    attempts: int = 1
    validate: bool = False
    retries: int = 1
    timeout_multiplier: float = 1.0
    turn_sessions: TurnSessions = "fresh"
    prompt_template: Path | None = None
    results: Path = Path(".pytest_harbor")
    keep: Keep = "never"
    force_build: bool = False
    strict: bool = False
    debug: bool = False
    local_mode: LocalMode = "auto"
    egress_image: str = DEFAULT_EGRESS_IMAGE
    """Has ``python3``, for the proxy of Docker sandboxes with an allowlist."""
    local_images: tuple[tuple[str, str], ...] = ()
    """What stands in for images on the local sandbox: pattern, and ``host`` or a path."""
    enforce_task_timeouts: bool = True
    default_episode_timeout_seconds: float = DEFAULT_EPISODE_TIMEOUT_SECONDS
    step_setup_timeout_s: float | None = None
    verifier_grace_s: float = 60.0
    separate_verifier_for_artifacts: bool = False
    agent_outcome_policy: tuple[str, ...] = ()
    agent_setup_timeout_s: float = 360.0
    sandbox_start_timeout_s: float = 600.0
    seed: Mapping[str, str] = field(default_factory=dict)
    """Values of the placeholders in step tasks."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """``user_overrides`` of step tasks."""
    allow_tolerated: bool = False
    agent_model: str | None = None
    """Default model of deployed agents; ``model`` beats what steps ask for."""
    judge_model: str | None = None
    user_model: str | None = None
    default_agent: str | None = None
    """``a2a_agent_id`` of steps that name none."""
    model_api_base: str | None = None
    chat_max_turns: int = 100
    chat_max_tokens: int | None = None
    human_a2a_url: str | None = None
    object_store: str | None = None
    """A folder or an fsspec URL; ``None`` is the run folder."""
    max_concurrent_steps: int | None = None
    step_files: tuple[str, ...] = ()
    """Patterns of step task files; empty means the usual places."""

    def __post_init__(self) -> None:
        for name in (
            "timeout_multiplier",
            "default_episode_timeout_seconds",
            "step_setup_timeout_s",
            "agent_setup_timeout_s",
            "sandbox_start_timeout_s",
        ):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingsError(f"{name} must be a positive number, not {value}")
        if not (math.isfinite(self.verifier_grace_s) and self.verifier_grace_s >= 0):
            raise SettingsError("verifier_grace_s must be a number of at least 0")
        if self.min_reward is not None and math.isnan(self.min_reward):
            raise SettingsError("min_reward must be a number, not NaN")
        if self.attempts < 1:
            raise SettingsError(f"attempts must be at least 1, not {self.attempts}")
        if self.retries < 0:
            raise SettingsError(f"retries must be at least 0, not {self.retries}")
        for name in ("max_concurrent_steps", "chat_max_turns", "chat_max_tokens"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise SettingsError(f"{name} must be at least 1, not {number}")
        if not self.agents:
            raise SettingsError("at least one agent is needed")

    def with_changes(self, **changes: Any) -> Settings:
        """A copy with some fields changed; unknown names are refused."""
        known = {one.name for one in fields(self)}
        if unknown := sorted(set(changes) - known):
            raise SettingsError(f"unknown setting {unknown[0]!r}")
        return replace(self, **changes)
