"""An arbiter in a process of its own, for the tenants of these folders, until its input ends or it is killed."""

import sys
from pathlib import Path

from milligpu.agent.arbiter import Arbiter


def main() -> None:
    arbiter = Arbiter()
    for folder in sys.argv[1:]:
        arbiter.add(Path(folder))
    print("ready", flush=True)
    sys.stdin.read()
    arbiter.close()


if __name__ == "__main__":
    main()
