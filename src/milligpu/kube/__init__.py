"""The API server, as the rest of the project sees it; nothing else talks to it.

`config` finds the cluster, `api` sends requests over `pool` (a fifth of a general client's cost for each bind),
`watch` follows a kind of object, `objects` are the few fields of each that are looked at.
Where a request is rare and its objects are large, `client` gives lightkube's typed one for the same cluster.
"""
