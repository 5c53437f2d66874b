"""A real Kubernetes on one machine, for the tests and for trying things out.

API server, controller manager, scheduler, etcd, kubelet, containerd and KWOK are the real programs, built from the
Go modules in `go/`. This package builds them, starts them with certificates, addresses and directories of their
own, and removes every trace afterwards.

It needs root (for mount namespaces, cgroups and addresses) and is not part of the wheel.
"""
