"""The parts of the cost add up to the GPUs' cost, and a wrong prices file is refused with its line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milligpu.history.samples import WIDTH, HistoryLine
from milligpu.model.errors import BadRequest
from milligpu.status.cost import CostReport, cost_by_month, cost_report, sums_by_month, usage_sums
from milligpu.status.prices import NO_PRICES, Prices, read_prices


def line(key: str, rows: list[tuple[float, float, float]], **labels: str) -> HistoryLine:
    """Rows of seconds, used, and share (or allocated)."""
    made = np.full((len(rows), WIDTH), np.nan, np.float32)
    made[:, [0, 2, 3]] = rows
    return HistoryLine(key, labels, np.arange(len(rows), dtype=np.int64) * 60, made)


EUROS = Prices("EUR", {"A100": 2.0})


def report(prices: Prices = EUROS) -> CostReport:
    return cost_report(
        usage_sums(
            [
                line("gpu/G1", [(3600, 0.6, 0.75)], model="A100", cards="1"),
                line("gpu/G2", [(3600, 0.0, 0.0)], model="T4", cards="1"),
                line("pod/team/a/c/G1", [(3600, 0.5, 0.5)], owner="team", queue="night", user="ana"),
                line("pod/team/b/c/G1", [(3600, 0.1, 0.25)], owner="team"),
            ]
        ),
        prices,
    )


def test_allocated_used_and_idle_cost_follow_from_share_use_and_price() -> None:
    (team,) = report().by_owner()
    assert team.allocated == pytest.approx(1.5)
    assert team.used == pytest.approx(1.2)
    assert team.idle == pytest.approx(0.3)
    assert report().unallocated.allocated == pytest.approx(0.5)


def test_a_model_without_a_price_costs_unknown_and_is_listed() -> None:
    found = report()
    assert found.unknown_models == ("T4",)
    assert found.total.unpriced_hours == pytest.approx(1.0)
    assert report(NO_PRICES).total.allocated is None
    assert report(NO_PRICES).total.allocated_hours == pytest.approx(2.0)


def test_use_beyond_the_share_costs_nothing() -> None:
    found = cost_report(
        usage_sums(
            [
                line("gpu/G1", [(3600, 0.9, 0.2)], model="A100", cards="1"),
                line("pod/team/a/c/G1", [(3600, 0.9, 0.2)], owner="team"),
            ]
        ),
        Prices("EUR", {"A100": 2.0}),
    )
    assert found.holders[0].used_hours == pytest.approx(0.2)
    assert found.holders[0].idle == pytest.approx(0.0)


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.lists(st.tuples(st.integers(1, 250), st.floats(0, 1)), max_size=4)),
        min_size=1,
        max_size=20,
    )
)
def test_holders_and_the_unallocated_rest_are_the_cost_of_the_gpus(
    gpus: list[tuple[int, list[tuple[int, float]]]],
) -> None:
    lines: list[HistoryLine] = []
    for number, (minutes, shares) in enumerate(gpus):
        seconds = 60.0 * minutes
        lines.append(line(f"gpu/G{number}", [(seconds, 0.5, 0.5)], model="A100", cards="1"))
        for at, (milli, use) in enumerate(shares):
            row = (seconds, use * milli / 1000, milli / 1000)
            lines.append(line(f"pod/n{at}/p{at}/c/G{number}", [row], owner=f"n{at}"))
    found = cost_report(usage_sums(lines), Prices("EUR", {"A100": 3.0}))
    parts = [*found.by_owner(), found.unallocated]
    assert sum(part.allocated or 0.0 for part in parts) == pytest.approx(found.total.allocated, rel=1e-5)
    assert sum(part.allocated_hours for part in parts) == pytest.approx(found.total.allocated_hours, rel=1e-5)
    for part in parts:
        assert part.used_hours + part.idle_hours == pytest.approx(part.allocated_hours)
        assert part.idle_hours >= -1e-6
    formula = found.idle_cost()
    assert formula is not None
    assert formula.cost == pytest.approx(found.total.idle, rel=1e-5, abs=1e-6)


def test_each_queue_and_user_pays_for_its_pods_and_the_rest_is_of_no_queue() -> None:
    queues = {each.name: each.allocated for each in report().by_queue()}
    assert queues == {"night": pytest.approx(1.0), "": pytest.approx(0.5)}
    users = {each.name: each.allocated for each in report().by_user()}
    assert users == {"ana": pytest.approx(1.0), "namespace:team": pytest.approx(0.5)}


def test_the_formula_of_idle_gpus_has_the_priced_gpus_and_any_hours() -> None:
    formula = report().idle_cost(730.0)
    assert formula is not None
    assert (formula.gpus, formula.price, formula.hours) == (pytest.approx(1.0), pytest.approx(2.0), 730.0)
    assert formula.use == pytest.approx(0.6)
    assert formula.cost == pytest.approx(0.4 * 1 * 2.0 * 730)
    assert report(NO_PRICES).idle_cost() is None


def test_months_add_up_to_the_whole_time_also_in_the_middle_of_a_line() -> None:
    december = 1_796_083_200
    rows = np.full((4, WIDTH), np.nan, np.float32)
    rows[:, [0, 2, 3]] = (3600, 0.5, 0.5)
    times = december + 3600 * np.arange(-1, 3, dtype=np.int64)
    one = HistoryLine("gpu/G1", {"model": "A100", "cards": "1"}, times, rows)
    months = cost_by_month(sums_by_month([one]), EUROS)
    assert [(each.name, each.allocated_hours) for each in months] == [("2026-12", 3.0), ("2026-11", 1.0)]
    whole = cost_report(usage_sums([one]), EUROS).total
    assert sum(each.allocated or 0.0 for each in months) == pytest.approx(whole.allocated)


def test_prices_are_found_with_and_without_the_brand() -> None:
    prices = read_prices('currency = "EUR"\n[gpu]\n"NVIDIA A10" = 1\n"T4" = 0.5\n', "prices.toml")
    assert prices.of("NVIDIA A10") == 1.0
    assert prices.of("Tesla T4") == 0.5
    assert prices.of("H100") is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('[gpu]\n"A10" = 1\n', "currency: required"),
        ('currency = "euro"\n[gpu]\n"A10" = 1\n', "currency: invalid value 'euro'"),
        ('currency = "EUR"\n', "[gpu]: required"),
        ('currency = "EUR"\n[gpu]\n"A10" = -1\n', "prices.toml:3: A10: invalid value -1"),
        ('currency = "EUR"\n[gpu]\n"A10" = "2"\n', "prices.toml:3: A10: invalid value '2'"),
        ('currency = "EUR"\n[gpu]\n"A10" = 1\n"NVIDIA A10" = 2\n', "prices.toml:4: NVIDIA A10"),
        ('currency = "EUR"\n[gpu]\n"A10" = 1\n"A10" = 2\n', "line 4"),
        ('currency = "EUR"\ncolour = 1\n[gpu]\n"A10" = 1\n', "colour: invalid value 1"),
        ("currency = ", "prices.toml: invalid value"),
        ('currency = "EUR"\n[gpu]\n"A10" = nan\n', "A10: invalid value nan"),
    ],
)
def test_a_prices_file_that_is_wrong_is_refused_with_field_and_line(text: str, part: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read_prices(text, "prices.toml")
    assert part in refused.value.message
