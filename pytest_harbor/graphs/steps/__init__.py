"""The step types: one module each, loaded when a task first uses it."""

from __future__ import annotations
