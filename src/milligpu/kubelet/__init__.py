"""The kubelet's APIs on a node: offering device slots, and finding out which container holds which.

`_generated/` comes from `proto/`; nothing outside this package imports it.
"""
