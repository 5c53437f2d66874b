from pathlib import Path

import pytest

from devcluster import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLIGPU_CACHE", str(tmp_path))
    return tmp_path


def test_a_cached_thing_is_made_once() -> None:
    made: list[Path] = []

    def make(draft: Path) -> None:
        made.append(draft)
        (draft / "program").write_text("content")

    first = cache.made("bin", "thing-1", make)
    second = cache.made("bin", "thing-1", make)

    assert first == second
    assert (first / "program").read_text() == "content"
    assert len(made) == 1


def test_a_failed_attempt_leaves_nothing_and_can_be_repeated(folder: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").touch()
        raise RuntimeError("no space")

    with pytest.raises(RuntimeError):
        cache.made("bin", "thing-1", fail)

    assert [path for path in (folder / "bin").iterdir() if path.is_dir()] == []
    assert cache.made("bin", "thing-1", lambda draft: (draft / "whole").touch()).is_dir()


@pytest.mark.parametrize("change", ["content", "name", "recipe"])
def test_the_checksum_changes_with_files_and_recipe(change: str, tmp_path: Path) -> None:
    (tmp_path / "go.mod").write_text("one")
    before = cache.checksum_of_folder(tmp_path, "recipe")
    recipe = "recipe"
    if change == "content":
        (tmp_path / "go.mod").write_text("two")
    elif change == "name":
        (tmp_path / "go.mod").rename(tmp_path / "go.sum")
    else:
        recipe = "another"

    assert cache.checksum_of_folder(tmp_path, recipe) != before


def test_the_checksum_depends_on_the_boundaries_of_parts() -> None:
    assert cache.checksum([b"ab", b"c"]) != cache.checksum([b"a", b"bc"])
