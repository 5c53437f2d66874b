"""The node's agent: who holds which share of this machine's GPUs, and the pages that hold them to it.

`books` decides (through `placement`), `record` and `tenant` are what is on disk, `processes` says who is alive,
`keeper` keeps these in step, `rounds` measures and audits, `service` puts it all behind a unix socket, and `client`
is its other end. Nothing is kept only in memory: a session is a folder and a living process, so an agent that was
killed finds everything again.
"""
