"""Variables and quotes in the words of a Dockerfile, as Docker has them. Pure."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final

_NAME: Final = frozenset(string.ascii_letters + string.digits + "_")
_IN_QUOTES: Final = frozenset('"$\\')


class WordError(ValueError):
    """Raised when a word cannot be read; the text says why."""


def expand(
    text: str, variables: Mapping[str, str], *, keep_quotes: bool = False
) -> str:
    """``text`` with its variables replaced and its quotes taken off.

    An unknown variable is empty. With ``keep_quotes`` quotes mean nothing and
    backslashes stay, as in the lines of a heredoc.

    Raises:
        WordError: a quote or brace is not closed, or a form that is not known.
    """
    reader = _Reader(text, variables, keep_quotes=keep_quotes)
    return reader.word(stop="")


class _Reader:
    def __init__(
        self, text: str, variables: Mapping[str, str], *, keep_quotes: bool
    ) -> None:
        self._text = text
        self._variables = variables
        self._keep_quotes = keep_quotes
        self._at = 0

    def word(self, stop: str) -> str:
        """Read up to ``stop`` (which is taken, too), or to the end."""
        parts: list[str] = []
        while self._at < len(self._text):
            char = self._take()
            if char == stop:
                return "".join(parts)
            if char == "$":
                parts.append(self._variable())
            elif char == "\\":
                after = self._take() if self._at < len(self._text) else "\\"
                parts.append(f"\\{after}" if self._keep_quotes else after)
            elif char == "'" and not self._keep_quotes:
                parts.append(self._single_quoted())
            elif char == '"' and not self._keep_quotes:
                parts.append(self._double_quoted())
            else:
                parts.append(char)
        if stop:
            raise WordError(f"{self._text}: '{stop}' is missing")
        return "".join(parts)

    def _take(self) -> str:
        char = self._text[self._at]
        self._at += 1
        return char

    def _single_quoted(self) -> str:
        end = self._text.find("'", self._at)
        if end < 0:
            raise WordError(f"{self._text}: a quote is not closed")
        inner = self._text[self._at : end]
        self._at = end + 1
        return inner

    def _double_quoted(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text):
            char = self._take()
            if char == '"':
                return "".join(parts)
            if char == "$":
                parts.append(self._variable())
            elif char == "\\" and self._text[self._at : self._at + 1] in _IN_QUOTES:
                parts.append(self._take())
            else:
                parts.append(char)
        raise WordError(f"{self._text}: a quote is not closed")

    def _variable(self) -> str:
        if self._text[self._at : self._at + 1] != "{":
            name = self._name()
            return self._variables.get(name, "") if name else "$"
        self._at += 1
        name = self._name()
        operator = self._take_operator()
        if not name or operator is None:
            raise WordError(f"{self._text}: this form of ${{...}} is not known")
        if operator == "}":
            return self._variables.get(name, "")
        other = self.word(stop="}")
        is_set = name in self._variables
        if operator.startswith(":"):
            is_set = bool(self._variables.get(name))
        if operator.endswith("+"):
            return other if is_set else ""
        if operator.endswith("?") and not is_set:
            raise WordError(f"{name}: {other or 'is not set'}")
        return self._variables[name] if is_set else other

    def _name(self) -> str:
        start = self._at
        while self._at < len(self._text) and self._text[self._at] in _NAME:
            self._at += 1
            if self._text[start].isdigit():
                break  # of a shell's arguments, each has one digit
        return self._text[start : self._at]

    def _take_operator(self) -> str | None:
        for operator in ("}", ":-", ":+", ":?", "-", "+", "?"):
            if self._text.startswith(operator, self._at):
                self._at += len(operator)
                return operator
        return None
