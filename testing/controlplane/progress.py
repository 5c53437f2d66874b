"""What a long simulation has done so far, in a file, so that it can be stopped and continued."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from testing.controlplane.invariants import Failure


@dataclass(slots=True)
class Progress:
    """The first runs of a seed, and those of them that broke an invariant."""

    seed: int
    runs: int = 0
    steps: int = 0
    seconds: float = 0.0
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """The invariant that broke, by the name of the run."""

    @classmethod
    def load(cls, path: Path, seed: int) -> "Progress":
        """Read the file, or begin; a file of another seed is an error."""
        if not path.exists():
            return cls(seed)
        found = msgspec.json.decode(path.read_bytes(), type=cls)
        if found.seed != seed:
            raise SystemExit(f"{path} is of seed {found.seed}, not {seed}")
        return found

    def add(self, name: str, steps: int, failure: Failure | None) -> None:
        self.runs += 1
        self.steps += steps
        if failure is not None:
            self.failed[name] = failure.invariant

    def save(self, path: Path) -> None:
        """Replace the file, so that it is whole at any moment."""
        draft = path.with_name(f"{path.name}.new")
        draft.write_bytes(msgspec.json.encode(self))
        draft.replace(path)

    def describe(self) -> str:
        result = "all invariants held"
        if self.failed:
            result = "broken: " + ", ".join(f"{name} ({what})" for name, what in self.failed.items())
        return f"{self.steps} steps in {self.runs} runs and {self.seconds:.0f} s, {result}"
