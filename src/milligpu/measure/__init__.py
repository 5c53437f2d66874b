"""Measurements that users can repeat: real programs and the real arbiter on a software GPU in modeled time.

`testbed` starts the GPU, the tenants and the programs; `share_windows` turns the GPU's busy times into shares per
window of time; `enforce` has the cases of `milligpu measure enforce`.
"""
