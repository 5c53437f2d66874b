"""The cluster state: what every pod holds, keeps or waits for. Pure; built from Kubernetes' objects.

`read` turns nodes and pods into values, `state` records every share that is held, reserved or nominated, `explain`
says why a pod waits, `resize` changes the share of a running pod, and `capacity` says what is free. The parts of
`state` are `pod_table`, `node_table`, `held_shares`, `place_choice`, `reservations`, `kept_shares` and `binds`.
Three values describe a pod: `SchedulingSpec` never changes, `ObservedPod` is what the API server shows now, and
`PodEntry` is what the scheduler decided.
"""
