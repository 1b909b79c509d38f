"""The steps of a task file by type (spec 4 to 10), one checked model each.

Fields that the format has and this runner does not are ``unsupported``: they are
named in a warning and otherwise ignored.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_harbor.tasks.steps.deploy_steps import (
    DeployAgent,
    DeployEnv,
    NetworkPolicy,
    Skill,
    TeardownSandboxes,
    is_live_url,
)
from pytest_harbor.tasks.steps.file_steps import CollectArtifacts, LoadArtifact
from pytest_harbor.tasks.steps.prompt_steps import DEFAULT_USER_NAME, PromptAgent
from pytest_harbor.tasks.steps.step import DEFAULT_AGENT_NAME, Step
from pytest_harbor.tasks.steps.verifier_steps import (
    AggregateVerifiers,
    EnvOutcomeVerifier,
    RubricsVerifier,
)

__all__ = [
    "DEFAULT_AGENT_NAME",
    "DEFAULT_USER_NAME",
    "STEP_TYPES",
    "AggregateVerifiers",
    "CollectArtifacts",
    "DeployAgent",
    "DeployEnv",
    "EnvOutcomeVerifier",
    "LoadArtifact",
    "NetworkPolicy",
    "PromptAgent",
    "RubricsVerifier",
    "Skill",
    "TeardownSandboxes",
    "is_live_url",
]

STEP_TYPES: Mapping[str, type[Step]] = {
    "deploy_env": DeployEnv,
    "load_artifact": LoadArtifact,
    "deploy_agent": DeployAgent,
    "prompt_agent": PromptAgent,
    "rubrics_verifier": RubricsVerifier,
    "collect_artifacts": CollectArtifacts,
    "env_outcome_verifier": EnvOutcomeVerifier,
    "aggregate_verifiers": AggregateVerifiers,
    "teardown_sandboxes": TeardownSandboxes,
}
