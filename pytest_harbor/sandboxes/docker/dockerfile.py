"""What a Dockerfile asks of its builder. Pure; no Dockerfile is judged by it, only explained."""

from __future__ import annotations

import re
from collections.abc import Iterator

_DIRECTIVE = re.compile(r"^#\s*(\w+)\s*=\s*(\S+)")
_HEREDOC = re.compile(r"<<-?\s*[\"']?[A-Za-z_]\w*")
_FLAGS = {
    "RUN": ("mount", "network", "security"),
    "COPY": ("chmod", "link", "parents", "exclude"),
    "ADD": ("chmod", "link", "checksum", "keep-git-dir", "exclude", "unpack"),
}


def needs_buildkit(text: str) -> tuple[str, ...]:
    """What of a Dockerfile only BuildKit understands, as it is written there, each once."""
    return tuple(dict.fromkeys(_needs(text)))


def _needs(text: str) -> Iterator[str]:
    lines = text.splitlines()
    for line in lines:
        # Directives are comments at the very top, before anything else.
        directive = _DIRECTIVE.match(line)
        if directive is None:
            break
        if directive[1].lower() == "syntax":
            yield f"# syntax={directive[2]}"
    for line in _instructions(lines):
        word, _, rest = line.strip().partition(" ")
        instruction = word.upper()
        if instruction not in _FLAGS:
            continue
        for flag in re.findall(r"(?:^|\s)--([a-z-]+)", _flags_of(rest)):
            if flag in _FLAGS[instruction]:
                yield f"{instruction} --{flag}"
        if heredoc := _HEREDOC.search(rest):
            yield f"{instruction} {heredoc[0]}"


def _flags_of(rest: str) -> str:
    """The flags at the beginning: those further on are the command's own."""
    found = re.match(r"(?:\s*--\S+)*", rest)
    return found[0] if found else ""


def _instructions(lines: list[str]) -> Iterator[str]:
    """Instructions on one line each, comments left out."""
    whole = ""
    for line in lines:
        if line.lstrip().startswith("#"):
            continue
        whole += line
        if line.rstrip().endswith("\\"):
            whole = whole.rstrip()[:-1] + " "
            continue
        yield whole
        whole = ""
    if whole:
        yield whole
