"""Integer arithmetic. Instructions of the same name on floats are in `floating`."""

from milligpu.softgpu.llvm import floating
from milligpu.softgpu.llvm.table import instruction, last_type
from milligpu.softgpu.llvm.writer import Writer, constant, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import TYPES, Type


@instruction("add", "sub", "mul", "div")
def _binary(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if kind.is_float:
        floating.binary(w, ins, kind)
    elif ins.opcode == "mul":
        _multiply(w, ins, kind)
    elif ins.opcode == "div":
        _divide(w, ins, kind)
    elif ins.has("cc"):
        _carry(w, ins, kind, with_carry=False)
    else:
        a, b = w.read(w.operand(ins, 1), kind), w.read(w.operand(ins, 2), kind)
        if ins.has("sat"):
            value = w.math(f"s{ins.opcode}.sat", kind, a, b)
        else:
            value = w.emit(f"{ins.opcode} {llvm_type(kind)} {a}, {b}")
        w.write(w.operand(ins, 0), kind, value)


@instruction("mad", "mul24", "mad24")
def _multiply_add(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if kind.is_float:
        floating.fused(w, ins)
    elif ins.has("cc"):
        _carry_multiply(w, ins, kind, with_carry=False)
    else:
        _multiply(w, ins, kind)


def _multiply(w: Writer, ins: Instruction, kind: Type) -> None:
    result = TYPES.get(f"{kind.name[0]}{kind.bits * 2}") if ins.has("wide") else kind
    if result is None or kind.lanes == 2:
        raise w.wrong(f"{ins}: no type of twice the width")
    value = _product(w, ins, kind)
    if ins.opcode.startswith("mad"):
        term = w.bits(w.operand(ins, 3), result.bits)
        value = (
            w.math("sadd.sat", result, value, term)
            if ins.has("sat")
            else w.emit(f"add i{result.bits} {value}, {term}")
        )
    w.write(w.operand(ins, 0), result, value)


def _product(w: Writer, ins: Instruction, kind: Type) -> str:
    a, b = w.bits(w.operand(ins, 1), kind.bits), w.bits(w.operand(ins, 2), kind.bits)
    small = ins.opcode.endswith("24")
    if small:
        shift = "ashr" if kind.is_signed else "lshr"
        a, b = (w.emit(f"{shift} i{kind.bits} {w.emit(f'shl i{kind.bits} {each}, 8')}, 8") for each in (a, b))
    if not (ins.has("wide") or ins.has("hi")):
        return w.emit(f"mul i{kind.bits} {a}, {b}")
    double = kind.bits * 2
    a, b = (w.resize(each, kind.bits, double, signed=kind.is_signed) for each in (a, b))
    full = w.emit(f"mul i{double} {a}, {b}")
    if ins.has("wide"):
        return full
    # The upper half; for the product of two 24-bit numbers, that is everything above bit 15.
    return w.resize(w.emit(f"lshr i{double} {full}, {16 if small else kind.bits}"), double, kind.bits)


def _divide(w: Writer, ins: Instruction, kind: Type) -> None:
    """Divide as the hardware does: by zero gives all ones, the one overflow wraps, nothing traps."""
    llvm = llvm_type(kind)
    a, b = w.read(w.operand(ins, 1), kind), w.read(w.operand(ins, 2), kind)
    zero = w.emit(f"icmp eq {llvm} {b}, 0")
    divisor = w.emit(f"select i1 {zero}, {llvm} 1, {llvm} {b}")
    if kind.is_signed:
        minus = w.emit(f"icmp eq {llvm} {b}, -1")
        divisor = w.emit(f"select i1 {minus}, {llvm} 1, {llvm} {divisor}")
        quotient = w.emit(f"sdiv {llvm} {a}, {divisor}")
        negated = w.emit(f"sub {llvm} 0, {a}")
        quotient = w.emit(f"select i1 {minus}, {llvm} {negated}, {llvm} {quotient}")
    else:
        quotient = w.emit(f"udiv {llvm} {a}, {divisor}")
    w.write(w.operand(ins, 0), kind, w.emit(f"select i1 {zero}, {llvm} -1, {llvm} {quotient}"))


@instruction("rem")
def _remainder(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    llvm = llvm_type(kind)
    a, b = w.read(w.operand(ins, 1), kind), w.read(w.operand(ins, 2), kind)
    zero = w.emit(f"icmp eq {llvm} {b}, 0")
    divisor = w.emit(f"select i1 {zero}, {llvm} 1, {llvm} {b}")
    if kind.is_signed:
        minus = w.emit(f"icmp eq {llvm} {b}, -1")
        divisor = w.emit(f"select i1 {minus}, {llvm} 1, {llvm} {divisor}")
    rest = w.emit(f"{'srem' if kind.is_signed else 'urem'} {llvm} {a}, {divisor}")
    w.write(w.operand(ins, 0), kind, w.emit(f"select i1 {zero}, {llvm} {a}, {llvm} {rest}"))


@instruction("min", "max")
def _extreme(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if kind.is_float:
        floating.extreme(w, ins, kind)
        return
    a, b = w.read(w.operand(ins, 1), kind), w.read(w.operand(ins, 2), kind)
    value = w.math(("s" if kind.is_signed else "u") + ins.opcode, kind, a, b)
    if ins.has("relu"):
        value = w.math("smax", kind, value, constant(llvm_type(kind), "0"))
    w.write(w.operand(ins, 0), kind, value)


@instruction("neg", "abs")
def _sign(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if kind.is_float:
        floating.sign(w, ins, kind)
        return
    value = w.read(w.operand(ins, 1), kind)
    if ins.opcode == "neg":
        value = w.emit(f"sub i{kind.bits} 0, {value}")
    else:
        value = w.intrinsic(f"llvm.abs.i{kind.bits}", f"i{kind.bits}", (f"i{kind.bits}", value), ("i1", "false"))
    w.write(w.operand(ins, 0), kind, value)


@instruction("addc", "subc")
def _with_carry(w: Writer, ins: Instruction) -> None:
    _carry(w, ins, last_type(w, ins), with_carry=True)


@instruction("madc")
def _mad_with_carry(w: Writer, ins: Instruction) -> None:
    _carry_multiply(w, ins, last_type(w, ins), with_carry=True)


def _carry(w: Writer, ins: Instruction, kind: Type, *, with_carry: bool) -> None:
    """Add or subtract in twice the width; the bit above the result is the carry (or borrow)."""
    values = w.bits(w.operand(ins, 1), kind.bits), w.bits(w.operand(ins, 2), kind.bits)
    _chain(w, ins, kind, ins.opcode.removesuffix("c"), values, with_carry=with_carry)


def _carry_multiply(w: Writer, ins: Instruction, kind: Type, *, with_carry: bool) -> None:
    values = _product(w, ins, kind), w.bits(w.operand(ins, 3), kind.bits)
    _chain(w, ins, kind, "add", values, with_carry=with_carry)


def _chain(
    w: Writer, ins: Instruction, kind: Type, verb: str, values: tuple[str, str], *, with_carry: bool
) -> None:
    a, b = values
    double = kind.bits * 2
    total = w.emit(f"{verb} i{double} {w.resize(a, kind.bits, double)}, {w.resize(b, kind.bits, double)}")
    if with_carry:
        carry = w.resize(w.emit("load i1, ptr %carry"), 1, double)
        total = w.emit(f"{verb} i{double} {total}, {carry}")
    if ins.has("cc"):
        above = w.emit(f"lshr i{double} {total}, {kind.bits}")
        w.do(f"store i1 {w.emit(f'trunc i{double} {above} to i1')}, ptr %carry")
    w.write_bits(w.operand(ins, 0), kind.bits, w.resize(total, double, kind.bits))


@instruction("sad")
def _sad(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    llvm = llvm_type(kind)
    a, b, c = (w.read(w.operand(ins, at), kind) for at in (1, 2, 3))
    letter = "s" if kind.is_signed else "u"
    high, low = w.math(f"{letter}max", kind, a, b), w.math(f"{letter}min", kind, a, b)
    w.write(w.operand(ins, 0), kind, w.emit(f"add {llvm} {c}, {w.emit(f'sub {llvm} {high}, {low}')}"))


@instruction("dp4a", "dp2a")
def _dot(w: Writer, ins: Instruction) -> None:
    """Sum the products of bytes with bytes, or of 16-bit numbers with the lower or upper two bytes."""
    kinds = [TYPES[part] for part in ins.modifiers if part in TYPES]
    if len(kinds) != 2:
        raise w.wrong(f"{ins}: two types needed")
    a, b, total = (w.bits(w.operand(ins, at), 32) for at in (1, 2, 3))
    width, first = (8, 0) if ins.opcode == "dp4a" else (16, 16 if ins.has("hi") else 0)
    for at in range(32 // width):
        left = _part(w, a, width * at, width, kinds[0])
        right = _part(w, b, first + 8 * at, 8, kinds[1])
        total = w.emit(f"add i32 {total}, {w.emit(f'mul i32 {left}, {right}')}")
    w.write_bits(w.operand(ins, 0), 32, total)


def _part(w: Writer, value: str, shift: int, width: int, kind: Type) -> str:
    cut = w.emit(f"trunc i32 {w.emit(f'lshr i32 {value}, {shift}')} to i{width}")
    return w.resize(cut, width, 32, signed=kind.is_signed)
