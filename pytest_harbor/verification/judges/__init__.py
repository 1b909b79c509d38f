"""Judges: a model or an agent grades a reply against plain-language criteria."""
