"""How a module is refused: with the line, as the driver's JIT log shows it."""

from milligpu.model.errors import MilligpuError


class BadPtx(MilligpuError):
    """The text is not PTX, or uses something that this compiler does not know."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line
        self.problem = problem


class UnsupportedVersion(BadPtx):
    """PTX of a version whose meaning this compiler cannot know."""


class UnsupportedPtx(BadPtx):
    """Sound PTX that this compiler has no translation for; names the instruction."""


class BadImage(MilligpuError):
    """A container of programs that is broken."""


class NoPtx(MilligpuError):
    """A container without text for this card; machine code in it is not ours to run."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"fat binary: no PTX for compute capability {limit // 10}.{limit % 10} or less")
