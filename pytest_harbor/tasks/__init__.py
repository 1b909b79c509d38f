"""The formats that tasks are written in. Reading and checking only; nothing runs."""
