"""Clients of the wire protocols of step tasks: A2A, MCP, data plane, chat completions.

The SDKs (extras ``agents`` and ``judge``) are imported by the functions that need them;
importing these modules loads none.
"""
