import pytest

from milligpu import dialects
from milligpu.dialects.choose import DIALECTS
from milligpu.dialects.describe import as_data
from milligpu.dialects.settings import GpushareUnit, Settings
from milligpu.model.errors import BadRequest
from tests.dialects.golden import GOLDEN, Case, cases

CASES = list(cases())
MEANT = [case for case in CASES if case.means is not None]
REFUSED = [case for case in CASES if case.refused is not None]


@pytest.mark.parametrize("case", MEANT, ids=lambda case: f"{case.file}: {case.name}")
def test_a_manifest_means_what_the_table_says(case: Case) -> None:
    assert as_data(dialects.read(case.pod)) == case.means


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.file}: {case.name}")
def test_a_bad_manifest_is_refused_with_field_value_and_what_is_allowed(case: Case) -> None:
    assert case.refused is not None
    with pytest.raises(BadRequest) as caught:
        dialects.read(case.pod)
    assert caught.value.field == case.refused["field"]
    assert caught.value.value == case.refused.get("value", caught.value.value)
    assert case.refused["want"] in caught.value.want


def test_every_dialect_has_a_table_and_every_table_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.yaml")} == {dialect.name for dialect in DIALECTS} | {"profiles"}
    assert len(MEANT) + len(REFUSED) == len(CASES)


def test_settings_answer_what_manifests_leave_open() -> None:
    def share(settings: Settings, resource: str, amount: int) -> dict[str, int]:
        limits = {resource: amount}
        pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
        return as_data(dialects.read(pod, settings))["containers"]["c"]

    assert share(Settings(GpushareUnit.MIB), "aliyun.com/gpu-mem", 300)["mib"] == 300
    assert share(Settings(GpushareUnit.GIB), "aliyun.com/gpu-mem", 1000)["mib"] == 1024000
    assert share(Settings(parts=4), "deepomatic.com/shared-gpu", 1)["milli"] == 250
