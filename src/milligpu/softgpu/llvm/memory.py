"""Loads, stores, fences and cache hints."""

from milligpu.softgpu.llvm.table import instruction, last_type
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction, Operand, Vector

_SPACES = ("global", "shared", "local", "param", "const")
_ORDERED = ("volatile", "relaxed", "acquire", "release", "mmio")


def space(ins: Instruction) -> str:
    """Return the state space that an instruction names."""
    for part in ins.modifiers:
        stem = part.split("::")[0]
        if stem in _SPACES:
            return stem
    return "generic"


def lanes(w: Writer, operand: Operand, count: int) -> tuple[Operand, ...]:
    """Return the registers of a vector operand, or the single register."""
    if count == 1:
        return (operand,)
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise w.wrong(f"expected {count} registers in braces")
    return operand.items


def vector_width(ins: Instruction) -> int:
    """Return how many elements an instruction moves at once."""
    return next((int(part[1:]) for part in ins.modifiers if part in ("v2", "v4", "v8")), 1)


@instruction("ld", "ldu")
def _load(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    pointer = w.pointer(w.operand(ins, 1), space(ins))
    word = "load volatile" if any(ins.has(each) for each in _ORDERED) else "load"
    values: list[str] = []
    targets = lanes(w, w.operand(ins, 0), vector_width(ins))
    bits = max(8, kind.bits)
    for at in range(len(targets)):
        place = w.emit(f"getelementptr i8, ptr {pointer}, i64 {at * kind.bytes}") if at else pointer
        values.append(w.emit(f"{word} i{bits}, ptr {place}, align {kind.bytes}"))
    for target, value in zip(targets, values, strict=True):
        w.write_bits(target, bits, value, signed=kind.is_signed)


@instruction("st")
def _store(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    pointer = w.pointer(w.operand(ins, 0), space(ins))
    word = "store volatile" if any(ins.has(each) for each in _ORDERED) else "store"
    bits = max(8, kind.bits)
    for at, source in enumerate(lanes(w, w.operand(ins, 1), vector_width(ins))):
        place = w.emit(f"getelementptr i8, ptr {pointer}, i64 {at * kind.bytes}") if at else pointer
        w.do(f"{word} i{bits} {w.bits(source, bits)}, ptr {place}, align {kind.bytes}")


@instruction("membar", "fence")
def _fence(w: Writer, ins: Instruction) -> None:  # noqa: ARG001
    w.do("fence seq_cst")


@instruction("prefetch", "prefetchu", "discard", "applypriority")
def _hint(w: Writer, ins: Instruction) -> None:
    """Ignore cache hints; the CPU has no such caches."""


@instruction("createpolicy")
def _policy(w: Writer, ins: Instruction) -> None:
    """Ignore the cache policy; there is only one."""
    w.write_bits(w.operand(ins, 0), 64, "0")
