"""Sandboxes in Docker containers, on the SDK."""
