"""Leading canary lines go, everything else stays (spec 1.1)."""

from __future__ import annotations

import pytest

from pytest_harbor.tasks.folder.instruction import instruction_text

CANARY = "<!-- harbor-canary GUID 1234 -->\n"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Do it.\n", "Do it.\n"),
        ("", ""),
        (CANARY + "\n\nDo it.\n", "Do it.\n"),
        (CANARY + "# BENCHMARK CANARY string\n\nDo it.\n", "Do it.\n"),
        ("# Canary GUID\n# Title\nDo it.\n", "# Title\nDo it.\n"),
        # Only consecutive lines at the very top.
        (CANARY + "\n" + CANARY + "Do it.\n", CANARY + "Do it.\n"),
        ("\n" + CANARY + "Do it.\n", "\n" + CANARY + "Do it.\n"),
        ("Do it.\n" + CANARY, "Do it.\n" + CANARY),
        ("Save the canary.\n", "Save the canary.\n"),
        ("<!-- a comment -->\ncanary\n", "<!-- a comment -->\ncanary\n"),
        ("<!-- canary --> Do it.\n", "<!-- canary --> Do it.\n"),
        ("\n\nDo it.\n", "\n\nDo it.\n"),
        (CANARY, ""),
        ("\ufeff" + CANARY + "Do it.\n", "Do it.\n"),
        ("# canary\r\n\r\nDo it.\r\nNow.\r\n", "Do it.\nNow.\n"),
        ("Café {x} \\n", "Café {x} \\n"),
    ],
)
def test_instruction_text(content: str, expected: str) -> None:
    assert instruction_text(content.encode()) == expected
