from pathlib import Path

import pytest

from milligpu.model import names
from milligpu.model.errors import BadFormat
from milligpu.model.policy import SharePolicy
from milligpu.wire.gpu_settings import GpuSettings, decode_gpu_settings, encode_gpu_settings

GOLDEN = Path(__file__).parent / "golden"


def test_gpu_settings_survive_the_annotation() -> None:
    orders = GpuSettings().cordon("GPU-a", "noisy fan").cordon("GPU-b", "").uncordon("GPU-b", "now")
    assert decode_gpu_settings(encode_gpu_settings(orders)) == GpuSettings({"GPU-a": "noisy fan"}, {"GPU-b": "now"})
    assert decode_gpu_settings('{"v":1}') == GpuSettings()


def test_a_policy_is_set_and_forgotten_without_touching_a_cordon() -> None:
    cordoned = GpuSettings().cordon("GPU-a", "noisy fan")
    fixed = cordoned.set_policy("GPU-a", SharePolicy.FIXED).set_policy("GPU-b", SharePolicy.EQUAL)
    assert decode_gpu_settings(encode_gpu_settings(fixed)) == fixed
    assert fixed.set_policy("GPU-a", None).set_policy("GPU-b", None) == cordoned
    assert fixed.uncordon("GPU-a", "now").policies == fixed.policies


def test_settings_without_a_policy_are_written_for_0_1_0() -> None:
    cordoned = GpuSettings().cordon("GPU-a", "fan")
    assert encode_gpu_settings(cordoned) == '{"v":1,"cordoned":{"GPU-a":"fan"},"cleared":{}}'
    fixed = cordoned.set_policy("GPU-a", SharePolicy.FIXED)
    assert encode_gpu_settings(fixed) == (GOLDEN / "gpu-settings-v2.json").read_text().strip()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"v":3}',
        '{"v":1,"cordoned":{"a":"b"}}',
        '{"v":1,"other":1}',
        '{"v":2,"policies":{"a":"fixed"}}',
        '{"v":2,"policies":{"GPU-a":"fair"}}',
    ],
)
def test_invalid_gpu_settings_are_refused_whole(text: str) -> None:
    with pytest.raises(BadFormat):
        decode_gpu_settings(text)


def test_the_annotation_of_0_1_0_is_read_until_the_new_one_is_there() -> None:
    assert names.gpu_settings_text({"milligpu.dev/orders": "old"}) == "old"
    assert names.gpu_settings_text({"milligpu.dev/orders": "old", "milligpu.dev/gpu-settings": "new"}) == "new"
    assert names.gpu_settings_text(None) is None
