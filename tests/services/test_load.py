"""What pods say they serve, and what is needed for it."""

import pytest

from milligpu.model.errors import BadFormat
from milligpu.model.gpu_service import PRESETS, LoadSource, LoadTarget
from milligpu.services.load import PodLoad, UnknownMetric, parse_load
from milligpu.services.window import LoadWindow

SOURCE = LoadSource(8000, requests="served_total", running="running", waiting="waiting")
PAGE = """
# HELP served_total requests
# TYPE served_total counter
served_total{model="a b",code="200"} 40
served_total{model="}",code="500"} 2 1700000000000
served_total_created 1.7e9
# TYPE running gauge
running 3.0
# TYPE waiting gauge
"""
BY_REQUESTS = LoadTarget(requests=50)


def test_a_metric_is_added_up_over_its_labels_and_is_0_before_its_first_sample() -> None:
    assert parse_load(PAGE, SOURCE) == PodLoad(42.0, 3.0, 0.0)


def test_openmetrics_declares_a_counter_without_its_ending() -> None:
    assert parse_load("# TYPE served counter\n# EOF\n", LoadSource(1, requests="served_total")) == PodLoad(0.0)


def test_a_page_without_the_metric_is_refused_by_its_name() -> None:
    with pytest.raises(UnknownMetric, match="there is no served_total"):
        parse_load("other 1\n", SOURCE)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "", "x"])
def test_what_is_no_number_is_refused_and_never_counts_as_0(value: str) -> None:
    with pytest.raises(BadFormat):
        parse_load(f"served_total {value}\nrunning 0\nwaiting 0\n", SOURCE)


def test_every_preset_counts_requests() -> None:
    assert all(each.requests and each.port for each in PRESETS.values())


def filled(rate: float, seconds: int = 5, *, learned: float | None = None) -> LoadWindow:
    window = LoadWindow(learned)
    for second in range(seconds + 1):
        window.add(float(second), {"a": PodLoad(100 + rate * second)})
    return window


def test_nothing_is_decided_before_the_window_is_full() -> None:
    window = filled(10, 1)
    assert window.needs(BY_REQUESTS, None).now is None
    window.add(2.0, {"a": PodLoad(120)})
    needs = window.needs(BY_REQUESTS, None)
    assert needs.now == pytest.approx(200)
    assert needs.steady is None
    assert needs.most_shrink is None


def test_a_gap_begins_the_window_anew() -> None:
    window = filled(10, 10)
    window.add(30.0, {"a": PodLoad(400)})
    assert window.needs(BY_REQUESTS, None).now is None


def test_a_counter_that_begins_anew_counts_from_0_and_a_new_pod_from_its_first_scrape() -> None:
    window = filled(10, 5)
    window.add(6.0, {"a": PodLoad(10), "b": PodLoad(5000)})
    window.add(7.0, {"a": PodLoad(20), "b": PodLoad(5000)})
    assert window.needs(BY_REQUESTS, None).now == pytest.approx(200)


def test_running_requests_count_with_those_in_the_queue() -> None:
    window = LoadWindow(None)
    for second in range(4):
        window.add(float(second), {"a": PodLoad(0, 24, 8)})
    assert window.needs(LoadTarget(running=64), None).now == pytest.approx(500)


def test_gpu_time_per_request_is_learned_from_the_accounts() -> None:
    window = LoadWindow(None)
    for second in range(31):
        window.add(float(second), {"a": PodLoad(20.0 * second)})
        if second % 5 == 0:
            window.learn({"a": second * 20 * 14_000_000})
    assert window.learned.seconds == pytest.approx(0.014)
    # 20 requests a second x 14 ms, at most 0.7 of the share in use.
    assert window.needs(LoadTarget(), None).now == pytest.approx(400)


def test_what_an_earlier_leader_learned_holds_from_the_beginning() -> None:
    assert filled(20, learned=0.014).needs(LoadTarget(), None).now == pytest.approx(400)


def test_without_anything_learned_a_load_is_not_guessed() -> None:
    assert filled(20).needs(LoadTarget(), None).now is None


def test_replicas_are_removed_by_the_longer_of_a_minute_and_three_starts() -> None:
    window = filled(10, 100)
    assert window.needs(BY_REQUESTS, 10.0).most_remove == pytest.approx(200)
    assert window.needs(BY_REQUESTS, 40.0).most_remove is None
