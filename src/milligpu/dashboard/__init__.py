"""`milligpu dashboard`: pages about GPUs, shares and what waits, of a machine or a cluster.

Every page is made from one picture (`status/`) and the history, is refreshed by server-sent events, and has a JSON
twin under its own path with `.json`.
"""
