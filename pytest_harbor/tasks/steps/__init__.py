"""Step tasks (agent-env format): load and check (spec/task-steps)."""
