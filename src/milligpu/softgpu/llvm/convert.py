"""Moves and conversions between types and address spaces."""

from milligpu.softgpu.llvm.rounding import clamped, cut, flushed, from_integer, narrow, side_of
from milligpu.softgpu.llvm.small import SMALL, convert_small
from milligpu.softgpu.llvm.special import SHARED_WINDOW
from milligpu.softgpu.llvm.table import instruction, last_type, types
from milligpu.softgpu.llvm.writer import Writer, base_type, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction, Vector
from milligpu.softgpu.ptx.types import F32, S32, TYPES, ScalarKind, Type

_WIDTHS = {"half": 16, "float": 32, "double": 64}
# As LLVM writes them.
_LARGEST = {"f16": "0xH7BFF", "bf16": "0x47EFE00000000000", "f32": "0x47EFFFFFE0000000"}
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
    """Convert a shared address, an offset into the block's window; all other spaces are generic already."""
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
    if any(part in SMALL for part in ins.modifiers):
        convert_small(w, ins)
        return
    kinds = types(ins)
    if ins.has("pack") and len(kinds) in (2, 3):
        _pack_integers(w, ins, kinds)
        return
    if len(kinds) != 2 or ins.has("rs"):
        raise w.refuse(f"{ins}: unsupported")
    target, source = kinds
    if target.lanes == 2 and source == F32:
        _pack(w, ins, target)
    elif target.lanes == 2 or source.lanes == 2:
        raise w.refuse(f"{ins}: unsupported")
    elif target.name == "tf32":
        _to_tf32(w, ins)
    elif source.is_float and target.is_float:
        _float_to_float(w, ins, target, source)
    elif source.is_float:
        _float_to_integer(w, ins, target, source)
    elif target.is_float:
        value = from_integer(w, ins, target, source, w.read(w.operand(ins, 1), source))
        w.write(w.operand(ins, 0), target, clamped(w, ins, target, value))
    else:
        _integer_to_integer(w, ins, target, source)


def _pack(w: Writer, ins: Instruction, target: Type) -> None:
    """Convert two f32 to a pair of halves; the first source is the upper half."""
    half = TYPES[target.name.removesuffix("x2")]
    parts: list[str] = []
    for at in (2, 1):
        value = narrowed(w, ins, half, F32, w.read(w.operand(ins, at), F32))
        parts.append(w.resize(w.to_bits(value, half), 16, 32))
    w.write_bits(w.operand(ins, 0), 32, w.emit(f"or i32 {parts[0]}, {w.emit(f'shl i32 {parts[1]}, 16')}"))


def narrowed(w: Writer, ins: Instruction, target: Type, source: Type, value: str) -> str:
    """Convert a float to what `to_bits` of the target type takes: rounded, saturated and clamped."""
    side = side_of(ins)
    have, want = base_type(source), base_type(target)
    if target.kind is ScalarKind.BFLOAT:
        if have == "half":
            value = w.emit(f"fpext half {value} to float")
        elif have == "double":
            value = narrow(w, value, (have, want), side or "odd")
        value = cut(w, value) if side == "rz" else value
    elif _WIDTHS[have] > _WIDTHS[want]:
        value = narrow(w, value, (have, want), side)
    elif _WIDTHS[have] < _WIDTHS[want]:
        value = w.emit(f"fpext {have} {value} to {want}")
    if ins.has("satfinite"):
        value = _hold(w, target, value)
    return clamped(w, ins, target, value)


def _hold(w: Writer, target: Type, value: str) -> str:
    """Turn infinities, and what rounds to them, into the largest number of the type; keep NaN."""
    llvm, largest = llvm_type(target), _LARGEST[target.name]
    low = w.math("minimum", target, value, largest)
    return w.math("maximum", target, low, w.emit(f"fneg {llvm} {largest}"))


def _to_tf32(w: Writer, ins: Instruction) -> None:
    """Keep ten bits of fraction: ties away from zero (`rna`), to even (`rn`), or truncated (`rz`)."""
    bits = w.bits(w.operand(ins, 1), 32)
    number = w.emit(f"fcmp ord float {w.emit(f'bitcast i32 {bits} to float')}, 0.0")
    odd = w.emit(f"and i32 {w.emit(f'lshr i32 {bits}, 13')}, 1")
    more = "4096" if ins.has("rna") else "0" if ins.has("rz") else w.emit(f"add i32 {odd}, 4095")
    whole = w.emit(f"and i32 {w.emit(f'add i32 {bits}, {more}')}, -8192")
    value = w.emit(f"bitcast i32 {w.emit(f'select i1 {number}, i32 {whole}, i32 2147483647')} to float")
    w.write(w.operand(ins, 0), F32, clamped(w, ins, F32, value))


def _float_to_float(w: Writer, ins: Instruction, target: Type, source: Type) -> None:
    value = w.read(w.operand(ins, 1), source)
    if source == F32:
        value = flushed(w, ins, source, value)
    integral = next((part for part in ins.modifiers if part in _TO_INTEGRAL), None)
    if integral:
        value = w.math(_TO_INTEGRAL[integral], source, value)
    value = narrowed(w, ins, target, source, value)
    w.write(w.operand(ins, 0), target, flushed(w, ins, target, value) if target == F32 else value)


def _pack_integers(w: Writer, ins: Instruction, kinds: list[Type]) -> None:
    """Pack two s32, saturated to the narrower type; the third operand, if any, fills the upper bits."""
    target = kinds[0]
    if not target.bits < 32 or target.is_float:
        raise w.refuse(f"{ins}: unsupported")
    parts = [w.resize(_clamp(w, w.bits(w.operand(ins, at), 32), target, S32), 128, target.bits) for at in (1, 2)]
    high, low = (w.resize(part, target.bits, 32) for part in parts)
    total = w.emit(f"or i32 {w.emit(f'shl i32 {high}, {target.bits}')}, {low}")
    if len(ins.operands) > 3:
        before = w.emit(f"shl i32 {w.bits(ins.operands[3], 32)}, {2 * target.bits}")
        total = w.emit(f"or i32 {total}, {before}")
    w.write_bits(w.operand(ins, 0), 32, total)


def _float_to_integer(w: Writer, ins: Instruction, target: Type, source: Type) -> None:
    """Saturate out-of-range values and turn NaN into 0, as the hardware does."""
    value = flushed(w, ins, source, w.read(w.operand(ins, 1), source))
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
    """Saturate in 128 bits, which hold every source and every bound with its sign."""
    wide = w.resize(value, source.bits, 128, signed=source.is_signed)
    low = -(1 << (target.bits - 1)) if target.is_signed else 0
    high = (1 << (target.bits - 1)) - 1 if target.is_signed else (1 << target.bits) - 1
    for verb, limit in (("smax", low), ("smin", high)):
        wide = w.intrinsic(f"llvm.{verb}.i128", "i128", ("i128", wide), ("i128", str(limit)))
    return wide
