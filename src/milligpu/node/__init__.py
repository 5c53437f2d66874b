"""The agent of a Kubernetes node: from slots that the kubelet counts to a share that a container holds.

`ledger` is what was promised to the kubelet, `holders` whose it became, `checks` and `attach` decide (pure), `cdi`
is the file that lets a container start, `labels` what the node says about itself.
"""
