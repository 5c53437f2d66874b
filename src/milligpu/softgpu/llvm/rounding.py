"""Rounding that LLVM has no plain instruction for: toward zero, down, up; and the clamp to [0, 1]."""

from collections.abc import Callable

from milligpu.softgpu.llvm.writer import Writer, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import F32, F64, Type

_DIRECTED = ("rz", "rm", "rp")


def directed(w: Writer, ins: Instruction, kind: Type, compute: Callable[..., str], *values: str) -> str:
    """Compute in `kind`, or, for an f32 that rounds toward one side, in f64 and narrow to that side.

    An f32 product is exact in f64, so this is right there; a sum or fused sum can be off by one unit in the last
    place in rare cases. f64 itself always rounds to nearest.
    """
    mode = next((part for part in ins.modifiers if part in _DIRECTED), None)
    if mode is None or kind != F32:
        return compute(llvm_type(kind), *values)
    wide = [w.emit(f"fpext float {value} to double") for value in values]
    return narrow(w, compute("double", *wide), F64, F32, mode)


def narrow(w: Writer, value: str, source: Type, target: Type, mode: str | None) -> str:
    """Convert to a smaller float type, rounding to nearest or to the side that `mode` names."""
    have, want = llvm_type(source), llvm_type(target)
    near = w.emit(f"fptrunc {have} {value} to {want}")
    if mode not in _DIRECTED:
        return near
    back = w.emit(f"fpext {want} {near} to {have}")
    bits = w.emit(f"bitcast {want} {near} to i{target.bits}")
    # One step in the bits is one unit in the last place: down in magnitude when we rounded away from the side.
    if mode == "rz":
        beyond = w.emit(f"fcmp ogt {have} {w.math('fabs', source, back)}, {w.math('fabs', source, value)}")
        stepped = w.emit(f"sub i{target.bits} {bits}, 1")
    else:
        beyond = w.emit(f"fcmp {'ogt' if mode == 'rm' else 'olt'} {have} {back}, {value}")
        negative = w.emit(f"icmp slt i{target.bits} {bits}, 0")
        away = f"select i1 {negative}, i{target.bits} 1, i{target.bits} -1"
        toward = f"select i1 {negative}, i{target.bits} -1, i{target.bits} 1"
        stepped = w.emit(f"add i{target.bits} {bits}, {w.emit(away if mode == 'rm' else toward)}")
    chosen = w.emit(f"select i1 {beyond}, i{target.bits} {stepped}, i{target.bits} {bits}")
    return w.emit(f"bitcast i{target.bits} {chosen} to {want}")


def saturate(w: Writer, kind: Type, value: str) -> str:
    """Clamp to [0, 1]; a NaN becomes 0."""
    if kind.lanes == 2:
        raise w.refuse(".sat on packed halves: unsupported")
    return w.math("minimumnum", kind, w.math("maximumnum", kind, value, "0.0"), "1.0")
