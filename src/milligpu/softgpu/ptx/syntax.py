"""The parts of a PTX module."""

from dataclasses import dataclass, field

from milligpu.softgpu.ptx.types import Type


@dataclass(frozen=True, slots=True)
class Name:
    """A register, a variable, a label or a special register."""

    text: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant. `form` is "int", "f32" or "f64"; floats keep their bits."""

    value: int
    form: str = "int"


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p1` or `-%r1`."""

    sign: str
    name: Name


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`."""

    base: "Name | Literal"
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Sum:
    """`symbol+4` outside brackets."""

    base: Name
    offset: int


@dataclass(frozen=True, slots=True)
class Vector:
    """`{%r1, %r2}`."""

    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`%p1|%p2`: two destinations."""

    first: Name
    second: Name


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`: the arguments or results of a call."""

    items: tuple[Name, ...]


Operand = Name | Literal | Negated | Address | Sum | Vector | Pair | Group


@dataclass(frozen=True, slots=True)
class Guard:
    """`@%p` or `@!%p`."""

    register: str
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction with its dotted modifiers and its line."""

    line: int
    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Guard | None = None

    def __str__(self) -> str:
        return ".".join((self.opcode, *self.modifiers))

    def has(self, modifier: str) -> bool:
        return modifier in self.modifiers


@dataclass(frozen=True, slots=True)
class Label:
    """A branch target."""

    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Registers:
    """`.reg .b32 %r<5>`, expanded to the names that it declares."""

    line: int
    type: Type
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Targets:
    """The labels that an indexed branch chooses from."""

    line: int
    name: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """`{`: names declared from here on are valid until the matching `Close`."""


@dataclass(frozen=True, slots=True)
class Close:
    """`}`."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable or parameter in one of the state spaces."""

    line: int
    space: str
    type: Type
    name: str
    size: int
    """In bytes; 0 is an extern array, whose size the launch gives."""
    align: int
    values: tuple["Literal | Name", ...] = ()


Statement = Instruction | Label | Registers | Targets | Open | Close | Variable


@dataclass(slots=True)
class Function:
    """An entry (kernel) or a device function."""

    line: int
    name: str
    entry: bool
    results: tuple[Variable, ...]
    parameters: tuple[Variable, ...]
    body: list[Statement] | None
    """None for a declaration."""
    max_threads: int = 0
    weak: bool = False
    """Another definition may take its place."""


@dataclass(slots=True)
class Module:
    """A whole PTX text."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
