"""An arbiter in a process of its own, for the tenants in these directories; runs until its input ends."""

import sys
from pathlib import Path

from milligpu.tenancy.arbiter import Arbiter


def main() -> None:
    arbiter = Arbiter()
    for folder in sys.argv[1:]:
        arbiter.add(Path(folder))
    print("ready", flush=True)
    sys.stdin.read()
    arbiter.close()


if __name__ == "__main__":
    main()
