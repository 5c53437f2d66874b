"""One function while it becomes LLVM IR: names, scopes, blocks, and typed access to operands."""

from dataclasses import dataclass, field

from milligpu.softgpu.ptx.errors import BadPtx, UnsupportedPtx
from milligpu.softgpu.ptx.syntax import (
    Address,
    Function,
    Instruction,
    Literal,
    Module,
    Name,
    Negated,
    Operand,
    Sum,
    Variable,
)
from milligpu.softgpu.ptx.types import B32, ScalarKind, Type

# The parameters of every function: see `native/softgpu/abi.h`.
_ENVIRONMENT = ("ptr %block", "ptr %mem", "i32 %tidx", "i32 %tidy", "i32 %tidz", "i32 %linear", "ptr %fiber")
# Marks where an instruction begins, in code that counts; each basic block's marks become one addition.
TICK = "  ;tick"

# Placeholder for the size of all static shared variables, known at the end; extern ones begin after them.
STATIC_SHARED = "$STATIC_SHARED$"


def base_type(kind: Type) -> str:
    """The LLVM type for arithmetic on one lane of this type; bf16 is computed as f32."""
    if kind.kind is ScalarKind.BFLOAT:
        return "float"
    if kind.kind is ScalarKind.FLOAT:
        return {16: "half", 32: "float", 64: "double"}[kind.bits // kind.lanes]
    return f"i{kind.bits // kind.lanes}"


def shaped(like: Type | int, base: str) -> str:
    """An LLVM type with as many lanes as another type has."""
    lanes = like if isinstance(like, int) else like.lanes
    return base if lanes == 1 else f"<{lanes} x {base}>"


def constant(llvm: str, value: str) -> str:
    """A constant of this LLVM type, the same in all lanes."""
    return f"splat ({llvm.split(' x ')[1][:-1]} {value})" if llvm[0] == "<" else value


def llvm_type(kind: Type) -> str:
    """The LLVM type for arithmetic on this type."""
    return shaped(kind, base_type(kind))


def suffix(kind: Type) -> str:
    """The name of this type in an overloaded intrinsic."""
    base = base_type(kind)
    name = {"half": "f16", "float": "f32", "double": "f64"}.get(base, base)
    return name if kind.lanes == 1 else f"v{kind.lanes}{name}"


@dataclass(slots=True)
class Shared:
    """State that all functions of a module share while they are translated."""

    module: Module
    timed: bool = False
    """Whether the code counts its work, for GPUs in modeled time."""
    plain: bool = False
    """Whether the code is compiled without optimization: functions stay apart, and basic blocks short."""
    shared_offsets: dict[str, int] = field(default_factory=dict[str, int])
    shared_sizes: dict[str, int] = field(default_factory=dict[str, int])
    shared_size: int = 0
    intrinsics: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> tuple[str, ...]:
        """The parameters of every function: block, memory, thread indices and counters."""
        return (*_ENVIRONMENT, "ptr %work") if self.timed else _ENVIRONMENT

    def place_shared(self, variable: Variable) -> None:
        """Give a shared variable its offset in the block's window; extern arrays come after all others."""
        self.shared_sizes[variable.name] = variable.size
        if variable.size:
            offset = -(-self.shared_size // variable.align) * variable.align
            self.shared_offsets[variable.name] = offset
            self.shared_size = offset + variable.size
        else:
            self.shared_offsets[variable.name] = -1


@dataclass(slots=True)
class Scope:
    """The names declared between two braces."""

    registers: dict[str, Type] = field(default_factory=dict[str, Type])
    slots: dict[str, str] = field(default_factory=dict[str, str])
    variables: dict[str, str] = field(default_factory=dict[str, str])
    """Local and parameter variables: name to LLVM pointer."""


class Writer:
    """Collects the lines of one function."""

    def __init__(self, shared: Shared, function: Function) -> None:
        self.shared = shared
        self.function = function
        self.lines: list[str] = []
        self.slots: list[str] = []
        self.scopes = [Scope()]
        self.needs_fibers = False
        self.calls: set[str] = set()
        self.shared_used: set[str] = set()
        self.indirect_calls = False
        self.local_bytes = 0
        self.line = function.line
        self._names = 0

    # Lines and names.

    def fresh(self, stem: str = "v") -> str:
        """Return a new SSA name."""
        self._names += 1
        return f"%{stem}{self._names}"

    def emit(self, text: str) -> str:
        """Append `%new = text`."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def begin(self, label: str) -> None:
        """Start a basic block; the code before it falls through."""
        self.lines.append(f"  br label %{label}")
        self.lines.append(f"{label}:")

    def block_name(self, stem: str) -> str:
        """Return a new label."""
        return self.fresh(stem)[1:]

    def intrinsic(self, name: str, result: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic or runtime function, and declare it."""
        types = ", ".join(kind for kind, _ in arguments)
        self.shared.intrinsics[name] = f"declare {result} @{name}({types})"
        call = f"call {result} @{name}({', '.join(f'{kind} {value}' for kind, value in arguments)})"
        if result == "void":
            self.do(call)
            return ""
        return self.emit(call)

    def math(self, name: str, kind: Type, *values: str) -> str:
        """Call `llvm.NAME` on values of one type."""
        llvm = llvm_type(kind)
        return self.intrinsic(f"llvm.{name}.{suffix(kind)}", llvm, *((llvm, value) for value in values))

    def refuse(self, problem: str) -> UnsupportedPtx:
        """Return the error for valid PTX that has no translation here."""
        return UnsupportedPtx(self.line, problem)

    def wrong(self, problem: str) -> BadPtx:
        """Return the error for invalid PTX."""
        return BadPtx(self.line, problem)

    # Names and where they live.

    def register(self, name: str) -> Type | None:
        """Return the declared type of a register; None if the name is no register."""
        for scope in reversed(self.scopes):
            if name in scope.registers:
                return scope.registers[name]
        return None

    def slot(self, name: str) -> tuple[str, Type]:
        """Return the stack slot of a register."""
        for scope in reversed(self.scopes):
            kind = scope.registers.get(name)
            if kind is None:
                continue
            if name not in scope.slots:
                scope.slots[name] = self.fresh("r")
                self.slots.append(f"  {scope.slots[name]} = alloca i{kind.bits}")
                self.slots.append(f"  store i{kind.bits} 0, ptr {scope.slots[name]}")
            return scope.slots[name], kind
        raise self.wrong(f"unknown register {name}")

    def pointer_to(self, name: str) -> str | None:
        """Return the LLVM pointer of a parameter, local or module variable; shared ones have only an offset."""
        for scope in reversed(self.scopes):
            if name in scope.variables:
                return scope.variables[name]
        variable = self.shared.module.variables.get(name)
        if variable is not None and variable.space != "shared":
            return f'@"{name}"'
        if name in self.shared.module.functions:
            return f'@"f.{name}"'
        return None

    def address_of(self, name: str) -> str:
        """Return the address of a symbol as an i64: a window offset for shared variables."""
        if name in self.shared.shared_offsets:
            offset = self.shared.shared_offsets[name]
            self.shared_used.add(name)
            return str(offset) if offset >= 0 else STATIC_SHARED
        pointer = self.pointer_to(name)
        if pointer is None:
            raise self.wrong(f"unknown symbol {name}")
        if pointer.startswith('@"f.') and name in self.shared.module.functions:
            self.calls.add(name)
        return self.emit(f"ptrtoint ptr {pointer} to i64")

    # Reading.

    def bits(self, operand: Operand, width: int) -> str:
        """Read an operand as an integer of this width."""
        match operand:
            case Literal():
                return self._literal(operand, width)
            case Negated("!", name):
                value = self.bits(name, width)
                return self.emit(f"icmp eq i1 {value}, 0") if width == 1 else self.emit(f"xor i{width} {value}, -1")
            case Negated(_, name):
                return self.emit(f"sub i{width} 0, {self.bits(name, width)}")
            case Sum(name, offset):
                return self.resize(self.emit(f"add i64 {self.address_of(name.text)}, {offset}"), 64, width)
            case Name(text):
                return self._named(text, width)
            case _:
                raise self.wrong(f"operand of the wrong form in {operand}")

    def _named(self, text: str, width: int) -> str:
        kind = self.register(text)
        if kind is not None:
            slot, kind = self.slot(text)
            return self.resize(self.emit(f"load i{kind.bits}, ptr {slot}"), kind.bits, width)
        if text[0] == "%" or text == "WARP_SZ":
            from milligpu.softgpu.llvm.special import special  # noqa: PLC0415 - the two know each other

            value, bits = special(self, text)
            return self.resize(value, bits, width)
        return self.resize(self.address_of(text), 64, width)

    def _literal(self, literal: Literal, width: int) -> str:
        if literal.form == "int":
            value = literal.value & ((1 << width) - 1)
            return str(value)
        bits = 32 if literal.form == "f32" else 64
        sign = literal.value < 0
        value = abs(literal.value) | (1 << (bits - 1) if sign else 0)
        if bits == width:
            return str(value)
        if width not in (16, 32, 64):
            raise self.wrong("a float constant where an integer is expected")
        names = {16: "half", 32: "float", 64: "double"}
        wide = self.emit(f"bitcast i{bits} {value} to {names[bits]}")
        cast = self.emit(f"{'fpext' if width > bits else 'fptrunc'} {names[bits]} {wide} to {names[width]}")
        return self.emit(f"bitcast {names[width]} {cast} to i{width}")

    def resize(self, value: str, have: int, want: int, *, signed: bool = False) -> str:
        """Convert an integer to another width."""
        if have == want:
            return value
        if want == 1:
            return self.emit(f"icmp ne i{have} {value}, 0")
        word = "trunc" if have > want else "sext" if signed else "zext"
        return self.emit(f"{word} i{have} {value} to i{want}")

    def read(self, operand: Operand, kind: Type) -> str:
        """Read an operand as a value of this type."""
        value = self.bits(operand, kind.bits)
        return self.from_bits(value, kind)

    def from_bits(self, value: str, kind: Type) -> str:
        """Convert bits to a value of the type that arithmetic uses."""
        if not kind.is_float and kind.lanes == 1:
            return value
        if kind.kind is not ScalarKind.BFLOAT:
            return self.emit(f"bitcast i{kind.bits} {value} to {llvm_type(kind)}")
        if kind.lanes == 1:
            high = self.emit(f"shl i32 {self.resize(value, 16, 32)}, 16")
            return self.emit(f"bitcast i32 {high} to float")
        low = self.emit(f"bitcast i32 {self.emit(f'shl i32 {value}, 16')} to float")
        high = self.emit(f"bitcast i32 {self.emit(f'and i32 {value}, -65536')} to float")
        first = self.emit(f"insertelement <2 x float> undef, float {low}, i32 0")
        return self.emit(f"insertelement <2 x float> {first}, float {high}, i32 1")

    def to_bits(self, value: str, kind: Type) -> str:
        """The reverse of `from_bits`; a bf16 is rounded to nearest, ties to even."""
        if not kind.is_float and kind.lanes == 1:
            return value
        if kind.kind is not ScalarKind.BFLOAT:
            return self.emit(f"bitcast {llvm_type(kind)} {value} to i{kind.bits}")
        if kind.lanes == 1:
            return self._round_bfloat(value)
        halves = [
            self._round_bfloat(self.emit(f"extractelement <2 x float> {value}, i32 {lane}")) for lane in (0, 1)
        ]
        low, high = (self.emit(f"zext i16 {half} to i32") for half in halves)
        return self.emit(f"or i32 {low}, {self.emit(f'shl i32 {high}, 16')}")

    def _round_bfloat(self, value: str) -> str:
        bits = self.emit(f"bitcast float {value} to i32")
        odd = self.emit(f"and i32 {self.emit(f'lshr i32 {bits}, 16')}, 1")
        rounded = self.emit(f"add i32 {self.emit(f'add i32 {bits}, 32767')}, {odd}")
        nan = self.emit(f"fcmp uno float {value}, 0.0")
        chosen = self.emit(f"select i1 {nan}, i32 2147418112, i32 {rounded}")
        return self.emit(f"trunc i32 {self.emit(f'lshr i32 {chosen}, 16')} to i16")

    # Writing.

    def write(self, operand: Operand, kind: Type, value: str) -> None:
        """Store a value of this type; a wider register gets it extended, as PTX requires."""
        self.write_bits(operand, kind.bits, self.to_bits(value, kind), signed=kind.is_signed)

    def write_bits(self, operand: Operand, width: int, value: str, *, signed: bool = False) -> None:
        """Store an integer."""
        if not isinstance(operand, Name):
            raise self.wrong("the destination is not a register")
        if operand.text == "_":
            return
        slot, kind = self.slot(operand.text)
        self.do(f"store i{kind.bits} {self.resize(value, width, kind.bits, signed=signed)}, ptr {slot}")

    # Memory.

    def pointer(self, operand: Operand, space: str) -> str:
        """Return the LLVM pointer of `[base+offset]` in a state space."""
        if not isinstance(operand, Address):
            raise self.wrong("expected an address")
        base = operand.base
        if isinstance(base, Name) and self.register(base.text) is None:
            if base.text in self.shared.shared_offsets:
                space = "shared"
            else:
                pointer = self.pointer_to(base.text)
                if pointer is None:
                    raise self.wrong(f"unknown symbol {base.text}")
                return self.emit(f"getelementptr i8, ptr {pointer}, i64 {operand.offset}")
        if space == "shared":
            at = self.address_of(base.text) if isinstance(base, Name) and self.register(base.text) is None else ""
            low = self.resize(at, 64, 32) if at else self.bits(base, 32)
            total = self.emit(f"add i32 {low}, {operand.offset}") if operand.offset else low
            wide = self.emit(f"zext i32 {total} to i64")
            return self.emit(f"getelementptr i8, ptr %shared, i64 {wide}")
        address = self.bits(base, 64)
        pointer = self.emit(f"getelementptr i8, ptr %mem, i64 {address}")
        return self.emit(f"getelementptr i8, ptr {pointer}, i64 {operand.offset}") if operand.offset else pointer

    def operand(self, instruction: Instruction, index: int) -> Operand:
        """Return the operand at this position; an error if it is missing."""
        if index >= len(instruction.operands):
            raise self.wrong(f"{instruction}: too few operands")
        return instruction.operands[index]

    def warp_word(self, operand: Operand) -> str:
        """Read a 32-bit operand of a warp instruction."""
        return self.bits(operand, B32.bits)
