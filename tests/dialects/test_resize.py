import pytest

from milligpu.dialects.resize import ShareChange, format_resize, parse_resize, resized_grant
from milligpu.model.errors import BadRequest
from milligpu.model.grant import GpuShare, Grant, whole_gpu
from milligpu.model.request import Share
from milligpu.model.units import Mib, Milli

FIXED = GpuShare("GPU-a", Share(Milli(300), Mib(4096), Milli(300)))
LOOSE = GpuShare("GPU-a", Share(Milli(300), Mib(4096), Milli(800)))


def granted(*shares: GpuShare) -> Grant:
    return Grant("u", "n1", {"main": shares, "other": (FIXED,)})


def test_what_is_left_out_stays_and_the_rest_is_the_next_generation() -> None:
    later = resized_grant(granted(LOOSE), parse_resize('{"main": {"milli": 500}}'))
    assert later.generation == 2
    assert later.containers["main"] == (GpuShare("GPU-a", Share(Milli(500), Mib(4096), Milli(800))),)
    assert later.containers["other"] == (FIXED,)


def test_a_limit_that_was_the_share_stays_equal_to_it() -> None:
    for milli in (100, 700):
        later = resized_grant(granted(FIXED), parse_resize(f'{{"main": {{"milli": {milli}}}}}'))
        assert later.containers["main"][0].share.limit == milli
    raised = resized_grant(granted(LOOSE), parse_resize('{"main": {"milli": 900}}'))
    assert raised.containers["main"][0].share.limit == 900


def test_a_resize_that_changes_nothing_makes_no_generation() -> None:
    grant = granted(FIXED)
    assert resized_grant(grant, parse_resize('{"main": {"milli": 300, "mib": 4096}}')) is grant
    assert resized_grant(grant, {}) is grant


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"main": {"milli": 1001}}', "milligpu.dev/resize[main].milli"),
        ('{"main": {"mib": 0}}', "milligpu.dev/resize[main].mib"),
        ('{"main": {"milli": 500, "limit": 400}}', "milligpu.dev/resize[main].limit"),
        ('{"main": {"cores": 1}}', "milligpu.dev/resize"),
        ('{"stranger": {"milli": 1}}', "milligpu.dev/resize[stranger]"),
        ('{"whole": {"milli": 1}}', "milligpu.dev/resize[whole]"),
        ("600", "milligpu.dev/resize"),
    ],
)
def test_a_mistake_is_refused_with_its_field(text: str, field: str) -> None:
    grant = Grant("u", "n1", {"main": (FIXED,), "whole": (whole_gpu("GPU-b"),)})
    with pytest.raises(BadRequest) as caught:
        resized_grant(grant, parse_resize(text))
    assert caught.value.field == field


def test_a_resize_survives_being_written_and_read() -> None:
    changes = {"main": ShareChange(Milli(500), None, Milli(600)), "b": ShareChange(mib=Mib(7))}
    assert parse_resize(format_resize(changes)) == changes
