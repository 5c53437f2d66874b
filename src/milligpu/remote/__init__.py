"""GPUs over the network: a server grants shares of its GPUs to clients on other machines.

`tokens` says who may ask and `revocations` who may no more; both are documents of `signatures`. `pool` keeps a
pool's authority, `token_register` what it issued, `token_file` what a client gets; `protocol` has the messages.

`server` answers clients. For each session `session_hosts` starts a `worker` host, which holds the share through
`sessions` and starts one native worker per connection of the client's programs. `revocation_store` exchanges
revoked tokens with other servers, and `idle` finds sessions that do not use their GPU.

`client` asks servers over a `connection` and opens a session at the one that `choose` places it on; `keeper` keeps
it open while the command runs. `bitfusion` reads Bitfusion's options.
"""
