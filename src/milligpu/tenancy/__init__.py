"""Holding tenants to their shares on one machine; knows neither pods nor sessions.

A tenant is one container or one session. It has a directory with a limits page, a usage page and a socket to the
arbiter. `arbiter` hands the leases around, `time_slots` divides a GPU while no arbiter runs, `rates` turns GPU time
into utilization, and `audit` compares what the driver sees with what was granted.
"""
