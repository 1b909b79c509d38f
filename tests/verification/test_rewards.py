"""Reward files, to the last row of the table of spec 9."""

from __future__ import annotations

import json
import os

import pytest

from pytest_harbor.errors import INVALID_REWARD_FILE, NO_REWARD_FILE
from pytest_harbor.verification.rewards import MAX_REWARD_BYTES, read_rewards


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1.0),
        ("0.75\n", 0.75),
        ("  1e-3 ", 0.001),
        ("0.0", 0.0),
        ("-1", -1.0),
        ("2.5", 2.5),
        ("\r\n0.5\r\n", 0.5),
        ("+1", 1.0),
        ("1_000", 1000.0),  # Python's own float syntax, unchanged
    ],
)
def test_valid_text(tmp_path, text, value):
    (tmp_path / "reward.txt").write_bytes(text.encode())
    reading = read_rewards(tmp_path)
    assert reading.is_valid
    assert reading.rewards == {"reward": value}
    assert (reading.reward, reading.file, reading.warnings) == (value, "txt", ())


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b" \n\t", "is empty"),
        (b"pass", "found 'pass'"),
        (b"1 2", "found '1 2'"),
        (b"0,5", "found '0,5'"),
        (b'"1"', "expected one number"),
        (b"nan", "finite"),
        (b"inf", "finite"),
        (b"-Infinity", "finite"),
        (b"1e999", "finite"),
        (b"\xff\xfe1", "not UTF-8"),
        (b"x" * 100, "..."),
        (b"1" * (MAX_REWARD_BYTES + 1), "larger than"),
    ],
)
def test_invalid_text(tmp_path, content, says):
    (tmp_path / "reward.txt").write_bytes(content)
    reading = read_rewards(tmp_path)
    assert reading.kind == INVALID_REWARD_FILE
    assert reading.reward is None
    assert reading.problem.startswith("reward.txt: ")
    assert says in reading.problem
    assert len(reading.problem) < 200


@pytest.mark.parametrize(
    ("content", "rewards"),
    [
        ('{"reward": 1, "style": 0.5}', {"reward": 1.0, "style": 0.5}),
        ('{"reward": true, "style": false}', {"reward": 1.0, "style": 0.0}),
        ('{"reward": -3, "other": 7}', {"reward": -3.0, "other": 7.0}),
        ('{"reward": 0, "reward": 1}', {"reward": 1.0}),  # the last one wins
        (' \n{"reward": 1e-3}\n', {"reward": 0.001}),
    ],
)
def test_valid_json(tmp_path, content, rewards):
    (tmp_path / "reward.json").write_text(content)
    reading = read_rewards(tmp_path)
    assert reading.rewards == rewards
    assert all(type(value) is float for value in reading.rewards.values())
    assert (reading.reward, reading.file) == (rewards["reward"], "json")
    assert reading.warnings == ()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{}", "empty object"),
        (b'{"reward": NaN}', "key 'reward' is 'nan'"),
        (b'{"reward": 1, "a": Infinity}', "key 'a' is 'inf'"),
        (b'{"reward": 1, "a": 1e309}', "key 'a' is 'inf'"),
        (b'{"reward": 1' + b"0" * 400 + b"}", "key 'reward' is 'inf'"),
        (b'{"reward": 1' + b"0" * 5000 + b"}", "key 'reward' is 'inf'"),
        (b'{"reward": 1, "why": "good"}', "key 'why' is a string"),
        (b'{"reward": null}', "key 'reward' is null"),
        (b'{"reward": [1]}', "key 'reward' is a list"),
        (b'{"reward": 1, "parts": {"a": 1}}', "key 'parts' is an object"),
        (b"1.0", "is a number"),
        (b"true", "is a boolean"),
        (b"[1]", "is a list"),
        (b"null", "is null"),
        (b'"1"', "is a string"),
        (b"", "is empty"),
        (b" ", "is empty"),
        (b'{"reward": 1', "not JSON"),
        (b"reward: 1", "not JSON"),
        (b'{"reward": \xff}', "not UTF-8"),
        (b"[" * 200_000, "not JSON"),
        (b" " * (MAX_REWARD_BYTES + 1), "larger than"),
    ],
)
def test_invalid_json_spoils_everything(tmp_path, content, says):
    (tmp_path / "reward.json").write_bytes(content)
    (tmp_path / "reward.txt").write_text("1")
    reading = read_rewards(tmp_path)
    assert reading.kind == INVALID_REWARD_FILE
    assert (reading.reward, reading.rewards) == (None, {})
    assert reading.problem.startswith("reward.json: ")
    assert says in reading.problem
    assert reading.problem.endswith("; reward.txt exists and was not read")


