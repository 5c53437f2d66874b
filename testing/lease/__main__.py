"""Run all cases under our policy and under those of other projects, and print a table."""

import argparse
from functools import partial

from testing.lease.cases import CASES, LATENCY_ALONE, LATENCY_SHARED, Case, Outcome, PolicyMaker, run
from testing.lease.clients import Requests
from testing.lease.clock import MS
from testing.lease.collectives import times_ideal
from testing.lease.lease import Lease
from testing.lease.peers import BLOCKS, Free, Gemini, Hami

POLICIES: dict[str, PolicyMaker] = {
    "ours": lambda clock, _gpu, tenants: Lease(clock, tenants),
    "Gemini": lambda clock, _gpu, tenants: Gemini(clock, tenants),
    "HAMi": Hami,
    "none": lambda _clock, _gpu, _tenants: Free(),
}
"""Policies by name: each decides which process may launch when."""
ALL = (*CASES, LATENCY_ALONE, LATENCY_SHARED)
COLLECTIVES = {f"collectives-{gpus}": gpus for gpus in (2, 4, 8)}
"""Tenants with collectives across so many GPUs."""


def measure(case: Case, policy: PolicyMaker, seconds: int) -> str:
    """Return the error in percentage points and the idle time in percent."""
    result = run(case, policy, seconds=seconds)
    return f"{result.error:.2f} / {max(result.idle, 0):.2f}"


def latency(case: Case, policy: PolicyMaker, seconds: int) -> str:
    """Return the 99th percentile in milliseconds, and the training's part of the remaining time."""
    result = run(case, policy, seconds=seconds)
    rest = f", {100 * result.shares[1] / (100 - result.shares[0]):.0f} %" if len(result.shares) > 1 else ""
    return f"{p99(result) / MS:.2f} ms{rest}"


def p99(result: Outcome) -> int:
    """The 99th percentile of the requests' latencies, in nanoseconds."""
    process = result.tenants[0].processes[0]
    assert isinstance(process, Requests)
    latencies = sorted(process.latencies)
    return latencies[len(latencies) * 99 // 100]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testing.lease", description=__doc__)
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument(
        "--seconds", type=int, default=22, help="Virtual seconds per case; the first 2 are not measured."
    )
    names = [*(case.name for case in ALL), *COLLECTIVES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument(
        "--blocks", type=int, default=BLOCKS, help="Blocks of each kernel; HAMi's policy charges by this number."
    )
    options = parser.parse_args()
    policies = {**POLICIES, "HAMi": partial(Hami, blocks=options.blocks)}
    chosen = [case for case in ALL if case.name in options.cases]
    if chosen:
        compare(chosen, {name: policies[name] for name in options.policies}, options.seconds)
    if spans := {name: gpus for name, gpus in COLLECTIVES.items() if name in options.cases}:
        compare_collectives(spans, options.seconds)


def compare(cases: list[Case], policies: dict[str, PolicyMaker], seconds: int) -> None:
    print("| case |", " | ".join(policies), "|")
    print("|---|" + "---|" * len(policies))
    for case in cases:
        column = measure if case in CASES else latency
        print(f"| {case.name} |", end="", flush=True)
        for policy in policies.values():
            print(f" {column(case, policy, seconds)} |", end="", flush=True)
        print()


def compare_collectives(cases: dict[str, int], seconds: int) -> None:
    """How many times as long a step takes as on GPUs that are divided without loss."""
    print("| case | tenants | ours | independent leases |")
    print("|---|---|---|---|")
    for name, gpus in cases.items():
        for tenants in (2, 3):
            ours, apart = (times_ideal(tenants, gpus, policy, seconds) for policy in ("ours", "apart"))
            print(f"| {name} | {tenants} | {ours:.2f} | {apart:.1f} |", flush=True)


if __name__ == "__main__":
    main()
