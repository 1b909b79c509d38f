"""Sandboxes on the host itself: bubblewrap namespaces, or in-place in a container."""
