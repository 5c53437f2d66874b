"""Cache what takes minutes to build, outside the repository, under names derived from its inputs.

A second process that needs the same thing waits for the first instead of building it again. Each thing is built
under a temporary name and renamed when it is complete, so no process sees half of it.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

FOLDER_VARIABLE = "MILLIGPU_CACHE"


def folder() -> Path:
    """The root directory of the cache."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "milligpu"


def checksum(parts: Iterable[bytes]) -> str:
    """Sixteen hex digits that change when any part changes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()[:16]


def checksum_of_folder(top: Path, *recipe: str) -> str:
    """A checksum of all files below `top` and of the recipe applied to them."""
    files = sorted(path for path in top.rglob("*") if path.is_file())
    named = (part for file in files for part in (str(file.relative_to(top)).encode(), file.read_bytes()))
    return checksum([*(line.encode() for line in recipe), *named])


def made(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return the directory `<cache>/<kind>/<name>`; if it is missing, `make` fills it first."""
    place = folder() / kind / name
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _make(place, make)
    return place


def _make(place: Path, make: Callable[[Path], None]) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        make(draft)
        draft.chmod(0o755)
        draft.rename(place)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
