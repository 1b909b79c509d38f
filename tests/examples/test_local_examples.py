"""examples/local: sound tasks that need nothing but Python and bash."""

from __future__ import annotations

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TASKS = sorted(p.parent.name for p in ROOT.glob("examples/local/*/task.toml"))


def test_the_examples_are_sound(run_pytest):
    """The reference solution passes every one, and doing nothing passes none."""
    run = run_pytest("examples/local", "--harbor-validate")
    assert run.code == 0, run.output

    found = {(r["task_id"], r["agent"]): r for r in run.records}
    assert set(found) == {(t, agent) for t in TASKS for agent in ("oracle", "nop")}
    threshold = {"wedding-seating": 0.85}
    for (task, agent), record in found.items():
        reached = record["reward"] >= threshold.get(task, 1.0) - 1e-9
        assert reached is (agent == "oracle"), (task, agent, record["reward"])
        assert record["mask_sample"] is False


def test_the_first_command_of_the_readme(run_pytest):
    run = run_pytest("examples/local", "-p", "no:xdist")
    assert run.code == 0, run.output
    assert set(run.cases) >= {f"{task}[oracle]" for task in TASKS}

    seating = run.properties("wedding-seating[oracle]")
    assert seating["harbor.task"] == "wedding-seating"
    assert seating["harbor.agent"] == "oracle"
    assert seating["harbor.sandbox"] == "local"
    assert 0.85 < float(seating["harbor.reward"]) < 1
    assert float(seating["harbor.reward.valid"]) == 1
    assert float(seating["harbor.min_reward"]) == 0.85

    sealed = run.properties("sealed-bids[oracle]")
    assert sealed["harbor.verifier_mode"] == "separate"

    assert (ROOT / sealed["harbor.logs"]).is_dir()


def test_doing_nothing_fails_with_the_reason(run_pytest):
    run = run_pytest("examples/local/guest-list", "--harbor-agent", "nop")
    assert run.code == 1, run.output
    [failure] = run.cases["guest-list[nop]"].iter("failure")
    assert failure.get("message").startswith("reward 0.00 < 1.00")
    assert "guests_clean.csv is missing" in failure.text
    assert float(run.properties("guest-list[nop]")["harbor.reward"]) == 0


def test_what_the_agent_of_night_shift_leaves(run_pytest):
    run = run_pytest("examples/local/night-shift")
    assert run.code == 0, run.output
    [record] = run.records
    [manifest] = (run.results / "latest").resolve().rglob("artifacts/manifest.json")
    kept = manifest.parent
    assert (kept / "app/report.md").read_text().startswith("# Night shift\n")
    assert (kept / "evidence/oven-3.log").is_file()
    assert not (kept / "evidence/scratch.tmp").exists()
    assert record["turns"][0]["reward"] == 1
    entries = json.loads(manifest.read_text())
    assert {entry["origin"] for entry in entries} == {"convention", "task"}
    assert {entry["status"] for entry in entries} == {"ok"}
    listings = list(kept.glob("**/listing.txt"))
    assert len(listings) == 1
    assert "report.md" in listings[0].read_text()
