import os
from pathlib import Path

import pytest

from devcluster import tools
from devcluster.errors import DevclusterError


def test_every_checked_package_is_in_the_list_or_essential() -> None:
    asked = {*tools.PROGRAMS.values(), *tools.PLUGINS.values()}

    assert asked - {"util-linux", "mount"} == set(tools.packages())


def test_missing_tools_are_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(tools, "CNI_PLUGINS", tmp_path)

    with pytest.raises(DevclusterError) as failed:
        tools.check(real_nodes=True)

    assert failed.value.hint == "apt-get install containernetworking-plugins"


def test_a_check_without_root_fails_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(DevclusterError, match="needs root"):
        tools.check(real_nodes=False)
