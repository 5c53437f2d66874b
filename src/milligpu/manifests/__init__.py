"""The objects that a cluster needs, as plain data: one table each, read by commands, checks and tests."""
