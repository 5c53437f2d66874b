"""Leases on a modelled GPU with a virtual clock: our native decisions, and the rules of others beside them.

`clock` and `gpu` are the world, `clients` what tenants do in it, `lease` our policy (the C functions that the
arbiter and the limits library use), `peers` two others, `cases` what is compared.
"""
