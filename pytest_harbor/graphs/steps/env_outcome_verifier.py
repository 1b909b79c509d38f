"""``env_outcome_verifier``: the author's own check of an env's end state (spec 10.1)."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from pytest_harbor.errors import StepError
from pytest_harbor.events import Json
from pytest_harbor.graphs.checks import run_check
from pytest_harbor.graphs.context import Put
from pytest_harbor.graphs.steps.load_artifact import find_artifact
from pytest_harbor.graphs.targets import sandbox_of
from pytest_harbor.tasks.steps.model import EnvOutcomeVerifier
from pytest_harbor.tasks.steps.sources import ArtifactRef
from pytest_harbor.verification.judges.scores import aggregate

if TYPE_CHECKING:
    from pytest_harbor.graphs.steps.api import StepRun


async def env_outcome_verifier(step: EnvOutcomeVerifier, run: StepRun) -> None:
    """Run the check and write its rows and score.

    Raises:
        NotDeployed: no such env in this run.
        SandboxLost: its sandbox was stopped.
        StepError: no such file artifact or reply; or the check failed, which is no score.
    """
    env = run.context.env(step.env_id)
    if run.instance(env.instance_id) is not None:
        sandbox_of(env, run)
    reference = ArtifactRef(
        id=step.file_artifact_id, version=step.file_artifact_version
    )
    artifact = find_artifact(reference, run)
    if artifact.type != "file" or artifact.file is None:
        raise StepError(
            f"artifact '{artifact.name}' is a {artifact.type}; a check is one Python file"
        )
    rows = await run_check(
        artifact.file,
        env.mcp_url,
        await _handed_over(step, run),
        log=run.logs / "check.log",
        timeout_seconds=run.settings.check_seconds,
    )
    results: list[Json] = [*rows]
    score = aggregate(rows, step.score_aggregator)
    verifier_id = step.verifier_id or uuid.uuid4().hex
    run.write(Put("verifications", verifier_id, {"results": results, "score": score}))


async def _handed_over(step: EnvOutcomeVerifier, run: StepRun) -> dict[str, Any] | None:
    """What the check gets as ``run``."""
    if step.prompt_id is None:
        return None
    response = run.context.response(step.prompt_id)
    trajectory = None
    if response.agent_trajectory_object_url is not None:
        try:
            content = await run.store.get(response.agent_trajectory_object_url)
            trajectory = json.loads(content)
        except (OSError, ValueError) as error:
            run.warn(f"the trajectory of '{step.prompt_id}' cannot be read: {error}")
    return {
        "prompt": response.prompt_text,
        "reply": response.response,
        "trajectory": trajectory,
        "structured_output": response.structured_output,
    }
