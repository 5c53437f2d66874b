"""Released versions of milligpu, each built from its commit into the cache, for tests of upgrades."""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

from devcluster import cache

_ROOT = Path(__file__).parents[1]
_VERSIONS = _ROOT / "tests/versions.toml"


class NoHistory(Exception):
    """The commit of a released version is not in this clone."""


def commit_of(version: str) -> str:
    """Return the full commit of a released version."""
    name: str = tomllib.loads(_VERSIONS.read_text())[version]["commit"]
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found.returncode:
        raise NoHistory(
            f"commit {name} of version {version} is not in this clone, which has only a part of the history; "
            "fetch the rest with: git fetch --unshallow"
        )
    return found.stdout.strip()


def program_of(version: str) -> Path:
    """Return the `milligpu` program of a released version; it is built when it is first asked for."""
    commit = commit_of(version)

    def make(folder: Path) -> None:
        source = folder / "source"
        source.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=_ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
        need = [str(_ROOT / "tools/need"), "uv"]
        uv = subprocess.run(need, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        # The directory is renamed when it is complete, so nothing in it may know where it is.
        subprocess.run([uv, "venv", "--quiet", "--relocatable", str(folder / "venv")], check=True)
        options = ("--frozen", "--quiet", "--no-editable", "--no-dev", "--all-extras")
        environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder / "venv")}
        environment.pop("SKBUILD_CMAKE_DEFINE", None)
        subprocess.run([uv, "sync", *options], cwd=source, env=environment, check=True)
        shutil.rmtree(source)

    return cache.made("versions", f"{version}-{commit[:16]}", make) / "venv/bin/milligpu"


def _git(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=False)
