"""Python verifiers, run for real: spec 6 to the letter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_harbor.verification.python_verifier import (
    RUNNER,
    TEST_SH,
    generated_uploads,
)


@pytest.fixture
def grade(tmp_path):
    """Run a verifier's source as the generated files would; returns what it wrote.

    The runner is the generated one, its two fixed folders moved to the test's own.
    """

    def run(source, *, task_data=None, response=None):
        tests, logs = tmp_path / "tests", tmp_path / "logs"
        (tests / ".harbor").mkdir(parents=True)
        logs.mkdir()
        (tmp_path / "verifier.py").write_text(source)
        uploads = generated_uploads(
            tmp_path / "verifier.py",
            workspace="/app",
            task_data=task_data,
            response=response,
        )
        for upload in uploads:
            is_text = isinstance(upload.source, bytes)
            content = upload.source if is_text else upload.source.read_bytes()
            target = tests / Path(upload.target).relative_to("/tests")
            target.write_bytes(content)
        runner = tests / ".harbor" / "run.py"
        text = runner.read_text()
        text = text.replace('"/tests"', repr(str(tests)))
        text = text.replace('"/logs/verifier"', repr(str(logs)))
        runner.write_text(text)
        done = subprocess.run(
            [sys.executable, runner],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        files = {path.name: path.read_text() for path in logs.iterdir()}
        return done, files

    return run


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("def verify(): return 1", "1.0"),
        ("def verify(): return 0.25", "0.25"),
        ("def verify(): return True", "1.0"),
        ("async def verify(): return 0.5", "0.5"),
        ("def verify(workspace): return workspace == '/app'", "1.0"),
        ("def verify(task_data): return task_data['n']", "7.0"),
        ("def verify(response): return response['output_text'] == 'done'", "1.0"),
        (
            "async def verify(response, /):\n    return response['object'] == 'response'",
            "1.0",
        ),
        ("def verify(state): return state == {'workspace': '/app'}", "1.0"),
        ("def verify(workspace, /): return workspace == '/app'", "1.0"),
        (
            "def verify(state, /, *, task_data):\n    return task_data['n']",
            "7.0",
        ),
        ("def verify(*args, **more): return len(args) + len(more)", "0.0"),
        ("def verify(workspace, extra=3): return extra", "3.0"),
        ("from decimal import Decimal\ndef verify(): return Decimal('0.5')", "0.5"),
    ],
)
def test_number(grade, source, text):
    done, files = grade(source, task_data={"n": 7}, response="done")
    assert done.returncode == 0, done.stderr
    assert files == {"reward.txt": f"{text}\n"}


def test_dict(grade):
    done, files = grade("def verify(): return {'reward': 1, 'style': 0.5}")
    assert done.returncode == 0
    assert json.loads(files["reward.json"]) == {"reward": 1.0, "style": 0.5}
    assert list(files) == ["reward.json"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def check(): return 1", "has no function verify"),
        ("def verify(response): return 1", "requires 'response', but the agent gave"),
        ("def verify(weather): return 1", "asks for 'weather'"),
        ("def verify(): return 'good'", "str, expected a number"),
        ("def verify(): return None", "NoneType, expected a number"),
        ("def verify(): return [1]", "list, expected a number"),
        ("def verify(): return float('nan')", "expected a finite number"),
        ("def verify(): return {'style': 1}", "without the key 'reward'"),
        ("def verify(): return {'reward': 1, 'why': 'x'}", "key 'why' is str"),
        ("def verify(): return {'reward': 1, 2: 1}", "the key 2, expected str"),
        ("def verify(): raise RuntimeError('broken')", "RuntimeError: broken"),
        ("def verify(:", "SyntaxError"),
    ],
)
def test_broken_contract_writes_no_reward(grade, source, says):
    done, files = grade(source)
    assert done.returncode == 1
    assert says in done.stderr
    assert files == {}


@pytest.mark.parametrize(
    "source",
    [
        "def verify(response=None): return response is None",
        "def verify(response=None, /): return response is None",
        "def verify(response={}): return response == {}",
        "def verify(task_data): return task_data == {}",
    ],
)
def test_optional_response_may_be_missing(grade, source):
    done, files = grade(source)
    assert (done.returncode, files) == (0, {"reward.txt": "1.0\n"})


def test_imports_come_from_tests_and_never_from_the_workspace(grade, tmp_path):
    (tmp_path / "planted.py").write_text("answer = 1")  # the working directory
    done, files = grade("import planted\ndef verify(): return planted.answer")
    assert "No module named 'planted'" in done.stderr
    assert files == {}


def test_runner_is_plain_old_python():
    compile(RUNNER, "run.py", "exec", flags=0, dont_inherit=True)
    import ast

    ast.parse(RUNNER, feature_version=(3, 8))


@pytest.mark.parametrize(
    ("python3", "says"),
    [
        (None, "needs python3, and there is none"),
        ('#!/bin/sh\ncase "$1" in -c) exit 1;; *) echo Python 3.7.2;; esac\n', "3.7.2"),
    ],
)
def test_no_python_or_an_old_one_is_exit_code_127(tmp_path, python3, says):
    (tmp_path / "bin").mkdir()
    if python3 is not None:
        (tmp_path / "bin" / "python3").write_text(python3)
        (tmp_path / "bin" / "python3").chmod(0o755)
    script = tmp_path / "test.sh"
    script.write_text(TEST_SH)
    done = subprocess.run(
        ["/bin/bash", script],
        check=False,
        env={"PATH": str(tmp_path / "bin")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 127
    assert says in done.stderr
