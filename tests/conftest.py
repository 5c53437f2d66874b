"""What all tests share: a real Kubernetes for those end to end, and property tests that do not watch the clock."""

import os
import sys

from hypothesis import HealthCheck, settings

# Where it is set, as in many container images, each program that a test starts compiles all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = ["devcluster.fixtures", "testing.times"]

# How fast a machine draws examples says nothing about the code, and on a busy one the first draw takes seconds.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")
