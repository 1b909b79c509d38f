"""What remains of a run: records, run folders, the roll-up, JUnit rows."""
