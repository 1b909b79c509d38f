"""The task-folder engine: runs an ``EpisodePlan`` in a sandbox, without pytest."""
