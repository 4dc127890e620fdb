"""The desk engine: the whole recipe in one process, small enough to read."""
