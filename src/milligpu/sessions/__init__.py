"""Shares for commands: the session service behind `milligpu run`.

`place` decides (through `placement`), `store` and `record` keep sessions on disk, `members` finds a session's
processes, `manager` starts, queues and ends sessions, `monitor` measures and audits them, `service` answers on a
unix socket, and `client` is the other end. Nothing is only in memory: a session is a directory and a running
process, so a service that was killed finds everything again.
"""
