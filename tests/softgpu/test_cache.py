"""The compile cache: what is used stays, what is not goes when there is too much of it."""

import os
from pathlib import Path

from milligpu.softgpu.cache import CompileCache


def fill(cache: CompileCache, folder: Path, names: str) -> None:
    for age, name in enumerate(names):
        os.close(cache.put(name, b"x" * 100))
        os.utime(folder / f"{name}.o", (age, age))


def test_too_much_is_cut_back_by_oldest_use(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "", most_bytes=500)
    fill(cache, tmp_path, "abcdef")
    used = cache.open("a")
    assert used is not None
    os.close(used)
    cache.prune()
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["a", "d", "e", "f"]


def test_what_fits_stays(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "", most_bytes=600)
    fill(cache, tmp_path, "abcdef")
    cache.prune()
    assert len(list(tmp_path.iterdir())) == 6


def test_a_module_that_was_thrown_away_can_still_be_read_by_who_opened_it(tmp_path: Path) -> None:
    cache = CompileCache(tmp_path, "", most_bytes=150)
    descriptor = cache.put("z", b"code")
    os.utime(tmp_path / "z.o", (0, 0))
    fill(cache, tmp_path, "ab")
    cache.prune()
    assert [path.stem for path in tmp_path.iterdir()] == ["b"]
    assert os.read(descriptor, 10) == b"code"
    os.close(descriptor)


def test_modules_are_told_apart_by_all_that_their_code_depends_on(tmp_path: Path) -> None:
    one, other = CompileCache(tmp_path, "one"), CompileCache(tmp_path, "other")
    assert len({one.key(b"x"), one.key(b"y"), other.key(b"x")}) == 3
