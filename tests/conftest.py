"""Fixtures of all tests: the real Kubernetes that end-to-end tests run on."""

pytest_plugins = ["devcluster.fixtures"]
