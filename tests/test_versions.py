"""Where tests get a released version from."""

import shutil
import subprocess
from pathlib import Path

import pytest

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
