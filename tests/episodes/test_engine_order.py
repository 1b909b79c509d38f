"""In which order an episode asks its sandbox for what."""

from __future__ import annotations

from task_folders import write_task


def test_plain_oracle_episode_costs_no_needless_calls(tmp_path, scripted, run_scripted):
    folder = write_task(tmp_path / "task", solve="true")
    result = run_scripted(folder, "oracle")
    assert result.status == "graded"
    assert result.reward == 1.0
    assert [what for what, _ in scripted.calls] == [
        "start",
        "upload",  # the solution
        "exec",  # solve.sh
        "download",  # artifacts
        "upload",  # wipe and tests, in one
        "exec",  # test.sh
        "download",  # /logs
        "stop",
    ]
