"""Run all cases and print a table."""

from bench.lease.cases import CASES, run
from bench.lease.lease import Lease


def main() -> None:
    """Measure and print."""
    print(f"{'case':38} {'error':>6} {'idle %':>6}  shares")
    for case in CASES:
        result = run(case, lambda clock, _gpu, tenants: Lease(clock, tenants))
        shares = " ".join(f"{share:.1f}" for share in result.shares)
        print(f"{case.name:38} {result.error:6.2f} {result.idle:6.2f}  {shares}", flush=True)


if __name__ == "__main__":
    main()
