"""Atomics: one instruction where the CPU has it, otherwise a loop around a compare-and-swap."""

from collections.abc import Callable

from milligpu.softgpu.llvm.memory import lanes, space, vector_width
from milligpu.softgpu.llvm.table import instruction, last_type, one_of
from milligpu.softgpu.llvm.writer import Writer, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction, Name, Operand
from milligpu.softgpu.ptx.types import F32, F64, ScalarKind, Type

_VERBS = ("add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
_INTEGER = {"inc": "uinc_wrap", "dec": "udec_wrap", "exch": "xchg"}


@instruction("atom", "red")
def _atomic(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    verb = one_of(w, ins, *_VERBS)
    operands: tuple[Operand, ...] = ins.operands if ins.opcode == "atom" else (Name("_"), *ins.operands)
    if len(operands) < (4 if verb == "cas" else 3):
        raise w.wrong(f"{ins}: too few operands")
    if ins.has("async") or (kind.lanes == 2 and not kind.is_float):
        raise w.refuse(f"{ins}: unsupported")
    pointer = w.pointer(operands[1], space(ins))
    count = vector_width(ins)
    sources = lanes(w, operands[2], count)
    targets = (Name("_"),) * count if ins.opcode == "red" else lanes(w, operands[0], count)
    # Each element of a vector is updated separately; on a real GPU the vector is not one update either.
    for at, (target, source) in enumerate(zip(targets, sources, strict=True)):
        place = w.emit(f"getelementptr i8, ptr {pointer}, i64 {at * kind.bytes}") if at else pointer
        old = _swap(w, operands, place, kind) if verb == "cas" else _update(w, verb, place, kind, source)
        w.write_bits(target, kind.bits, old, signed=kind.is_signed)


def _swap(w: Writer, operands: tuple[Operand, ...], place: str, kind: Type) -> str:
    expected, wanted = w.bits(operands[2], kind.bits), w.bits(operands[3], kind.bits)
    pair = _compare_and_swap(w, place, kind, expected, wanted)
    return w.emit(f"extractvalue {{i{kind.bits}, i1}} {pair}, 0")


def _compare_and_swap(w: Writer, place: str, kind: Type, expected: str, wanted: str) -> str:
    word = f"i{kind.bits}"
    return w.emit(f"cmpxchg ptr {place}, {word} {expected}, {word} {wanted} seq_cst seq_cst, align {kind.bytes}")


def _update(w: Writer, verb: str, place: str, kind: Type, source: Operand) -> str:
    if not kind.is_float or verb not in ("add", "min", "max"):
        return _one_instruction(w, _integer_verb(verb, kind), place, kind, w.bits(source, kind.bits))
    value = w.read(source, kind)
    if kind in (F32, F64) and verb == "add":
        llvm = llvm_type(kind)
        old = w.emit(f"atomicrmw fadd ptr {place}, {llvm} {value} seq_cst, align {kind.bytes}")
        return w.to_bits(old, kind)

    def combined(old: str) -> str:
        if verb == "add":
            return w.emit(f"fadd {llvm_type(kind)} {old}, {value}")
        return w.math(f"{verb}imumnum", kind, old, value)

    return _loop(w, place, kind, combined)


def _one_instruction(w: Writer, verb: str, place: str, kind: Type, value: str) -> str:
    return w.emit(f"atomicrmw {verb} ptr {place}, i{kind.bits} {value} seq_cst, align {kind.bytes}")


def _integer_verb(verb: str, kind: Type) -> str:
    if verb in ("min", "max"):
        return verb if kind.kind is ScalarKind.SIGNED else f"u{verb}"
    return _INTEGER.get(verb, verb)


def _loop(w: Writer, place: str, kind: Type, combined: Callable[[str], str]) -> str:
    """Compute the new value from the old one, and retry while another thread wrote in between."""
    word, seen = f"i{kind.bits}", w.fresh("o")
    w.slots.append(f"  {seen} = alloca {word}")
    w.do(f"store {word} {w.emit(f'load atomic {word}, ptr {place} monotonic, align {kind.bytes}')}, ptr {seen}")
    again, after = w.block_name("again"), w.block_name("swapped")
    w.begin(again)
    old = w.emit(f"load {word}, ptr {seen}")
    new = w.to_bits(combined(w.from_bits(old, kind)), kind)
    pair = _compare_and_swap(w, place, kind, old, new)
    w.do(f"store {word} {w.emit(f'extractvalue {{{word}, i1}} {pair}, 0')}, ptr {seen}")
    w.do(f"br i1 {w.emit(f'extractvalue {{{word}, i1}} {pair}, 1')}, label %{after}, label %{again}")
    w.lines.append(f"{after}:")
    return old
