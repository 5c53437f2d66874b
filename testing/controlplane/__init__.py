"""The scheduler service's own code against a simulated API server and kube-scheduler, in virtual time.

`clock` has the time and the processes' event loops, `server` is the simulated API server, `client` stands in for
`kube.api.ApiClient` and injects network faults, `service_process` is one instance of the service, `kube_scheduler`
is a model of kube-scheduler, and `world` puts them together. `steps` draws what happens, `run` carries it out and
checks the `invariants`, and `shrink` shortens a failing list of steps. A seed and a number of steps give the same
run every time.
"""
