"""What all tests share: a real Kubernetes for those end to end, and property tests that do not watch the clock."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["devcluster.fixtures", "testing.times"]

# How fast a machine draws examples says nothing about the code, and on a busy one the first draw takes seconds.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
