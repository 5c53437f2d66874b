"""Checks that suggest a fix: one engine, for `milligpu doctor` and `milligpu verify`.

`result` has the values and runs the checks, `node` looks at the machine (GPUs, driver, directories, cgroups),
`runtime` at the container runtime and the kubelet, `cluster` at the API server and the agent. `doctor` lists the
checks of a node. A check changes nothing.
"""
