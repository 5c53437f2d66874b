"""Integer and floating-point arithmetic."""

from milligpu.softgpu.llvm.rounding import directed, saturate
from milligpu.softgpu.llvm.table import instruction, last_type, one_of
from milligpu.softgpu.llvm.writer import Writer, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import TYPES, Type

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}


@instruction("add", "sub", "mul", "div")
def _binary(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if kind.is_float:
        a, b = w.read(w.operand(ins, 1), kind), w.read(w.operand(ins, 2), kind)

        def compute(llvm: str, x: str, y: str) -> str:
            return w.emit(f"{_FLOAT_OPS[ins.opcode]} {llvm} {x}, {y}")

        exact = directed(w, ins, kind, compute, a, b)
        _write_float(w, ins, kind, exact)
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


def _write_float(w: Writer, ins: Instruction, kind: Type, value: str) -> None:
    if ins.has("sat"):
        value = saturate(w, kind, value)
    if ins.has("relu"):
        zero = "zeroinitializer" if kind.lanes == 2 else "0.0"
        value = w.math("maximumnum", kind, value, zero)
    w.write(w.operand(ins, 0), kind, value)


@instruction("fma")
def _fma(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if not kind.is_float:
        raise w.wrong(f"{ins}: fma needs a float type")
    values = [w.read(w.operand(ins, at), kind) for at in (1, 2, 3)]

    def fused(llvm: str, x: str, y: str, z: str) -> str:
        name = {"float": "f32", "double": "f64", "half": "f16", "<2 x float>": "v2f32", "<2 x half>": "v2f16"}[llvm]
        return w.intrinsic(f"llvm.fma.{name}", llvm, (llvm, x), (llvm, y), (llvm, z))

    _write_float(w, ins, kind, directed(w, ins, kind, fused, *values))


@instruction("mad", "mul24", "mad24")
def _multiply_add(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if kind.is_float:
        _fma(w, ins)
    elif ins.has("cc"):
        _carry_multiply(w, ins, kind, with_carry=False)
    else:
        _multiply(w, ins, kind)


def _multiply(w: Writer, ins: Instruction, kind: Type) -> None:
    result = TYPES.get(f"{kind.name[0]}{kind.bits * 2}") if ins.has("wide") else kind
    if result is None:
        raise w.wrong(f"{ins}: no type of twice the width")
    value = _product(w, ins, kind)
    if ins.opcode.startswith("mad"):
        value = w.emit(f"add i{result.bits} {value}, {w.bits(w.operand(ins, 3), result.bits)}")
    w.write(w.operand(ins, 0), result, value)


def _product(w: Writer, ins: Instruction, kind: Type) -> str:
    a, b = w.bits(w.operand(ins, 1), kind.bits), w.bits(w.operand(ins, 2), kind.bits)
    if not (ins.has("wide") or ins.has("hi")):
        return w.emit(f"mul i{kind.bits} {a}, {b}")
    double = kind.bits * 2
    a, b = (w.resize(each, kind.bits, double, signed=kind.is_signed) for each in (a, b))
    full = w.emit(f"mul i{double} {a}, {b}")
    if ins.has("wide"):
        return full
    return w.resize(w.emit(f"lshr i{double} {full}, {kind.bits}"), double, kind.bits)


def _divide(w: Writer, ins: Instruction, kind: Type) -> None:
    """As hardware: a division by zero gives all ones, the one overflow wraps, nothing traps."""
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
    values = [w.read(operand, kind) for operand in ins.operands[1:]]
    if len(values) < 2:
        raise w.wrong(f"{ins}: too few operands")
    if kind.is_float:
        name = {"min": "minimum", "max": "maximum"}[ins.opcode] + ("" if ins.has("NaN") else "num")
    else:
        name = ("s" if kind.is_signed else "u") + ins.opcode
    value = values[0]
    for other in values[1:]:
        value = w.math(name, kind, value, other)
    _write_float(w, ins, kind, value) if kind.is_float else w.write(w.operand(ins, 0), kind, value)


@instruction("neg", "abs")
def _sign(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    value = w.read(w.operand(ins, 1), kind)
    if kind.is_float:
        value = w.emit(f"fneg {llvm_type(kind)} {value}") if ins.opcode == "neg" else w.math("fabs", kind, value)
    elif ins.opcode == "neg":
        value = w.emit(f"sub i{kind.bits} 0, {value}")
    else:
        value = w.intrinsic(f"llvm.abs.i{kind.bits}", f"i{kind.bits}", (f"i{kind.bits}", value), ("i1", "false"))
    w.write(w.operand(ins, 0), kind, value)


@instruction("sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh")
def _transcendental(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    llvm = llvm_type(kind)
    if not kind.is_float or (kind.lanes == 2 and ins.opcode not in ("ex2", "tanh")):
        raise w.refuse(f"{ins}: unsupported")
    value = w.read(w.operand(ins, 1), kind)
    names = {"ex2": "exp2", "lg2": "log2"}
    if ins.opcode == "rcp":

        def reciprocal(llvm: str, x: str) -> str:
            return w.emit(f"fdiv {llvm} 1.0, {x}")

        result = directed(w, ins, kind, reciprocal, value)
    elif ins.opcode == "rsqrt":
        result = w.emit(f"fdiv {llvm} 1.0, {w.math('sqrt', kind, value)}")
    elif ins.opcode == "sqrt":
        result = w.math("sqrt", kind, value)
    else:
        result = w.math(names.get(ins.opcode, ins.opcode), kind, value)
    w.write(w.operand(ins, 0), kind, result)


@instruction("testp")
def _testp(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    # The bits of LLVM's class test: nan 3, -inf 4, +inf 512, normal 264, subnormal 144, zero 96.
    classes = {
        "finite": 264 | 144 | 96,
        "infinite": 516,
        "number": 0x3FF & ~3,
        "notanumber": 3,
        "normal": 264,
        "subnormal": 144,
    }
    mask = classes[one_of(w, ins, *classes)]
    llvm = llvm_type(kind)
    name = f"llvm.is.fpclass.f{kind.bits}"
    value = w.intrinsic(name, "i1", (llvm, w.read(w.operand(ins, 1), kind)), ("i32", str(mask)))
    w.shared.intrinsics[name] = f"declare i1 @{name}({llvm}, i32 immarg)"
    w.write_bits(w.operand(ins, 0), 1, value)


@instruction("copysign")
def _copysign(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    sign, magnitude = w.read(w.operand(ins, 1), kind), w.read(w.operand(ins, 2), kind)
    w.write(w.operand(ins, 0), kind, w.math("copysign", kind, magnitude, sign))


@instruction("addc", "subc")
def _with_carry(w: Writer, ins: Instruction) -> None:
    _carry(w, ins, last_type(w, ins), with_carry=True)


@instruction("madc")
def _mad_with_carry(w: Writer, ins: Instruction) -> None:
    _carry_multiply(w, ins, last_type(w, ins), with_carry=True)


def _carry(w: Writer, ins: Instruction, kind: Type, *, with_carry: bool) -> None:
    """Add or subtract in twice the width; the bit above is the carry (or borrow)."""
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
    if ins.opcode == "dp2a":
        raise w.refuse("dp2a: unsupported")
    kinds = [TYPES[part] for part in ins.modifiers if part in TYPES]
    if len(kinds) != 2:
        raise w.wrong(f"{ins}: two types needed")
    total = w.bits(w.operand(ins, 3), 32)
    for shift in (0, 8, 16, 24):
        factors: list[str] = []
        for at, kind in ((1, kinds[0]), (2, kinds[1])):
            byte = w.emit(f"trunc i32 {w.emit(f'lshr i32 {w.bits(w.operand(ins, at), 32)}, {shift}')} to i8")
            factors.append(w.resize(byte, 8, 32, signed=kind.is_signed))
        total = w.emit(f"add i32 {total}, {w.emit(f'mul i32 {factors[0]}, {factors[1]}')}")
    w.write_bits(w.operand(ins, 0), 32, total)
