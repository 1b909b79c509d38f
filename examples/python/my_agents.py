"""Two agents in Python: what a model would do, done by hand."""

from __future__ import annotations

from pytest_harbor import AgentError, AgentResult

CLEAN = """
import csv
guests = {}
for row in csv.DictReader(open("guests.csv", newline="")):
    guests.setdefault(row["email"].strip().lower(), row["name"].strip())
with open("guests_clean.csv", "w") as target:
    print("name,email", file=target)
    for email, name in sorted(guests.items()):
        print(name, email, sep=",", file=target)
"""


class ShellAgent:
    """An async agent: many episodes of it share one event loop."""

    name = "shell"

    def __init__(self, *, model=None):
        self.model = model

    async def run(self, turn):
        (turn.logs / "instruction.md").write_text(turn.instruction)
        done = await turn.sandbox.exec(["python3", "-c", CLEAN], user=turn.user)
        if not done.ok:
            raise AgentError(f"exit code {done.exit_code}: {done.stderr[-500:]}")
        return AgentResult(text="The guest list is clean.", input_tokens=412)


class LazyAgent:
    """A plain ``def run`` works too: it gets a sandbox whose methods block."""

    name = "lazy"

    def __init__(self, *, model=None):
        self.model = model

    def run(self, turn):
        header = turn.sandbox.exec("head -n 1 guests.csv > guests_clean.csv")
        return AgentResult(text="That looks about right.", exit_code=header.exit_code)
