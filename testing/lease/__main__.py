"""Run all cases under our policy and under the rules of others, and print a table."""

import argparse
from functools import partial

from bench.lease.cases import CASES, LATENCY_ALONE, LATENCY_BESIDE, Case, Outcome, PolicyMaker, run
from bench.lease.clients import Requests
from bench.lease.clock import MS
from bench.lease.lease import Lease
from bench.lease.peers import BLOCKS, Free, Gemini, Hami

RULES: dict[str, PolicyMaker] = {
    "ours": lambda clock, _gpu, tenants: Lease(clock, tenants),
    "Gemini": lambda clock, _gpu, tenants: Gemini(clock, tenants),
    "HAMi": Hami,
    "none": lambda _clock, _gpu, _tenants: Free(),
}
"""By name: who may launch when."""
ALL = (*CASES, LATENCY_ALONE, LATENCY_BESIDE)


def measure(case: Case, rule: PolicyMaker, seconds: int) -> str:
    """Error in points and idle time in percent."""
    result = run(case, rule, seconds=seconds)
    return f"{result.error:.2f} / {max(result.idle, 0):.2f}"


def latency(case: Case, rule: PolicyMaker, seconds: int) -> str:
    """The 99th percentile in milliseconds, and what the training got of the rest."""
    result = run(case, rule, seconds=seconds)
    rest = f", {100 * result.shares[1] / (100 - result.shares[0]):.0f} %" if len(result.shares) > 1 else ""
    return f"{p99(result) / MS:.2f} ms{rest}"


def p99(result: Outcome) -> int:
    """Of the requests' latencies, in nanoseconds."""
    process = result.tenants[0].processes[0]
    assert isinstance(process, Requests)
    latencies = sorted(process.latencies)
    return latencies[len(latencies) * 99 // 100]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.lease", description=__doc__)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument(
        "--seconds", type=int, default=22, help="virtual time of each case; the first 2 do not count"
    )
    parser.add_argument("--cases", nargs="+", choices=[case.name for case in ALL], metavar="NAME")
    parser.add_argument(
        "--blocks", type=int, default=BLOCKS, help="of each kernel, which is what HAMi's rule charges"
    )
    options = parser.parse_args()
    rules = {**RULES, "HAMi": partial(Hami, blocks=options.blocks)}
    print("| case |", " | ".join(options.rules), "|")
    print("|---|" + "---|" * len(options.rules))
    for case in ALL:
        if options.cases and case.name not in options.cases:
            continue
        column = measure if case in CASES else latency
        print(f"| {case.name} |", end="", flush=True)
        for rule in options.rules:
            print(f" {column(case, rules[rule], options.seconds)} |", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
