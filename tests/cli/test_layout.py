"""`milligpu layout`, in a process against an API server of the test's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milligpu.cli.main import run
from milligpu.model import names
from milligpu.model.gpu import Gpu
from milligpu.model.units import Mib
from milligpu.wire.inventory import encode_inventory
from tests.cli.api_server import ApiServer, serve

Capture = pytest.CaptureFixture[str]
CAMPUS = f"{names.CALENDARS_PATH}/campus"
WINDOW = {"days": ["Mon-Sun"], "from": "07:00", "to": "20:00", "layout": "day"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[ApiServer, list[str]]]:
    past = {"from": "night", "to": "day", "phase": "Done", "why": "calendar"}
    past |= {"startedAt": "2026-11-18T07:00:00Z", "endedAt": "2026-11-18T07:00:01.500Z"}
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "InForce",
        "message": "layout day",
        "observedGeneration": 2,
    }
    upcoming = [{"at": "2026-11-18T20:00:00Z", "local": "Wed 2026-11-18 20:00 UTC", "to": "night"}]
    campus = {
        "metadata": {"name": "campus", "generation": 1},
        "spec": {"default": "night", "windows": [WINDOW]},
        "status": {"layout": "day", "next": upcoming, "conditions": [ready], "history": [past]},
    }
    layouts: list[dict[str, Any]] = [
        {"metadata": {"name": "day"}, "spec": {"cards": [{"policy": "equal", "limit": 500}]}},
        {"metadata": {"name": "night"}, "spec": {}},
        {"metadata": {"name": "vms"}, "spec": {"machines": [{"name": "w1", "node": "n1", "state": "suspended"}]}},
    ]
    with serve(tmp_path) as (api, kubeconfig):
        notes = {names.INVENTORY: encode_inventory([Gpu(f"GPU-{n}", "A100", Mib(40960)) for n in range(2)])}
        status = {"conditions": [{"type": "Ready", "status": "True"}]}
        api.put_list("/api/v1/nodes", {"metadata": {"name": "n1", "annotations": notes}, "status": status})
        api.put_list("/api/v1/pods")
        api.put_list("/apis/policy/v1/poddisruptionbudgets")
        api.put_list(names.CLASSES_PATH)
        api.put_list(names.LAYOUTS_PATH, *layouts)
        api.put_list(names.CALENDARS_PATH, campus)
        api.objects[CAMPUS] = campus
        yield api, ["--kubeconfig", str(kubeconfig)]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["list"], "campus    day     night  Wed 2026-11-18 20:00 UTC  InForce"),
        (["show", "campus"], "layout day; InForce: layout day"),
        (["preview", "campus", "day"], "n1       2     0  policy best-effort -> equal; limit 1000 -> 500"),
        (
            ["preview", "campus", "vms"],
            "w1  n1    becomes suspended (unknown now)  -               -",
        ),
        (["history", "campus"], "2026-11-18 07:00:00  night  day  Done  1.5 s  calendar"),
    ],
)
def test_what_holds_and_what_comes_is_shown_in_80_columns(
    *, cluster: tuple[ApiServer, list[str]], words: list[str], shown: str, capsys: Capture
) -> None:
    assert run(["layout", *words, *cluster[1]]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown in lines
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "spec"),
    [
        (["switch", "campus", "night", "--until", "2026-12-24T18:00:00Z", "--watch"],
         {"override": {"layout": "night", "until": "2026-12-24T18:00:00Z"}}),
        (["pause", "campus"], {"paused": True}),
        (["pause", "campus", "--off"], {"paused": False}),
    ],
)  # fmt: skip
def test_a_persons_change_is_written_into_the_calendar(
    *, cluster: tuple[ApiServer, list[str]], words: list[str], spec: dict[str, Any], capsys: Capture
) -> None:
    assert run(["layout", *words, *cluster[1]]) == 0
    assert cluster[0].patches[CAMPUS] == {"spec": spec}
    said = capsys.readouterr()
    assert ("InForce: layout day" in said.err) == ("--watch" in words)


def test_postponing_keeps_the_present_layout_past_the_next_switch(cluster: tuple[ApiServer, list[str]]) -> None:
    assert run(["layout", "postpone", "campus", "30", *cluster[1]]) == 0
    override = cluster[0].patches[CAMPUS]["spec"]["override"]
    assert override["layout"] == "day"
    assert override["until"][11:] in {"07:30:00Z", "20:30:00Z"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "x"], "calendar: invalid value 'x': must be the name of a GpuCalendar"),
        (["switch", "campus", "x"], "layout: invalid value 'x': must be the name of a GpuLayout: day, night, vms"),
        (["switch", "campus", "day", "--until", "8"], "--until: invalid value '8': must be a time with its offset"),
    ],
)
def test_bad_names_and_times_are_refused(
    *, cluster: tuple[ApiServer, list[str]], words: list[str], message: str, capsys: Capture
) -> None:
    assert run(["layout", *words, *cluster[1]]) == 2
    assert message in capsys.readouterr().err