def test_invalid_json_alone_speaks_of_no_text_file(tmp_path):
    (tmp_path / "reward.json").write_text("[]")
    assert "reward.txt" not in read_rewards(tmp_path).problem


def test_no_file_is_missing_and_not_invalid(tmp_path):
    reading = read_rewards(tmp_path)
    assert reading.kind == NO_REWARD_FILE
    assert not reading.is_valid


def test_no_folder_is_missing(tmp_path):
    assert read_rewards(tmp_path / "none").kind == NO_REWARD_FILE


@pytest.mark.parametrize(
    ("text", "warns"), [("0.5", True), ("1", False), ("1.0\n", False), ("x", False)]
)
def test_json_counts_before_text_and_a_disagreement_is_said(tmp_path, text, warns):
    (tmp_path / "reward.json").write_text('{"reward": 1}')
    (tmp_path / "reward.txt").write_text(text)
    reading = read_rewards(tmp_path)
    assert (reading.reward, reading.file) == (1.0, "json")
    assert bool(reading.warnings) is warns


class TestHeadline:
    def test_without_reward_counts_zero_and_names_the_keys(self, tmp_path):
        (tmp_path / "reward.json").write_text('{"style": 0.5, "core": 1}')
        reading = read_rewards(tmp_path)
        assert reading.reward == 0.0
        assert reading.rewards == {"style": 0.5, "core": 1.0}
        assert reading.headline_problem == (
            "reward.json has no key 'reward' (only 'core', 'style'); "
            "name one with [metadata.pytest_harbor] reward_key"
        )
        assert reading.warnings == (f"{reading.headline_problem}; it counts as 0.0",)

    def test_only_a_few_keys_are_named(self, tmp_path):
        keys = {f"k{number}": 1 for number in range(9)} | {"a" * 99: 1}
        (tmp_path / "reward.json").write_text(json.dumps(keys))
        problem = read_rewards(tmp_path).headline_problem
        assert f"(only '{'a' * 40}...', 'k0', 'k1', 'k2', 'k3', ...);" in problem

    def test_reward_key_names_it(self, tmp_path):
        (tmp_path / "reward.json").write_text('{"style": 0.5, "core": 1}')
        reading = read_rewards(tmp_path, reward_key="style")
        assert (reading.reward, reading.warnings) == (0.5, ())
        assert reading.headline_problem == ""

    def test_reward_itself_wins(self, tmp_path):
        (tmp_path / "reward.json").write_text('{"style": 0.5, "reward": 1}')
        assert read_rewards(tmp_path, reward_key="style").reward == 1.0

    def test_reward_key_that_is_absent_is_said(self, tmp_path):
        (tmp_path / "reward.json").write_text('{"style": 0.5}')
        reading = read_rewards(tmp_path, reward_key="core")
        assert reading.reward == 0.0
        assert reading.headline_problem == (
            "reward.json has neither 'reward' nor the reward_key 'core' "
            "(only 'style'); correct reward_key"
        )


@pytest.mark.parametrize("name", ["reward.json", "reward.txt"])
class TestHostileFiles:
    def test_folder(self, tmp_path, name):
        (tmp_path / name).mkdir()
        assert "no regular file" in self.invalid(tmp_path)

    def test_fifo_does_not_hang(self, tmp_path, name):
        os.mkfifo(tmp_path / name)
        assert "no regular file" in self.invalid(tmp_path)

    def test_link_out(self, tmp_path, name):
        folder = tmp_path / "verifier"
        folder.mkdir()
        outside = tmp_path / "planted"
        outside.write_text('{"reward": 1}' if name.endswith("json") else "1")
        (folder / name).symlink_to(outside)
        assert "leaves the folder" in self.invalid(folder)

    def test_link_to_nothing(self, tmp_path, name):
        (tmp_path / name).symlink_to("nothing")
        assert "link to nothing" in self.invalid(tmp_path)

    def test_link_to_itself(self, tmp_path, name):
        (tmp_path / name).symlink_to(name)
        assert "link to nothing" in self.invalid(tmp_path)

    def test_dropped_on_the_way_is_there_all_the_same(self, tmp_path, name):
        if name == "reward.json":
            (tmp_path / "reward.txt").write_text("1")
        reading = read_rewards(tmp_path, dropped={name})
        assert reading.kind == INVALID_REWARD_FILE
        assert name in reading.problem

    def test_link_inside_counts(self, tmp_path, name):
        (tmp_path / "real").write_text('{"reward": 1}' if "json" in name else "1")
        (tmp_path / name).symlink_to("real")
        assert read_rewards(tmp_path).reward == 1.0

    def invalid(self, folder):
        reading = read_rewards(folder)
        assert reading.kind == INVALID_REWARD_FILE
        return reading.problem
