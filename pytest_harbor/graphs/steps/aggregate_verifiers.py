"""``aggregate_verifiers``: one score over the rows of several verifiers."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from pytest_harbor.errors import StepError
from pytest_harbor.graphs.context import Put
from pytest_harbor.graphs.outcome import AGGREGATED_KEY
from pytest_harbor.tasks.steps.model import AggregateVerifiers
from pytest_harbor.verification.judges.scores import aggregate

if TYPE_CHECKING:
    from pytest_harbor.graphs.steps.api import StepRun


async def aggregate_verifiers(step: AggregateVerifiers, run: StepRun) -> None:
    """Fold the rows and write the score. Raises StepError: a verifier has not written."""
    entries: Any = run.context.metadata.get("verifications") or {}
    rows: list[Any] = []
    for verifier_id in step.verifier_ids:
        if verifier_id not in entries:
            raise StepError(
                f"verifier '{verifier_id}' not found in context.metadata verifications"
            )
        rows += [
            {**row, "id": f"{verifier_id}.{row['id']}"}
            for row in entries[verifier_id].get("results") or ()
        ]
    entry = {
        "results": rows,
        "score": aggregate(rows, step.score_aggregator),
        AGGREGATED_KEY: list(step.verifier_ids),
    }
    run.write(Put("verifications", step.verifier_id or uuid.uuid4().hex, entry))
