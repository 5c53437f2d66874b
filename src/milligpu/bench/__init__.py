"""Measurements that anybody can repeat: real programs and the real arbiter on a software GPU in modelled time.

`stage` sets the scene (cards, tenants, programs), `shares` turns what the card counted into shares per window,
`enforce` is the list of cases behind `milligpu bench enforce`.
"""
