"""GPUs and their links, from text and files."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.softgpu.fleet import GPUS_MAX, describe, read_fleet
from milligpu.softgpu.models import models
from tests.softgpu.conftest import ROOT


def test_mixed_models_keep_their_order() -> None:
    gpus = read_fleet("A100-40GBx2,T4x2")
    assert describe(gpus) == "2 x NVIDIA A100-SXM4-40GB, 2 x Tesla T4"
    assert [gpu.index for gpu in gpus] == [0, 1, 2, 3]


def test_a_unique_prefix_of_a_model_name_is_enough() -> None:
    assert read_fleet("a100-40g")[0].model.key == "A100-40GB"
    assert read_fleet("A10")[0].model.key == "A10"
    with pytest.raises(BadRequest, match="V100-16GB"):
        read_fleet("V100")


def test_devices_and_memory_apply_to_a_single_model() -> None:
    gpus = read_fleet("T4", devices=3, memory=1 << 30)
    assert [gpu.memory for gpu in gpus] == [1 << 30] * 3
    with pytest.raises(BadRequest, match="devices"):
        read_fleet("T4x2", devices=3)


def test_links_are_divided_evenly_among_up_to_four_gpus() -> None:
    pair, four = read_fleet("V100-16GBx2"), read_fleet("V100-16GBx4")
    assert pair[0].links == (1,) * 6
    assert four[0].links == (1, 1, 2, 2, 3, 3)


def test_more_than_four_gpus_are_joined_by_switches_if_the_model_has_them() -> None:
    assert read_fleet("H100x8")[0].links == (None,) * 18
    assert read_fleet("V100-16GBx8")[5].links == (4, 4, 6, 6, 7, 7)


def test_gpus_of_different_models_are_not_linked() -> None:
    assert all(gpu.links == () for gpu in read_fleet("V100-16GB,A100-40GB,T4x2"))


def test_two_gpus_of_one_card_have_the_same_board_number() -> None:
    assert [gpu.board for gpu in read_fleet("T4,K80x4")] == [0, 1, 1, 3, 3]


def test_a_file_sets_models_memory_numa_nodes_and_links() -> None:
    gpus = read_fleet(str(ROOT / "examples" / "softgpu" / "fleet.toml"))
    layout = [(gpu.numa, gpu.memory >> 30, gpu.links) for gpu in gpus]
    assert layout == [(0, 32, (1, 1)), (0, 32, (0, 0)), (1, 4, ()), (1, 4, ())]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nvlink = 3", "gpu"),
        ("[[gpu]]\ncount = 2", "model"),
        ('[[gpu]]\nmodel = "T4"\ncolour = 1', "colour"),
        ('[[gpu]]\nmodel = "T4"\ncount = 0', "count"),
        ('[[gpu]]\nmodel = "T4"\nmemory = "lots"', "memory"),
        ('[[gpu]]\nmodel = "T4"\nnuma = 99', "numa"),
        ('[[gpu]]\nmodel = "T4"\ncount = 17', "count"),
        ('nvlink = [[0, 1, 1]]\n[[gpu]]\nmodel = "T4"\ncount = 2', "nvlink"),
        ('nvlink = [[0, 1, 7]]\n[[gpu]]\nmodel = "V100-16GB"\ncount = 2', "nvlink"),
        ('nvlink = [[0, 5, 1]]\n[[gpu]]\nmodel = "V100-16GB"\ncount = 2', "nvlink"),
        ('nvlink = [[0, 0, 1]]\n[[gpu]]\nmodel = "V100-16GB"\ncount = 2', "nvlink"),
        ("gpu = [1]", "gpu"),
        ("not toml", "model"),
    ],
)
def test_an_invalid_file_is_refused_and_the_field_named(tmp_path: Path, text: str, names: str) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(text)
    with pytest.raises(BadRequest, match=names):
        read_fleet(str(file))


@pytest.mark.parametrize("text", ["", "T4,", "T4x0", "T4x17", "T4x16,A10", "x2", "/no/such/file.toml", "A1000"])
def test_an_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        read_fleet(text)


@given(st.lists(st.tuples(st.sampled_from(sorted(models())), st.integers(1, 4)), min_size=1, max_size=4))
def test_links_have_two_ends_and_no_gpu_exceeds_its_links(parts: list[tuple[str, int]]) -> None:
    gpus = read_fleet(",".join(f"{name}x{count}" for name, count in parts))
    assert len(gpus) <= GPUS_MAX
    for gpu in gpus:
        assert len(gpu.links) <= (gpu.model.nvlink.links if gpu.model.nvlink else 0)
        for other in set(gpu.links) - {None}:
            assert other is not None
            assert gpus[other].links.count(gpu.index) == gpu.links.count(other)
