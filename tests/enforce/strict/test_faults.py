"""Whatever programs do with streams, contexts and captures, the limits library keeps the driver's rules."""

import pytest

from tests.enforce.strict.conftest import StrictMachines

BUSY = 30_000


@pytest.mark.parametrize(
    ("what", "answer"),
    [
        ("destroyed stream", "cuLaunchKernel: the stream was destroyed"),
        ("reset context", "cuLaunchKernel: the stream was destroyed"),
        ("unloaded library", "cuLaunchKernel: the function was destroyed"),
        (
            "freed memory of the host",
            "cuMemcpyHtoDAsync_v2: memory of the host that was not allocated, or was freed",
        ),
        ("query in a capture", "cuEventQuery: unsafe while this thread captures"),
        ("no context", "cuStreamCreate: no current context"),
        ("after fork", "cuStreamCreate: the process is a child of fork"),
    ],
)
def test_the_strict_driver_ends_a_program_at_a_forbidden_call(
    machine: StrictMachines, what: str, answer: str
) -> None:
    """Otherwise the other tests here could not fail."""
    process = machine().start(None, "forbidden", what)
    assert f"strict driver: {answer}" in process.communicate(timeout=60)[1]


def test_more_kinds_of_kernels_than_a_batch_holds_are_launched_while_all_batches_are_in_use(
    machine: StrictMachines,
) -> None:
    here = machine()
    assert here.run(here.tenant(), "kinds") == "done\n"


@pytest.mark.parametrize("others", [False, True], ids=["alone", "next to another tenant"])
@pytest.mark.parametrize(("program", "arguments"), [("streams", (600,)), ("contexts", ())])
def test_a_destroyed_stream_or_context_is_not_used_again(
    machine: StrictMachines, program: str, arguments: tuple[int, ...], *, others: bool
) -> None:
    here = machine()
    mine, other = here.tenant("mine"), here.tenant("other")
    if others:
        here.start(other, "busy", BUSY)
    assert here.run(mine, program, *arguments) == "done\n"


@pytest.mark.parametrize("others", [False, True], ids=["alone", "next to another tenant"])
@pytest.mark.parametrize("mode", ["global", "thread-local", "relaxed"])
def test_a_capture_is_not_disturbed(machine: StrictMachines, mode: str, *, others: bool) -> None:
    here = machine()
    mine, other = here.tenant("mine"), here.tenant("other")
    if others:
        here.start(other, "busy", BUSY)
    assert here.run(mine, "captures", ["global", "thread-local", "relaxed"].index(mode)) == "done\n"


def test_work_in_the_legacy_stream_does_not_order_streams_that_are_independent(machine: StrictMachines) -> None:
    here = machine()
    # An event in the legacy stream behind the long kernel would make the third kernel wait in every round.
    assert int(here.run(here.tenant(), "legacy")) > 0


def test_a_kernel_without_end_does_not_slow_down_a_tenant_that_is_alone(machine: StrictMachines) -> None:
    here = machine()
    taken = float(here.run(here.tenant(), "persistent"))
    # One launch per second would take 200 s.
    assert taken < 60


@pytest.mark.parametrize("others", [False, True], ids=["alone", "next to another tenant"])
def test_without_events_the_library_goes_by_its_estimates(machine: StrictMachines, *, others: bool) -> None:
    here = machine()
    mine, other = here.tenant("mine"), here.tenant("other")
    if others:
        here.start(other, "busy", BUSY, STRICT_NO_EVENTS="1")
    assert here.run(mine, "streams", 200, STRICT_NO_EVENTS="1") == "done\n"
