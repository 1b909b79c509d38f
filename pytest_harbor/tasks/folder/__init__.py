"""Task folders (Harbor format): load, check and plan (spec/task-folders)."""
