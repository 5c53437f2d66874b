"""Simulate leases on a modeled GPU with a virtual clock, using the native code: `python -m testing.lease`.

`clock` and `gpu` are the simulated world, `clients` the tenants' programs, `lease` our policy (the C functions of
the arbiter and the limits library), `peers` the policies of other projects, and `cases` the measured cases.
"""
