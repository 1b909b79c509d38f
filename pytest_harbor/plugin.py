"""The pytest entry point: options, ini keys, markers, hook wiring. Imports nothing heavy."""

from __future__ import annotations
