"""Checks that suggest a fix: one engine, for `milligpu doctor`, `milligpu health` and `milligpu verify`.

`result` has the values and runs the checks, `node` looks at the machine (GPUs, driver, directories, cgroups),
`runtime` at the container runtime and the kubelet, `cluster` at the API server and the agent. `doctor` lists the
checks of a node. A check changes nothing.

`health` reports GPU servers and this machine: `health_host` and `health_network` check any machine, `health_gpus`
the GPUs of a server, which runs `health_server` for it; `cuda_probe` asks the CUDA driver.
"""
