"""The agent of a Kubernetes node: offers the node's GPUs to the kubelet and attaches granted shares to containers.

`allocations` stores what the agent answered to the kubelet's Allocate. `device_owners` finds out which containers
got those device slots. `attach_plan` and `grant_check` decide (pure). `attachments` makes a container's directory
and, with `cdi`, the file that lets it start. `reconcile` runs these in a loop. `lifecycle` starts the agent, and
`handover` lets a new agent take over from a running one.
"""
