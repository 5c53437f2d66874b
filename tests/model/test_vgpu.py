import pytest

from milligpu.model.errors import BadRequest
from milligpu.model.vgpu import VgpuProfile, parse_profile, profile_of


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
def test_a_vgpu_is_the_same_fraction_of_the_card_as_its_memory(model: str, label: str, milli: int) -> None:
    profile = profile_of(model)
    assert profile is not None
    assert (profile.label, profile.milli) == (label, milli)


@pytest.mark.parametrize(
    "model", ["Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3", "Tesla T4", ""]
)
def test_a_physical_card_has_no_profile(model: str) -> None:
    assert profile_of(model) is None


@pytest.mark.parametrize(
    "text", ["v100-8q-8GB", "v100-8g-8GB", "v100-8GB", "v100-8q", "V100-8Q", "v100-8g", "grid_v100-8q-8gb"]
)
def test_all_spellings_of_a_profile_mean_the_same(text: str) -> None:
    assert parse_profile("f", text) == VgpuProfile("v100", 8, "q") == profile_of("GRID V100-8Q")


def test_other_series_stay() -> None:
    assert [parse_profile("f", f"a100-10{series}").series for series in "abcq"] == list("abcq")


@pytest.mark.parametrize("text", ["", "v100", "v100-8", "v100-8q-4GB", "v100-8x", "8q", "-8q", 8, None])
def test_a_text_that_is_no_profile_is_refused(text: object) -> None:
    with pytest.raises(BadRequest, match="v100-8q or v100-8q-8GB"):
        parse_profile("f", text)
