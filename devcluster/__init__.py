"""A real Kubernetes on one machine: for the tests, and for a person who wants to try something.

API server, controller manager, scheduler, etcd, kubelet, containerd and KWOK are the real programs, built
from the Go modules in `go/`; nothing here imitates them. This package only builds them, starts them with
certificates, addresses and folders of their own, and removes every trace afterwards.

It needs root (mount namespaces, cgroups, addresses) and is not part of the wheel.
"""
