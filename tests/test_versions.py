"""Where tests get a released version from."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from milligpu import __version__
from testing import versions

ROOT = Path(__file__).parents[1]


def test_a_shallow_clone_says_how_to_fetch_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(clone)], check=True)
    (clone / "tests").mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests/versions.toml", clone / "tests")
    monkeypatch.setattr(versions, "_ROOT", clone)
    with pytest.raises(versions.NoHistory, match="git fetch --unshallow"):
        versions.commit_of("0.1.0")


def test_a_released_version_has_its_commit_in_this_clone() -> None:
    assert len(versions.commit_of("0.1.0")) == 40


def test_program_package_lock_chart_and_page_have_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    locked = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    chart = yaml.safe_load((ROOT / "deploy/chart/Chart.yaml").read_text())
    assert {__version__, project, chart["version"], chart["appVersion"]} == {__version__}
    assert [each["version"] for each in locked if each["name"] == "milligpu"] == [__version__]
    assert f"milligpu.dev/milligpu:{__version__} " in (ROOT / "docs/install.md").read_text()
    # What is released is an older one, from which tests upgrade.
    assert __version__ not in tomllib.loads((ROOT / "tests/versions.toml").read_text())
