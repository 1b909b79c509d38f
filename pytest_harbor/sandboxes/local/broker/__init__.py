"""The broker: a small program that owns the local sandboxes of one provider.

It runs as a process of its own, with the standard library alone and a single thread,
because what it forks joins the namespaces of a sandbox: everything it needs is loaded
before, and nothing of it may be looked up in a file system that an agent can change.

``main`` is where it starts, ``loop`` what it waits in, ``jobs`` what it has done by the
processes of ``forks``. ``kernel`` has the system calls, ``joined`` the way into a sandbox,
``command`` runs a command there and ``files`` moves files; ``wire`` is spoken by both
sides.
"""

from __future__ import annotations
