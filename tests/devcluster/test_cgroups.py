from pathlib import Path

import pytest

from devcluster.cgroups import hierarchies, tracking
from devcluster.errors import DevclusterError

V1 = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nsdelegate 0 0\n"


def test_processes_are_tracked_in_v1_pids_even_with_a_unified_hierarchy() -> None:
    assert tracking(hierarchies(V1)).mount == Path("/sys/fs/cgroup/pids")


def test_processes_are_tracked_in_the_unified_hierarchy_when_it_is_the_only_one() -> None:
    assert tracking(hierarchies(V2)).mount == Path("/sys/fs/cgroup")


def test_a_machine_without_cgroups_is_refused() -> None:
    with pytest.raises(DevclusterError, match="no cgroup file system"):
        tracking(hierarchies(""))
