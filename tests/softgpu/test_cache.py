"""The compile cache keeps what is used and removes the least recently used modules when it is too large."""

import os
from pathlib import Path

from milligpu.softgpu.cache import CompileCache


def fill(cache: CompileCache, folder: Path, names: str) -> None:
    for age, name in enumerate(names):
        os.close(cache.put(name, b"x" * 100))
        os.utime(folder / f"{name}.o", (age, age))


def test_prune_removes_the_least_recently_used_modules(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "", most_bytes=500)
    fill(cache, tmp_path, "abcdef")
    used = cache.open("a")
    assert used is not None
    os.close(used)
    cache.prune()
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "d", "e", "f"]


def test_prune_keeps_a_cache_below_its_limit(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "", most_bytes=600)
    fill(cache, tmp_path, "abcdef")
    cache.prune()
    assert len(list(tmp_path.iterdir())) == 6


def test_an_open_module_stays_readable_after_prune(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "", most_bytes=150)
    descriptor = cache.put("z", b"code")
    os.utime(tmp_path / "z.o", (0, 0))
    fill(cache, tmp_path, "ab")
    cache.prune()
    assert [path.stem for path in tmp_path.iterdir()] == ["b"]
    assert os.read(descriptor, 10) == b"code"
    os.close(descriptor)


def test_the_key_depends_on_the_text_and_the_fingerprint(tmp_path: Path) -> None:
    one, other = CompileCache(tmp_path, "one"), CompileCache(tmp_path, "other")
    assert len({one.key(b"x"), one.key(b"y"), other.key(b"x")}) == 3
