"""Which GPU a request goes to: pure decisions over a snapshot of the cluster."""
