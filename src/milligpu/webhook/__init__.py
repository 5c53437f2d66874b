"""Admission: an AdmissionReview in, one out. Runs next to the scheduler service or alone.

`review` decides (bytes to bytes), `service` serves HTTPS and keeps the API server's copy of the CA current,
`certificates` issues certificates, and `largest_gpu` and `known_classes` follow the cluster.
"""
