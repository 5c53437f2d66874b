"""Chaos tests on a real node: kill components while pods start and end, then compare all records with reality.

`script` generates the steps from a seed (pure), `testbed` runs them, `observe` reads the state of the cluster from
four sources, and `invariants` compares them (pure).
"""
