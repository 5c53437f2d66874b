"""Floating-point arithmetic. Rounding, flushing and clamping are in `rounding`."""

from milligpu.softgpu.llvm.rounding import clamped, flushed, rounded
from milligpu.softgpu.llvm.table import instruction, last_type, one_of
from milligpu.softgpu.llvm.writer import Writer, base_type, constant, llvm_type, shaped
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import Type

# LLVM's names for these; the others have the same name.
_APPROXIMATE = {"ex2": "exp2", "lg2": "log2"}


def operands(w: Writer, ins: Instruction, kind: Type, *places: int) -> list[str]:
    """Read the operands at these positions, as the instruction's modifiers say."""
    return [flushed(w, ins, kind, w.read(w.operand(ins, at), kind)) for at in places]


def finish(w: Writer, ins: Instruction, kind: Type, value: str) -> None:
    """Store a result, as the instruction's modifiers say."""
    w.write(w.operand(ins, 0), kind, clamped(w, ins, kind, flushed(w, ins, kind, value)))


def binary(w: Writer, ins: Instruction, kind: Type) -> None:
    """`add`, `sub`, `mul` and `div`."""
    a, b = operands(w, ins, kind, 1, 2)
    verb = f"f{ins.opcode}"
    if ins.opcode == "sub":
        verb, b = "fadd", w.emit(f"fneg {llvm_type(kind)} {b}")
    finish(w, ins, kind, rounded(w, ins, kind, verb, a, b))


@instruction("fma")
def fused(w: Writer, ins: Instruction) -> None:
    """`fma`, and `mad` on floats, which is the same."""
    kind = last_type(w, ins)
    if not kind.is_float:
        raise w.wrong(f"{ins}: fma needs a float type")
    result = rounded(w, ins, kind, "fma", *operands(w, ins, kind, 1, 2, 3))
    if ins.has("oob"):
        raise w.refuse(f"{ins}: unsupported")
    finish(w, ins, kind, result)


def extreme(w: Writer, ins: Instruction, kind: Type) -> None:
    """`min` and `max` of two or three operands."""
    values = operands(w, ins, kind, *range(1, max(3, len(ins.operands))))
    llvm = llvm_type(kind)
    sign = ""
    if ins.has("xorsign"):
        whole = shaped(kind, {"half": "i16", "float": "i32", "double": "i64"}[base_type(kind)])
        bits = [w.emit(f"bitcast {llvm} {value} to {whole}") for value in values]
        sign = w.emit(f"bitcast {whole} {w.emit(f'xor {whole} {bits[0]}, {bits[1]}')} to {llvm}")
    if ins.has("abs"):
        values = [w.math("fabs", kind, value) for value in values]
    name = {"min": "minimum", "max": "maximum"}[ins.opcode] + ("" if ins.has("NaN") else "num")
    value = values[0]
    for other in values[1:]:
        value = w.math(name, kind, value, other)
    finish(w, ins, kind, w.math("copysign", kind, value, sign) if sign else value)


def sign(w: Writer, ins: Instruction, kind: Type) -> None:
    """`neg` and `abs`."""
    (value,) = operands(w, ins, kind, 1)
    value = w.emit(f"fneg {llvm_type(kind)} {value}") if ins.opcode == "neg" else w.math("fabs", kind, value)
    w.write(w.operand(ins, 0), kind, value)


@instruction("sqrt", "rsqrt", "rcp", "ex2", "lg2", "sin", "cos", "tanh")
def _function(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if not kind.is_float or (kind.lanes == 2 and ins.opcode not in ("ex2", "tanh")):
        raise w.refuse(f"{ins}: unsupported")
    llvm = llvm_type(kind)
    (value,) = operands(w, ins, kind, 1)
    one = constant(llvm, "1.0")
    match ins.opcode:
        case "rcp":
            result = rounded(w, ins, kind, "fdiv", one, value)
        case "sqrt":
            result = rounded(w, ins, kind, "sqrt", value)
        case "rsqrt":
            result = w.emit(f"fdiv {llvm} {one}, {w.math('sqrt', kind, value)}")
        case name:
            result = w.math(_APPROXIMATE.get(name, name), kind, value)
    finish(w, ins, kind, result)


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
