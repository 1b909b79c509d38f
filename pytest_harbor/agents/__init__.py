"""Agents: what acts in a sandbox. The seam, the built-in ones, the registry."""
