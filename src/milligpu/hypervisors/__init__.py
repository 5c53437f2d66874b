"""The hypervisors of worker VMs: one interface (`host`), and one module for each kind.

A hypervisor says how VMs are and starts tasks on them. Which tasks, in which order, and what becomes of one that
fails is decided by those who use it.
"""
