"""`milligpu scheduler`: kube-scheduler asks it where a pod's GPUs are, and it binds the pod with its grant.

`service` answers HTTP and takes part in leader election (`leader`). While it leads, a `term` fills the cluster
state from watches. `extender` answers kube-scheduler from that state, `binder` writes grants, `nominator` chooses
nodes for waiting pods ahead of kube-scheduler, `waiting_events` explains why a pod waits, `resizer` changes the
grants of running pods, and `sharepods` creates the pods of KubeShare's SharePods.
"""
