"""Moves and conversions between types and address spaces."""

from milligpu.softgpu.llvm.rounding import narrow, saturate
from milligpu.softgpu.llvm.special import SHARED_WINDOW
from milligpu.softgpu.llvm.table import instruction, last_type, types
from milligpu.softgpu.llvm.writer import Writer, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction, Vector
from milligpu.softgpu.ptx.types import F32, TYPES, Kind, Type

_TO_INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


@instruction("mov")
def _move(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    target, source = w.operand(ins, 0), w.operand(ins, 1)
    if isinstance(target, Vector):
        part = kind.bits // len(target.items)
        value = w.bits(source, kind.bits)
        for at, item in enumerate(target.items):
            shifted = w.emit(f"lshr i{kind.bits} {value}, {part * at}") if at else value
            w.write_bits(item, part, w.resize(shifted, kind.bits, part))
    elif isinstance(source, Vector):
        part = kind.bits // len(source.items)
        total = "0"
        for at, item in enumerate(source.items):
            value = w.resize(w.bits(item, part), part, kind.bits)
            shifted = w.emit(f"shl i{kind.bits} {value}, {part * at}") if at else value
            total = w.emit(f"or i{kind.bits} {total}, {shifted}")
        w.write_bits(target, kind.bits, total)
    else:
        w.write_bits(target, kind.bits, w.bits(source, kind.bits))


@instruction("cvta")
def _to_generic(w: Writer, ins: Instruction) -> None:
    """Shared addresses are offsets into the block's window; all other spaces already are generic."""
    value = w.bits(w.operand(ins, 1), 64)
    if any(part.startswith("shared") for part in ins.modifiers):
        base = w.emit("ptrtoint ptr %shared to i64")
        if ins.has("to"):
            value = w.emit(f"and i64 {w.emit(f'sub i64 {value}, {base}')}, 4294967295")
        else:
            value = w.emit(f"add i64 {value}, {base}")
    w.write_bits(w.operand(ins, 0), 64, value)


@instruction("isspacep")
def _is_space(w: Writer, ins: Instruction) -> None:
    space = ins.modifiers[0].split("::")[0] if ins.modifiers else ""
    value = w.bits(w.operand(ins, 1), 64)
    offset = w.emit(f"sub i64 {value}, {w.emit('ptrtoint ptr %shared to i64')}")
    inside = w.emit(f"icmp ult i64 {offset}, {SHARED_WINDOW}")
    if space == "shared":
        w.write_bits(w.operand(ins, 0), 1, inside)
    elif space == "global":
        w.write_bits(w.operand(ins, 0), 1, w.emit(f"xor i1 {inside}, true"))
    elif space in ("local", "const", "param"):
        w.write_bits(w.operand(ins, 0), 1, "0")
    else:
        raise w.refuse(f"{ins}: unsupported")


@instruction("cvt")
def _convert(w: Writer, ins: Instruction) -> None:
    kinds = types(ins)
    if len(kinds) != 2 or ins.has("pack"):
        raise w.refuse(f"{ins}: unsupported")
    target, source = kinds
    if target.lanes == 2:
        _pack(w, ins, target)
    elif source.lanes == 2:
        raise w.refuse(f"{ins}: unsupported")
    elif target.name == "tf32":
        # Ten bits of fraction remain, rounded to nearest, ties away.
        bits = w.emit(f"add i32 {w.bits(w.operand(ins, 1), 32)}, 4096")
        w.write_bits(w.operand(ins, 0), 32, w.emit(f"and i32 {bits}, -8192"))
    elif source.is_float and target.is_float:
        _float_to_float(w, ins, target, source)
    elif source.is_float:
        _float_to_integer(w, ins, target, source)
    elif target.is_float:
        value = w.read(w.operand(ins, 1), source)
        word = "sitofp" if source.is_signed else "uitofp"
        result = w.emit(f"{word} i{source.bits} {value} to {llvm_type(target)}")
        w.write(w.operand(ins, 0), target, saturate(w, target, result) if ins.has("sat") else result)
    else:
        _integer_to_integer(w, ins, target, source)


def _pack(w: Writer, ins: Instruction, target: Type) -> None:
    """Two f32 into a pair of halves; the first source is the upper half."""
    half = TYPES[target.name.removesuffix("x2")]
    parts: list[str] = []
    for at in (2, 1):
        value = w.read(w.operand(ins, at), F32)
        if ins.has("relu"):
            value = w.math("maximumnum", F32, value, "0.0")
        parts.append(w.resize(w.to_bits(_to_half(w, ins, half, value), half), 16, 32))
    w.write_bits(w.operand(ins, 0), 32, w.emit(f"or i32 {parts[0]}, {w.emit(f'shl i32 {parts[1]}, 16')}"))


def _to_half(w: Writer, ins: Instruction, half: Type, value: str) -> str:
    """An f32 as the value that `to_bits` of this half type takes."""
    if half.kind is Kind.BFLOAT:
        if not ins.has("rz"):
            return value
        cut = w.emit(f"and i32 {w.emit(f'bitcast float {value} to i32')}, -65536")
        return w.emit(f"bitcast i32 {cut} to float")
    return narrow(w, value, F32, half, "rz" if ins.has("rz") else None)


def _float_to_float(w: Writer, ins: Instruction, target: Type, source: Type) -> None:
    value = w.read(w.operand(ins, 1), source)
    integral = next((part for part in ins.modifiers if part in _TO_INTEGRAL), None)
    if integral:
        value = w.math(_TO_INTEGRAL[integral], source, value)
    have, want = llvm_type(source), llvm_type(target)
    widths = {"half": 16, "float": 32, "double": 64}
    mode = next((part for part in ins.modifiers if part in ("rz", "rm", "rp")), None)
    if target.kind is Kind.BFLOAT:
        if have == "half":
            value = w.emit(f"fpext half {value} to float")
        elif have == "double":
            value = w.emit(f"fptrunc double {value} to float")
        value = _to_half(w, ins, target, value)
    elif widths[have] > widths[want]:
        value = narrow(w, value, F32 if source.kind is Kind.BFLOAT else source, target, mode)
    elif widths[have] < widths[want]:
        value = w.emit(f"fpext {have} {value} to {want}")
    if ins.has("relu"):
        value = w.math("maximumnum", target, value, "0.0")
    w.write(w.operand(ins, 0), target, saturate(w, target, value) if ins.has("sat") else value)


def _float_to_integer(w: Writer, ins: Instruction, target: Type, source: Type) -> None:
    """Out-of-range values are held to the range and a NaN becomes 0, as hardware does."""
    value = w.read(w.operand(ins, 1), source)
    integral = next((part for part in ins.modifiers if part in _TO_INTEGRAL), "rzi")
    value = w.math(_TO_INTEGRAL[integral], source, value)
    name = "fptosi" if target.is_signed else "fptoui"
    llvm = llvm_type(source)
    width = {"half": "f16", "float": "f32", "double": "f64"}[llvm]
    result = w.intrinsic(f"llvm.{name}.sat.i{target.bits}.{width}", f"i{target.bits}", (llvm, value))
    w.write(w.operand(ins, 0), target, result)


def _integer_to_integer(w: Writer, ins: Instruction, target: Type, source: Type) -> None:
    value = w.read(w.operand(ins, 1), source)
    if ins.has("sat"):
        value = _clamp(w, value, target, source)
        w.write(w.operand(ins, 0), target, w.resize(value, 128, target.bits))
        return
    w.write(w.operand(ins, 0), target, w.resize(value, source.bits, target.bits, signed=source.is_signed))


def _clamp(w: Writer, value: str, target: Type, source: Type) -> str:
    """In 128 bits every source and every limit fits with its sign."""
    wide = w.resize(value, source.bits, 128, signed=source.is_signed)
    low = -(1 << (target.bits - 1)) if target.is_signed else 0
    high = (1 << (target.bits - 1)) - 1 if target.is_signed else (1 << target.bits) - 1
    for verb, limit in (("smax", low), ("smin", high)):
        wide = w.intrinsic(f"llvm.{verb}.i128", "i128", ("i128", wide), ("i128", str(limit)))
    return wide
