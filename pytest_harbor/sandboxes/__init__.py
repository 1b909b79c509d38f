"""Where commands of a task run: one interface, several providers."""
