"""`milligpu doctor`: what a node needs, looked at one by one; each finding says what to do.

`machine` is the node itself (driver, devices, folders), `runtime` the container runtime and the kubelet, `cluster`
the API server and the agent. Nothing is changed by looking.
"""
