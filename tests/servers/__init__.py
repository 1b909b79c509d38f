"""Servers built on the official SDKs without our code, and servers that misbehave."""
