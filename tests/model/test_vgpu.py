import pytest

from milligpu.devices.vgpu import profile_of


@pytest.mark.parametrize(
    ("model", "label", "milli"),
    [
        ("GRID V100-8Q", "v100-8q-8GB", 500),
        ("GRID V100DX-8C", "v100dx-8c-8GB", 250),
        ("NVIDIA A100-40C", "a100-40c-40GB", 1000),
        ("GRID M10-0B", "m10-0b-0GB", 62),
        ("NVIDIA Z9-12Q", "z9-12q-12GB", 1000),
    ],
)
def test_a_virtual_card_is_the_part_of_the_board_that_its_memory_is(model: str, label: str, milli: int) -> None:
    profile = profile_of(model)
    assert profile is not None
    assert (profile.label, profile.milli) == (label, milli)


@pytest.mark.parametrize(
    "model", ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "Tesla T4", ""]
)
def test_a_physical_card_has_no_profile(model: str) -> None:
    assert profile_of(model) is None
