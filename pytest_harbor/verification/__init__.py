"""Verification: verifier files, artifacts, reward files, and how a verifier is run."""
