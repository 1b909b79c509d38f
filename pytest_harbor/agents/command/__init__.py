"""Agents that are command-line programs: declared, installed, run in the sandbox."""
