"""GPUs over the network: a server grants shares of its GPUs to clients on other machines.

`tokens` says who may ask, `pool` keeps a pool's authority and names its servers, `protocol` has the messages.
`server` answers clients; for each session it starts a `worker` host, which holds the share through `sessions` and
starts one native worker per connection of the client's programs. `client` asks servers and keeps a session open
while its command runs. `bitfusion` reads Bitfusion's options.
"""
