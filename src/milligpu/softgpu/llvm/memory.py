"""Loads, stores, atomics and asynchronous copies."""

from milligpu.softgpu.llvm.table import instruction, last_type, one_of
from milligpu.softgpu.llvm.writer import Writer, llvm_type
from milligpu.softgpu.ptx.syntax import Address, Instruction, Literal, Name, Operand, Vector
from milligpu.softgpu.ptx.types import Kind, Type

_SPACES = ("global", "shared", "local", "param", "const")
_ORDERED = ("volatile", "relaxed", "acquire", "release", "mmio")


def _space(ins: Instruction) -> str:
    for part in ins.modifiers:
        stem = part.split("::")[0]
        if stem in _SPACES:
            return stem
    return "generic"


def _lanes(w: Writer, operand: Operand, count: int) -> tuple[Operand, ...]:
    if count == 1:
        return (operand,)
    if not isinstance(operand, Vector) or len(operand.items) != count:
        raise w.wrong(f"expected {count} registers in braces")
    return operand.items


def _vector_width(ins: Instruction) -> int:
    return next((int(part[1:]) for part in ins.modifiers if part in ("v2", "v4", "v8")), 1)


@instruction("ld", "ldu")
def _load(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    pointer = w.pointer(w.operand(ins, 1), _space(ins))
    word = "load volatile" if any(ins.has(each) for each in _ORDERED) else "load"
    values: list[str] = []
    targets = _lanes(w, w.operand(ins, 0), _vector_width(ins))
    bits = max(8, kind.bits)
    for at in range(len(targets)):
        place = w.emit(f"getelementptr i8, ptr {pointer}, i64 {at * kind.bytes}") if at else pointer
        values.append(w.emit(f"{word} i{bits}, ptr {place}, align {kind.bytes}"))
    for target, value in zip(targets, values, strict=True):
        w.write_bits(target, bits, value, signed=kind.is_signed)


@instruction("st")
def _store(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    pointer = w.pointer(w.operand(ins, 0), _space(ins))
    word = "store volatile" if any(ins.has(each) for each in _ORDERED) else "store"
    bits = max(8, kind.bits)
    for at, source in enumerate(_lanes(w, w.operand(ins, 1), _vector_width(ins))):
        place = w.emit(f"getelementptr i8, ptr {pointer}, i64 {at * kind.bytes}") if at else pointer
        w.do(f"{word} i{bits} {w.bits(source, bits)}, ptr {place}, align {kind.bytes}")


@instruction("atom", "red")
def _atomic(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    if (
        _vector_width(ins) != 1
        or kind.kind is Kind.BFLOAT
        or (ins.has("noftz") and kind.lanes == 2 and ins.has("min"))
    ):
        raise w.refuse(f"{ins}: unsupported")
    verb = one_of(w, ins, "add", "min", "max", "and", "or", "xor", "inc", "dec", "exch", "cas")
    operands: tuple[Operand, ...] = ins.operands if ins.opcode == "atom" else (Name("_"), *ins.operands)
    if len(operands) < (4 if verb == "cas" else 3):
        raise w.wrong(f"{ins}: too few operands")
    pointer = w.pointer(operands[1], _space(ins))
    if verb == "cas":
        expected, wanted = w.bits(operands[2], kind.bits), w.bits(operands[3], kind.bits)
        pair = w.emit(f"cmpxchg ptr {pointer}, i{kind.bits} {expected}, i{kind.bits} {wanted} seq_cst seq_cst")
        old = w.emit(f"extractvalue {{i{kind.bits}, i1}} {pair}, 0")
    elif kind.is_float and verb in ("add", "min", "max"):
        llvm = llvm_type(kind)
        name = {"add": "fadd", "min": "fmin", "max": "fmax"}[verb]
        value = w.read(operands[2], kind)
        align = kind.bytes
        old = w.to_bits(w.emit(f"atomicrmw {name} ptr {pointer}, {llvm} {value} seq_cst, align {align}"), kind)
    else:
        name = _integer_verb(verb, kind)
        old = w.emit(f"atomicrmw {name} ptr {pointer}, i{kind.bits} {w.bits(operands[2], kind.bits)} seq_cst")
    w.write_bits(operands[0], kind.bits, old, signed=kind.is_signed)


def _integer_verb(verb: str, kind: Type) -> str:
    if verb in ("min", "max"):
        return verb if kind.is_signed else f"u{verb}"
    return {"inc": "uinc_wrap", "dec": "udec_wrap", "exch": "xchg"}.get(verb, verb)


@instruction("membar", "fence")
def _fence(w: Writer, ins: Instruction) -> None:  # noqa: ARG001
    w.do("fence seq_cst")


@instruction("prefetch", "prefetchu", "discard", "applypriority")
def _hint(w: Writer, ins: Instruction) -> None:
    """Hints about caches that a CPU does not have in this form."""


@instruction("cp")
def _copy_async(w: Writer, ins: Instruction) -> None:
    """`cp.async` done at once: waiting for it later then has nothing to do."""
    if not ins.has("async") or ins.has("bulk") or ins.has("mbarrier"):
        raise w.refuse(f"{ins}: unsupported")
    if any(ins.has(each) for each in ("commit_group", "wait_group", "wait_all")):
        return
    target, source, size = (w.operand(ins, at) for at in (0, 1, 2))
    if not isinstance(source, Address) or not isinstance(size, Literal):
        raise w.wrong(f"{ins}: wrong operands")
    to, origin = w.pointer(target, "shared"), w.pointer(source, "global")
    count = w.bits(ins.operands[3], 32) if len(ins.operands) > 3 else str(size.value)
    name = "llvm.memset.p0.i32"
    w.shared.intrinsics[name] = f"declare void @{name}(ptr, i8, i32, i1 immarg)"
    w.do(f"call void @{name}(ptr {to}, i8 0, i32 {size.value}, i1 false)")
    name = "llvm.memcpy.p0.p0.i32"
    w.shared.intrinsics[name] = f"declare void @{name}(ptr, ptr, i32, i1 immarg)"
    w.do(f"call void @{name}(ptr {to}, ptr {origin}, i32 {count}, i1 false)")
