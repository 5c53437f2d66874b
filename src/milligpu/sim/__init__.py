"""Replay of traces and of made-up workloads: how well a strategy packs, measured before a cluster depends on it."""
