"""examples/local: sound tasks that need nothing but Python and bash."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TASKS = sorted(p.parent.name for p in ROOT.glob("examples/local/*/task.toml"))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_doing_nothing_fails_with_the_reason(run_pytest):
    run = run_pytest("examples/local/guest-list", "--harbor-agent", "nop")
    assert run.code == 1, run.output
    [failure] = run.cases["guest-list[nop]"].iter("failure")
    assert failure.get("message").startswith("reward 0.00 < 1.00")
    assert "guests_clean.csv is missing" in failure.text
    assert float(run.properties("guest-list[nop]")["harbor.reward"]) == 0


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_cake_in_three_turns(run_pytest):
    run = run_pytest("examples/local/bake-a-cake", "-v")
    assert run.code == 0, run.output
    names = ["01-batter", "02-oven", "03-frosting"]
    told = [line for line in run.output.splitlines() if " SUBPASSED[" in line]
    assert [line.split(" SUBPASSED[")[1].split("]")[0] for line in told] == names
    assert set(run.cases) == {f"{n}[oracle]" for n in [*names, "bake-a-cake"]}
    [record] = run.records
    assert [turn["reward"] for turn in record["turns"]] == [1, 1, 1]
    assert record["verifier_mode"] == "mixed"
    turns = run.results / "latest" / "bake-a-cake_oracle-1" / "turns"
    kept = {
        name: sorted(
            p.name for p in (turns / name / "verifier/artifacts/app").glob("*")
        )
        for name in names
    }
    assert kept == {
        "01-batter": [],
        "02-oven": ["oven.log"],
        "03-frosting": ["cake.json", "card.txt"],
    }


BAKERS = """
from pathlib import Path

STEPS = Path({task!r}, "steps")

class Baker:
    # The reference solution, with some words of one step's script exchanged.
    def run(self, turn):
        script = (STEPS / turn.step / "solution/solve.sh").read_text()
        if turn.step == self.step:
            assert self.old in script
            script = script.replace(self.old, self.new)
        turn.sandbox.exec(["bash", "-c", script])

class Raw(Baker):
    name, step, old, new = "raw", "01-batter", "batter.json", "dough.json"

class Pale(Baker):
    name, step, old, new = "pale", "02-oven", "bake batter.json 15", "ping"

class Forger(Baker):
    name, step, old = "forger", "02-oven", "python3 oven_client.py"
    new = "echo '{{\\"state\\": \\"golden\\"}}' > cake.json; : "

class Hot(Baker):
    name, step, old, new = "hot", "03-frosting", "client.py cool", "client.py ping"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("baker", "outcomes", "message"),
    [
        ("Raw", "FSS", "reward 0.00 < 1.00: step 01-batter missed min_reward"),
        ("Pale", "PFS", "reward 0.50 < 1.00: step 02-oven missed min_reward (baked"),
        ("Forger", "PFS", "reward 0.50 < 1.00: step 02-oven missed min_reward (baked"),
        ("Hot", "PPP", "reward 0.83 < 1.00"),  # the last step's 0.5 is in the mean
    ],
)
def test_a_cake_that_goes_wrong(run_pytest, tmp_path, baker, outcomes, message):
    task = ROOT / "examples/local/bake-a-cake"
    (tmp_path / "bakers.py").write_text(BAKERS.format(task=str(task)))
    run = run_pytest(
        task, "--harbor-agent", f"bakers:{baker}", "-o", f"pythonpath={tmp_path}"
    )
    assert run.code == 1, run.output
    found = {
        name.partition("[")[0]: {child.tag for child in case}
        for name, case in run.cases.items()
    }
    [failure] = run.cases[f"bake-a-cake[bakers:{baker}]"].iter("failure")
    assert failure.get("message").startswith(message)
    for name, outcome in zip(
        ("01-batter", "02-oven", "03-frosting"), outcomes, strict=True
    ):
        tag = {"F": "failure", "S": "skipped", "P": None}[outcome]
        assert (found[name] - {"properties"}) == ({tag} if tag else set()), name


@pytest.mark.slow
def test_only_the_last_load_of_the_van_counts(run_pytest):
    run = run_pytest("examples/local/pack-the-van")
    assert run.code == 0, run.output
    properties = run.properties("pack-the-van[oracle]")
    assert 0.5 < float(properties["harbor.turn.01-anything.reward"]) < 0.6
    assert float(properties["harbor.reward"]) == 1
    [record] = run.records
    tails = [turn["verifier_output_tail"] for turn in record["turns"]]
    # SHOW_BEST is in the environment of the second step's verifier alone.
    assert ["best load" in tail for tail in tails] == [False, True]


HOST = ("--harbor-sandbox=local", "-o", "harbor_local_images=debian:* = host")


@pytest.mark.slow
def test_dockerfiles_of_the_examples_without_a_daemon(run_pytest):
    services = "--deselect=examples/docker/ice-cream-stand"
    run = run_pytest("examples/docker", services, *HOST, "--harbor-validate")
    assert run.code == 0, run.output
    found = {(record["task_id"], record["agent"]) for record in run.records}
    assert len(found) == 8
    assert run.properties("locked-room[oracle]")["harbor.verifier_mode"] == "separate"


@pytest.mark.slow
def test_the_dockerfile_of_the_documentation(run_pytest):
    run = run_pytest("examples/docker/count-the-visitors", *HOST)
    assert run.code == 0, run.output
    properties = run.properties("count-the-visitors[oracle]")
    assert properties["harbor.sandbox"] == "local"
    assert float(properties["harbor.reward"]) == 1
