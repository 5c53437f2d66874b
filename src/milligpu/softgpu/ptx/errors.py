"""Errors in a module; the message names the line, as the driver's JIT log does."""

from milligpu.model.errors import MilligpuError


class BadPtx(MilligpuError):
    """The text is not PTX, or uses something that this compiler does not support."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


class UnsupportedVersion(BadPtx):
    """PTX of a version that is newer than this compiler."""


class UnsupportedPtx(BadPtx):
    """Valid PTX for which this compiler has no translation; names the instruction."""


class BadImage(MilligpuError):
    """A corrupt fat binary."""


class NoPtx(MilligpuError):
    """A fat binary without PTX for this GPU; its machine code cannot run here."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"fat binary: no PTX for compute capability {limit // 10}.{limit % 10} or less")
