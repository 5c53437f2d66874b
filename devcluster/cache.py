"""Things that take minutes to make are made once, outside the repository, and named by what they are made of.

A second process that wants the same thing waits for the first instead of making it again, and nobody ever
sees a half-made thing: it is made under another name and renamed when it is complete.
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
    """Where made things are kept."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "milligpu"


def checksum(parts: Iterable[bytes]) -> str:
    """Sixteen hex digits that change when any part does."""
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
    """The folder `<cache>/<kind>/<name>`; when it is missing, `make` fills it first."""
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
