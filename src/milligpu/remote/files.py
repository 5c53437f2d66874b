"""Files of a pool and of its servers."""

import os
from pathlib import Path


def write_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    fresh.rename(path)
