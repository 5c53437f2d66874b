"""Floats of eight bits, e4m3 and e5m2, always two in a 16-bit register.

Both are made from an f16 that was rounded to odd. An e5m2 is an f16's upper byte. An e4m3 times 2^-8 is an f16 that
begins with the same bits, including subnormals.
"""

from milligpu.softgpu.llvm.rounding import narrow
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import F16, F32, TYPES

# The extra fraction bits of an f16, the bias to add before both match, the largest number and NaN.
SMALL = {"e4m3x2": (7, "0x3F70000000000000", 0x7E, 0x7F), "e5m2x2": (8, "1.0", 0x7B, 0x7F)}


def convert_small(w: Writer, ins: Instruction) -> None:
    """`cvt` from two f32 or a pair of halves, and back to a pair of halves."""
    kinds = [part for part in ins.modifiers if part in (*SMALL, "f32", "f16x2")]
    if len(kinds) != 2:
        raise w.refuse(f"{ins}: unsupported")
    if kinds[0] in SMALL:
        values = _sources(w, ins, kinds[1])
        low, high = (w.resize(_encode(w, ins, kinds[0], value), 8, 16) for value in values)
        w.write_bits(w.operand(ins, 0), 16, w.emit(f"or i16 {low}, {w.emit(f'shl i16 {high}, 8')}"))
    elif kinds[0] == "f16x2":
        both = w.bits(w.operand(ins, 1), 16)
        bytes_ = [w.emit(f"trunc i16 {each} to i8") for each in (both, w.emit(f"lshr i16 {both}, 8"))]
        low, high = (w.resize(_decode(w, ins, kinds[1], each), 16, 32) for each in bytes_)
        w.write_bits(w.operand(ins, 0), 32, w.emit(f"or i32 {low}, {w.emit(f'shl i32 {high}, 16')}"))
    else:
        raise w.refuse(f"{ins}: unsupported")


def _sources(w: Writer, ins: Instruction, kind: str) -> list[str]:
    """Return the lower and the upper value, as f32."""
    if kind == "f32":
        return [w.read(w.operand(ins, at), F32) for at in (2, 1)]
    pair = w.read(w.operand(ins, 1), TYPES[kind])
    halves = [w.emit(f"extractelement <2 x half> {pair}, i32 {at}") for at in (0, 1)]
    return [w.emit(f"fpext half {half} to float") for half in halves]


def _encode(w: Writer, ins: Instruction, kind: str, value: str) -> str:
    """Round to nearest, ties to even; too large values become the largest number."""
    shift, scale, largest, nan = SMALL[kind]
    half = narrow(w, w.emit(f"fmul float {value}, {scale}"), ("float", "half"), "odd")
    bits = w.emit(f"bitcast half {half} to i16")
    size = w.emit(f"and i16 {bits}, 32767")
    odd = w.emit(f"and i16 {w.emit(f'lshr i16 {size}, {shift}')}, 1")
    near = w.emit(f"add i16 {w.emit(f'add i16 {size}, {(1 << (shift - 1)) - 1}')}, {odd}")
    held = w.intrinsic("llvm.umin.i16", "i16", ("i16", w.emit(f"lshr i16 {near}, {shift}")), ("i16", str(largest)))
    negative = w.emit(f"icmp slt i16 {bits}, 0")
    if ins.has("relu"):
        signed = w.emit(f"select i1 {negative}, i16 0, i16 {held}")
    else:
        signed = w.emit(f"select i1 {negative}, i16 {w.emit(f'or i16 {held}, 128')}, i16 {held}")
    chosen = w.emit(f"select i1 {w.emit(f'fcmp uno float {value}, 0.0')}, i16 {nan}, i16 {signed}")
    return w.resize(chosen, 16, 8)


def _decode(w: Writer, ins: Instruction, kind: str, byte: str) -> str:
    """Return the same number as f16 bits, which hold every value."""
    shift, _, _, nan = SMALL[kind]
    size = w.resize(w.emit(f"and i8 {byte}, 127"), 8, 16)
    value = w.emit(f"bitcast i16 {w.emit(f'shl i16 {size}, {shift}')} to half")
    if kind == "e4m3x2":
        value = w.emit(f"fdiv half {value}, 0xH1C00")
        is_nan = w.emit(f"icmp eq i16 {size}, {nan}")
        value = w.emit(f"select i1 {is_nan}, half 0xH7FFF, half {value}")
    sign = w.emit(f"shl i16 {w.resize(w.emit(f'and i8 {byte}, -128'), 8, 16)}, 8")
    signed = w.emit(f"or i16 {w.to_bits(value, F16)}, {sign}")
    if ins.has("relu"):
        signed = w.emit(f"select i1 {w.emit(f'icmp ne i16 {sign}, 0')}, i16 0, i16 {signed}")
    return signed
