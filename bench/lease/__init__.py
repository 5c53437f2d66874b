"""Leases on a modelled GPU with a virtual clock, driving the native decisions: `python -m bench.lease`.

`clock` and `gpu` are the world, `clients` what tenants do in it, `lease` our policy (the C functions that the
arbiter and the limits library use), `peers` the rules of others, `cases` what is measured.
"""
