"""How a key of a TOML file is written in a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def key_name(path: Sequence[str | int], raw: object, *, is_table: bool = False) -> str:
    """The key, or the table, at ``path`` as its author would name it.

    ``("agent", "user")`` is ``[agent].user``; inside a step the step comes first,
    by name: ``step 'build': [steps.agent].user``.
    """
    prefix = ""
    if len(path) > 1 and path[0] == "steps" and isinstance(path[1], int):
        prefix = f"step {_step_label(path[1], raw)}: "
        path = (path[0], *path[2:])
        if len(path) == 1:
            return prefix.removesuffix(": ")

    parts: list[str] = []
    for part in path:
        if isinstance(part, int):
            parts[-1] += f"[{part}]"
        else:
            parts.append(part)
    if prefix and ((len(parts) == 2 and not is_table) or "[" in parts[1]):
        parts = parts[1:]  # a key of the [[steps]] table itself
    return prefix + dotted(parts, is_table=is_table)


def dotted(parts: Sequence[str], *, is_table: bool = False) -> str:
    """``[table.sub].key`` or ``[table.sub]``; with an index ``table[0].key``."""
    *tables, key = parts
    if is_table:
        path = ".".join(parts)
        return path if "[" in path else f"[{path}]"
    if not tables:
        return key
    if any("[" in table for table in tables):
        return ".".join(parts)
    return f"[{'.'.join(tables)}].{key}"


def _step_label(index: int, raw: object) -> str:
    steps = raw.get("steps") if isinstance(raw, Mapping) else None
    if isinstance(steps, list) and index < len(steps):
        step = steps[index]
        name = step.get("name") if isinstance(step, Mapping) else None
        if isinstance(name, str):
            return f"'{name}'"
    return str(index + 1)
