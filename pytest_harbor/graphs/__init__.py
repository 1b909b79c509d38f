"""The step-task engine: runs a graph of steps over a shared context, without pytest."""

from __future__ import annotations
