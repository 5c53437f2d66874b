"""The scheduler service: kube-scheduler asks it where a pod's GPUs are, and it binds the pod with its grant.

`books` keeps who holds what and is the only place where shares are given; it is fed by watches, asked by the
`extender`, and does no I/O. `binder` writes grants, `nominator` tells kube-scheduler ahead where a waiting pod
should go and tells people why it waits, `leader` sees to it that only one of several services does so.
`server` speaks HTTP, and `handback` lets kube-scheduler keep its connections. `service` puts them together;
`config` and `manifests` write what a cluster needs to use it.
"""
