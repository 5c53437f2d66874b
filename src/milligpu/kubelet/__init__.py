"""The kubelet's own APIs on a node: offering devices, and asking which pod holds which.

`_generated/` comes from `proto/`; nothing outside this package imports it.
"""
