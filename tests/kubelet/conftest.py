"""A short folder for each test: the path of a Unix socket ends at 107 characters, and xdist's folders are deep."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kubelet-") as folder:
        yield Path(folder)
