import pytest

from milligpu import dialects
from milligpu.dialects.choose import KNOWN
from milligpu.dialects.describe import request_data
from milligpu.dialects.settings import DialectSettings
from milligpu.model.errors import BadRequest
from tests.dialects.golden import GOLDEN, Case, cases

CASES = list(cases())
MEANT = [case for case in CASES if case.means is not None]
REFUSED = [case for case in CASES if case.refused is not None]


@pytest.mark.parametrize("case", MEANT, ids=lambda case: f"{case.file}: {case.name}")
def test_a_manifest_means_what_the_table_says(case: Case) -> None:
    assert request_data(dialects.read_pod(case.pod)) == case.means


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.file}: {case.name}")
def test_a_bad_manifest_is_refused_with_field_value_and_what_is_allowed(case: Case) -> None:
    assert case.refused is not None
    with pytest.raises(BadRequest) as caught:
        dialects.read_pod(case.pod)
    assert caught.value.field == case.refused["field"]
    assert caught.value.value == case.refused.get("value", caught.value.value)
    assert case.refused["want"] in caught.value.want
    assert case.refused.get("hint", caught.value.hint) == caught.value.hint


def test_every_dialect_has_a_table_and_every_table_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {*KNOWN.by_name, "profiles", "beside"}
    assert len(MEANT) + len(REFUSED) == len(CASES)


def test_settings_say_what_manifests_leave_to_their_cluster() -> None:
    def share(settings: DialectSettings, resource: str, amount: int) -> dict[str, int]:
        limits = {resource: amount}
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
        return request_data(dialects.read_pod(pod, settings))["containers"]["c"]

    assert share(DialectSettings({"gpushare-unit": "MiB"}), "aliyun.com/gpu-mem", 300)["mib"] == 300
    assert share(DialectSettings({"gpushare-unit": "GiB"}), "aliyun.com/gpu-mem", 1000)["mib"] == 1024000
    assert share(DialectSettings({"parts": 4}), "deepomatic.com/shared-gpu", 1)["milli"] == 250
    with pytest.raises(BadRequest, match="--parts: invalid value 0: must be from 1 to 1000"):
        share(DialectSettings({"parts": 0}), "deepomatic.com/shared-gpu", 1)
    with pytest.raises(BadRequest, match="--gpushare-unit: invalid value 'GB': must be auto, GiB or MiB"):
        share(DialectSettings({"gpushare-unit": "GB"}), "aliyun.com/gpu-mem", 1)
