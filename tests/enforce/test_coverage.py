"""Every function of the driver API that allocates, launches or copies is wrapped or known to be harmless."""

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from milligpu.native import library

ROOT = Path(__file__).parents[2]
HARMLESS = ROOT / "native/enforce/harmless.toml"


def base(symbol: str) -> str:
    """Return a function's name without version and per-thread suffix."""
    return re.sub(r"(_v\d+)?(_pt[ds][sz])?$", "", symbol)


@cache
def harmless() -> dict[str, Any]:
    return tomllib.loads(HARMLESS.read_text())


def is_known(symbol: str) -> bool:
    """Whether the list says why this function can be passed on safely."""
    name = base(symbol)
    if any(name in group["functions"] for group in harmless()["named"]):
        return True
    if re.search(harmless()["risky"], name):
        return False
    return any(re.search(group["names"], name) for group in harmless()["pattern"])


@cache
def states() -> dict[str, str]:
    return json.loads(library("enforce/coverage.json").read_text())["symbols"]


def test_every_function_is_wrapped_or_known_to_be_harmless() -> None:
    passed = [symbol for symbol, state in states().items() if state == "passed"]
    assert len(passed) > 400
    assert [symbol for symbol in passed if not is_known(symbol)] == []


@pytest.mark.parametrize(
    "symbol",
    [
        "cuMemAllocSomehow",
        "cuMemAlloc_v3",
        "cuLaunchKernelEx_v2",
        "cuMemcpyQuickly_ptsz",
        "cuGraphInstantiate_v9",
        "cuMemGetAndMap",
        "cuNewThing",
        "cuMemPoolImportPointer_v2",
        "cuArrayCreateFast",
    ],
)
def test_an_unreviewed_function_is_not_known_to_be_harmless(symbol: str) -> None:
    assert not is_known(symbol)


def test_no_function_is_both_wrapped_and_listed_as_harmless() -> None:
    wrapped = {base(symbol) for symbol, state in states().items() if state == "wrapped"}
    named = {name for group in harmless()["named"] for name in group["functions"]}
    assert wrapped & named == set()
    assert named <= {base(symbol) for symbol in states()}


def test_all_variants_of_a_wrapped_function_are_wrapped() -> None:
    wrapped = {base(symbol) for symbol, state in states().items() if state == "wrapped"}
    assert [symbol for symbol, state in states().items() if state == "passed" and base(symbol) in wrapped] == []


def test_every_harmless_function_has_a_reason() -> None:
    assert all(len(group["why"]) > 4 for kind in ("named", "pattern") for group in harmless()[kind])
