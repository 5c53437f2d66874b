"""The only client of the API server.

`config` finds the cluster, `api` sends requests over `connections` (a fifth of a general client's cost for each
bind), `watch` follows objects, `events` records events on pods, `fetch` reads objects for commands, and `x509`
makes certificates.
"""
