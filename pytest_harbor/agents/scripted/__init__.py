"""An agent that answers from a file, for tests and examples: no model, no network.

It is a real A2A server that makes its tool calls for real. Started by
``python -m pytest_harbor.agents.scripted [SCRIPT]``.
"""
