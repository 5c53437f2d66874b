import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.model.errors import BadRequest
from milligpu.model.units import (
    parse_fraction,
    parse_mib,
    parse_milli,
    parse_quantity,
    parse_size,
    parse_size_with_unit,
    show_mib,
    show_milli,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (300, 300),
        ("300", 300),
        ("1k", 1000),
        ("1e3", 1000),
        ("4Gi", 4 * 2**30),
        ("500m", 0.5),
        (".5", 0.5),
        ("-1", -1),
    ],
)
def test_a_quantity_is_read_as_kubernetes_reads_it(text: object, value: float) -> None:
    assert parse_quantity("f", text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "1x",
        "1KI",
        "1 Gi",
        "1e",
        "0x10",
        "1_000",
        "١",
        "1.2.3",
        True,
        None,
        0.5,
        [1],
        "9" * 31,
        "1e999",
        "--1",
    ],
)
def test_what_is_no_quantity_is_refused_with_its_field_and_value(text: object) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_quantity("containers[a].limits", text)
    assert caught.value.field == "containers[a].limits"
    assert caught.value.value == text


@pytest.mark.parametrize(
    ("text", "gpus", "milli"),
    [(1, 1, 1), ("300", 1, 300), (1000, 1, 1000), ("1k", 1, 1000), (2000, 2, 1000), (64000, 64, 1000)],
)
def test_milli_is_a_share_of_one_gpu_or_whole_gpus(text: object, gpus: int, milli: int) -> None:
    assert parse_milli("f", text) == (gpus, milli)


@pytest.mark.parametrize("text", [0, -1, "0.5", 1500, "1001", 65000, "abc", "", None])
def test_a_share_of_more_than_one_gpu_that_is_not_whole_is_refused(text: object) -> None:
    with pytest.raises(BadRequest, match="1000 = one GPU"):
        parse_milli("nvidia.com/vgpu", text)


def test_an_uneven_share_says_which_even_ones_are_near() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_milli("nvidia.com/vgpu", 1500)
    assert caught.value.hint == "ask for 1000 or 2000"


def test_tenths_add_up_exactly() -> None:
    assert parse_fraction("f", "0.1") + parse_fraction("f", 0.2) == parse_fraction("f", "0.3")


@pytest.mark.parametrize(
    ("text", "milli"),
    [
        ("0.5", 500),
        (0.5, 500),
        (1, 1000),
        ("1.0", 1000),
        ("0.333333", 333),
        ("0.6666", 667),
        ("0.001", 1),
        ("5e-1", 500),
    ],
)
def test_a_fraction_is_read_to_the_nearest_milli(text: object, milli: int) -> None:
    assert parse_fraction("f", text) == milli


@pytest.mark.parametrize("text", ["0", "0.0004", "1.001", "-0.5", "half", "50%", float("nan"), float("inf"), True])
def test_a_fraction_outside_one_gpu_is_refused(text: object) -> None:
    with pytest.raises(BadRequest, match=r"from 0.001 to 1"):
        parse_fraction("-p", text)


def test_zero_is_a_fraction_only_where_it_is_allowed() -> None:
    assert parse_fraction("gpu_request", "0", zero=True) == 0
    with pytest.raises(BadRequest):
        parse_fraction("gpu_request", "0.0001", zero=True)


@pytest.mark.parametrize("text", ["0", "-5", "4Gib", "1.5", "lots", None, 17 * 2**20])
def test_a_typo_in_memory_is_refused_not_read_as_zero(text: object) -> None:
    with pytest.raises(BadRequest, match="whole number"):
        parse_mib("nvidia.com/vgpu-memory", text)


@pytest.mark.parametrize(("text", "mib"), [("16Gi", 16384), ("1", 1), ("1048577", 2), ("0.5Gi", 512), (2**20, 1)])
def test_a_size_is_rounded_up_to_whole_mib(text: object, mib: int) -> None:
    assert parse_size("-m", text) == mib


@pytest.mark.parametrize(
    ("text", "meant"),
    [("4096", "4096Mi"), ("4", "4Gi"), (4, "4Gi"), ("0.5", "0.5Gi"), ("4294967296", "4Gi"), ("5000000", "5Mi")],
)
def test_a_bare_number_is_refused_with_the_size_that_was_probably_meant(text: object, meant: str) -> None:
    with pytest.raises(BadRequest, match=r"-m: invalid value '.*': must be a size with its unit") as refused:
        parse_size_with_unit("-m", text)
    assert refused.value.hint == f"did you mean {meant}?"


def test_a_fraction_where_thousandths_are_wanted_says_what_to_write() -> None:
    with pytest.raises(BadRequest) as refused:
        parse_milli("nvidia.com/vgpu", "0.3")
    assert refused.value.hint == "for 0.3 of a GPU write 300"


@pytest.mark.parametrize(("text", "write"), [("4Gi", 4096), ("512Mi", 512), ("4Ki", 1)])
def test_memory_in_mib_has_no_unit(text: str, write: int) -> None:
    with pytest.raises(BadRequest, match="a whole number of MiB from 1 to 16777216, without a unit") as refused:
        parse_mib("nvidia.com/vgpu-memory", text)
    assert refused.value.hint == f"for {text} write {write}"
    assert parse_mib("nvidia.com/vgpu-memory", "4k") == 4000  # as the API server writes 4000


@pytest.mark.parametrize("text", ["0", "17Ti", "-1Gi", "8GB", "gigabyte"])
def test_a_size_out_of_range_is_refused(text: object) -> None:
    with pytest.raises(BadRequest, match="16Gi"):
        parse_size("-m", text)


@given(st.text(max_size=40) | st.integers() | st.floats() | st.none() | st.booleans())
def test_no_input_breaks_a_parser(value: object) -> None:
    for parse in (parse_milli, parse_fraction, parse_mib, parse_size, parse_size_with_unit):
        try:
            parse("f", value)
        except BadRequest as error:
            assert error.message.startswith("f: ")


@given(st.integers(1, 1000))
def test_every_share_survives_being_shown(milli: int) -> None:
    assert parse_fraction("f", show_milli(milli)) == milli


@given(st.integers(1, 16 * 2**20))
def test_every_size_survives_being_shown(mib: int) -> None:
    assert parse_size("f", show_mib(mib)) == mib
