from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.model.gpu import ComputeCapability, Gpu, model_matches
from milligpu.model.reasons import Reason
from milligpu.model.requirements import ANY, Requirements, parse_requirements
from milligpu.model.units import Mib
from milligpu.model.versions import parse_version

V100 = Gpu("GPU-a", "Tesla V100-SXM2-16GB", Mib(16384), ecc=True)
A100 = Gpu("GPU-b", "NVIDIA A100-SXM4-80GB", Mib(81920), capability=ComputeCapability(8, 0))
DRIVEN = replace(V100, driver=parse_version("v", "535.54.03"), cuda=parse_version("v", "12.2"))


def test_the_documented_example_reads() -> None:
    assert parse_requirements("r", "memory>=16Gi, model in (V100, A100), ecc, nvlink, cc>=8.0") == Requirements(
        memory_min=Mib(16384),
        capability_min=ComputeCapability(8, 0),
        ecc=True,
        nvlink=True,
        models=("V100", "A100"),
    )


@pytest.mark.parametrize(
    ("text", "gpu", "reason"),
    [
        ("memory>=16Gi", V100, None),
        ("memory>=17Gi", V100, Reason.MEMORY_SIZE),
        ("cc>=7.0", V100, None),
        ("cc>=7.5", V100, Reason.CAPABILITY),
        ("ecc", A100, Reason.NO_ECC),
        ("model = V100", V100, None),
        ("model=v100-sxm2", V100, None),
        ("model=A100", V100, Reason.MODEL_MISMATCH),
        ("model!=V100", V100, Reason.MODEL_MISMATCH),
        ("model not in (V100, T4)", A100, None),
        ("uuid=GPU-a", V100, None),
        ("uuid in (GPU-b,GPU-c)", V100, Reason.UUID_MISMATCH),
        ("uuid!=GPU-a", V100, Reason.UUID_MISMATCH),
        ("nvlink, numa", V100, None),
        ("driver>=535", DRIVEN, None),
        ("driver >= 535.54.03", DRIVEN, None),
        ("driver>=535.54.3", DRIVEN, None),
        ("driver>=535.104.05", DRIVEN, Reason.DRIVER),
        ("driver>=470.199", DRIVEN, None),
        ("cuda>=12.2", DRIVEN, None),
        ("cuda>=12", DRIVEN, None),
        ("cuda>=12.10", DRIVEN, Reason.CUDA),
        ("driver>=1", V100, Reason.DRIVER_UNKNOWN),
        ("cuda>=1", V100, Reason.DRIVER_UNKNOWN),
        ("driver>=1, cuda>=1", replace(DRIVEN, cuda=None), Reason.DRIVER_UNKNOWN),
    ],
)
def test_each_term_accepts_or_refuses_a_gpu(text: str, gpu: Gpu, reason: Reason | None) -> None:
    refusal = parse_requirements("r", text).refuse("n1", gpu)
    assert (refusal.reason if refusal else None) is reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ",",
        "ecc,",
        "ecccc",
        "ecc=true",
        "memory",
        "memory=16Gi",
        "memory>16Gi",
        "memory>=lots",
        "cc>=8",
        "cc<=8.0",
        "driver",
        "driver=535",
        "driver>=",
        "driver>=v535",
        "driver>=535.",
        "driver>=535..1",
        "driver>=1.2.3.4.5",
        "cuda>12",
        "cuda in (12, 13)",
        "cuda>=12, cuda>=13",
        "model",
        "model in",
        "model in ()",
        "model in (V100",
        "model in (V100))",
        "model~V100",
        "memory>=1Gi, memory>=2Gi",
        "ecc ecc",
        "model in (" + ",".join(f"m{i}" for i in range(65)) + ")",
        "e" * 2001,
        None,
        7,
    ],
)
def test_a_requirement_that_is_not_understood_is_refused_not_ignored(text: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_requirements("milligpu.dev/require", text)
    assert caught.value.field.startswith("milligpu.dev/require")


def test_a10_is_not_a100() -> None:
    assert not model_matches("A10", "NVIDIA A100-SXM4-80GB")
    assert model_matches("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
    assert not model_matches("", "NVIDIA A10")


def test_of_two_versions_the_later_is_required() -> None:
    both = parse_requirements("class", "driver>=535.104, cuda>=12").and_(
        parse_requirements("r", "driver>=535.54.03, cuda>=12.4")
    )
    assert str(both) == "driver>=535.104, cuda>=12.4"


def test_a_refusal_says_which_version_is_there_and_which_is_wanted() -> None:
    old = parse_requirements("r", "cuda>=12.4").refuse("n1", DRIVEN)
    assert old is not None
    assert old.message == "has 12.2, wanted cuda>=12.4"
    unknown = parse_requirements("r", "driver>=550").refuse("n1", V100)
    assert unknown is not None
    assert unknown.message == "reports no version, wanted driver>=550"


def test_a_class_and_the_pods_own_requirements_both_hold() -> None:
    gold = parse_requirements("class", "memory>=16Gi, model in (V100, A100)")
    both = gold.and_(parse_requirements("r", "model=A100-SXM4-80GB, ecc"))
    assert both == Requirements(memory_min=Mib(16384), ecc=True, models=("A100-SXM4-80GB",))
    nothing = gold.and_(parse_requirements("r", "model=T4"))
    assert nothing.refuse("n", A100) is not None


_NAMES = st.lists(st.sampled_from(["V100", "A100", "T4", "K80"]), min_size=1, max_size=3, unique=True).map(tuple)

_NUMBERS = st.lists(st.integers(0, 99999), min_size=1, max_size=4)
_VERSIONS = _NUMBERS.map(lambda numbers: parse_version("v", ".".join(map(str, numbers))))


@given(_NUMBERS, _NUMBERS)
def test_versions_compare_by_number(one: list[int], other: list[int]) -> None:
    ours, theirs = (parse_version("v", ".".join(f"{number:02}" for number in each)) for each in (one, other))
    pad = [0, 0, 0]
    assert (ours < theirs) == ([*one, *pad][:4] < [*other, *pad][:4])
    assert (ours == theirs) == ([*one, *pad][:4] == [*other, *pad][:4])


@given(
    st.builds(
        Requirements,
        memory_min=st.integers(0, 2**20).map(Mib),
        capability_min=st.builds(ComputeCapability, st.integers(1, 12), st.integers(0, 9)),
        driver_min=st.none() | _VERSIONS,
        cuda_min=st.none() | _VERSIONS,
        ecc=st.booleans(),
        nvlink=st.booleans(),
        numa=st.booleans(),
        models=st.none() | _NAMES,
        models_not=_NAMES,
    )
)
def test_requirements_are_written_as_they_are_read(wants: Requirements) -> None:
    assert parse_requirements("r", str(wants)) == wants


@given(st.text(alphabet="memorycclinkuidav>=<!(), .0189GiV", max_size=60))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        assert isinstance(parse_requirements("r", text), Requirements)
    except BadRequest:
        pass


def test_no_requirement_allows_every_gpu() -> None:
    assert ANY.refuse("n", V100) is None
    assert str(ANY) == ""
