"""Every function of the vendors' headers is generated, written by hand, or refused by name; nobody forgot one."""

import json
import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from remote.ctypes_of import HeaderTypes
from remote.notes import OPERATIONS, planned, read_notes
from remote.plan import CannotTravel, Hints, Travel, plan
from vendorapi.header import Function, read_parameters

from milligpu.native import library

TEXT = """
typedef struct CUstream_st *CUstream; typedef unsigned long long CUdeviceptr;
typedef struct { int a; float b[4]; } FLAT; typedef struct { int a; void *p; } DEEP;
typedef void (*CUhostFn)(void *userData);
"""


@cache
def served() -> dict[str, dict[str, str]]:
    return json.loads(library("remote/functions.json").read_text())


def function(parameters: str, symbol: str = "cuNewThing") -> Function:
    return Function("CUresult", symbol, read_parameters(parameters))


def ways(parameters: str, hints: Hints | None = None) -> list[Travel] | CannotTravel:
    found = plan(function(parameters), HeaderTypes(TEXT, frozenset()), hints or Hints())
    return found if isinstance(found, CannotTravel) else [row.travel for row in found]


@pytest.mark.parametrize("api", ["cuda", "nvml"])
def test_every_function_is_served_or_refused_with_a_reason(api: str) -> None:
    states = served()[api]
    kinds = Counter(state.partition(":")[0] for state in states.values())
    assert set(kinds) <= {"generated", "no reply", "by hand", "refused"}
    assert kinds["generated"] > 100
    refused = [state for state in states.values() if state.startswith("refused")]
    assert all(len(state) > len("refused: ") + 10 for state in refused)
    assert len(states) > 400


def test_a_new_function_of_a_header_fails_the_build_until_somebody_reads_it() -> None:
    notes = replace(read_notes("cuda"), numbers={}, refused={}, by_hand=frozenset(), no_reply=frozenset())
    notes = replace(notes, beside=frozenset(), asked=frozenset())
    with pytest.raises(SystemExit, match="cuNewThing: not looked at"):
        planned([function("int count")], HeaderTypes(TEXT, frozenset()), notes)
    with pytest.raises(SystemExit, match="cuNewThing: data has pointers inside"):
        planned([function("void *data")], HeaderTypes(TEXT, frozenset()), notes)
    known = replace(notes, numbers={"cuNewThing": 9})
    assert list(planned([function("int count")], HeaderTypes(TEXT, frozenset()), known)) == ["cuNewThing"]


def test_no_two_operations_have_one_number() -> None:
    sections = tomllib.loads(OPERATIONS.read_text())
    numbers = [number for section in sections.values() for number in section.values()]
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 1 << 16


def test_a_client_can_change_no_gpu_through_nvml() -> None:
    setters = [
        name for name in served()["nvml"] if "Set" in name and "EventSet" not in name and "Settings" not in name
    ]
    assert len(setters) > 20
    assert {
        name for name in setters if "Get" not in name and not served()["nvml"][name].startswith("refused")
    } == set()


def test_how_a_parameter_travels_follows_from_its_declaration() -> None:
    assert ways("CUstream stream, size_t size, CUdeviceptr at") == [Travel.HANDLE, Travel.VALUE, Travel.VALUE]
    assert ways("const char *name, const FLAT *read, FLAT *written, CUstream *made") == [
        Travel.STRING,
        Travel.INPUT,
        Travel.OUTPUT,
        Travel.HANDLE_OUTPUT,
    ]
    counted = Hints(counts={"streams": "count"})
    assert ways("const CUstream *streams, size_t count", counted) == [Travel.HANDLES, Travel.VALUE]
    versioned = Hints(in_and_out=True)
    assert ways("FLAT *info", versioned) == [Travel.IN_AND_OUT]


def test_an_array_that_is_written_has_room_for_what_another_parameter_counts() -> None:
    arrays = {"cuNewThing.streams": "count", "cuNewThing.texts": "size"}
    found = plan(function("CUstream *streams, size_t *count"), HeaderTypes(TEXT, frozenset()), Hints(arrays=arrays))
    assert not isinstance(found, CannotTravel)
    assert [(row.travel, row.by_pointer) for row in found] == [
        (Travel.HANDLE_ARRAY, True),
        (Travel.IN_AND_OUT, False),  # the caller says the room, and learns how many there are
    ]
    found = plan(function("char *texts, int size"), HeaderTypes(TEXT, frozenset()), Hints(arrays=arrays))
    assert not isinstance(found, CannotTravel)
    assert [(row.travel, row.by_pointer) for row in found] == [(Travel.ARRAY, False), (Travel.VALUE, False)]
    deep = Hints(arrays={"cuNewThing.deep": "size"})
    assert isinstance(plan(function("DEEP *deep, int size"), HeaderTypes(TEXT, frozenset()), deep), CannotTravel)


@pytest.mark.parametrize(
    "parameters", ["void *data", "CUhostFn fn", "DEEP *deep", "DEEP by_value", "void **pointers", "char *text"]
)
def test_what_has_no_known_length_or_points_into_a_process_does_not_travel(parameters: str) -> None:
    assert isinstance(ways(parameters), CannotTravel)
