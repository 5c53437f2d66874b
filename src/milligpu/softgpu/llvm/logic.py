"""Bits, shifts, comparisons and selection."""

from milligpu.softgpu.llvm.rounding import flushed
from milligpu.softgpu.llvm.table import instruction, last_type, types
from milligpu.softgpu.llvm.writer import Writer, llvm_type
from milligpu.softgpu.ptx.syntax import Instruction, Literal, Name, Operand, Pair
from milligpu.softgpu.ptx.types import Type

_UNSIGNED = {
    "eq": "eq",
    "ne": "ne",
    "lt": "ult",
    "le": "ule",
    "gt": "ugt",
    "ge": "uge",
    "lo": "ult",
    "ls": "ule",
    "hi": "ugt",
    "hs": "uge",
}
_SIGNED = {**_UNSIGNED, "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}
_FLOAT = {
    "eq": "oeq",
    "ne": "one",
    "lt": "olt",
    "le": "ole",
    "gt": "ogt",
    "ge": "oge",
    "num": "ord",
    "nan": "uno",
    "equ": "ueq",
    "neu": "une",
    "ltu": "ult",
    "leu": "ule",
    "gtu": "ugt",
    "geu": "uge",
}


@instruction("and", "or", "xor")
def _bitwise(w: Writer, ins: Instruction) -> None:
    bits = last_type(w, ins).bits
    a, b = w.bits(w.operand(ins, 1), bits), w.bits(w.operand(ins, 2), bits)
    w.write_bits(w.operand(ins, 0), bits, w.emit(f"{ins.opcode} i{bits} {a}, {b}"))


@instruction("not", "cnot")
def _complement(w: Writer, ins: Instruction) -> None:
    bits = last_type(w, ins).bits
    value = w.bits(w.operand(ins, 1), bits)
    if ins.opcode == "not":
        w.write_bits(w.operand(ins, 0), bits, w.emit(f"xor i{bits} {value}, -1"))
    else:
        zero = w.emit(f"icmp eq i{bits} {value}, 0")
        w.write_bits(w.operand(ins, 0), bits, w.emit(f"select i1 {zero}, i{bits} 1, i{bits} 0"))


@instruction("lop3")
def _lop3(w: Writer, ins: Instruction) -> None:
    """Compute any function of three bits, given as its truth table."""
    combine = next((part for part in ins.modifiers if part in ("and", "or")), None) if ins.has("BOOL") else None
    table = w.operand(ins, 4)
    if not isinstance(table, Literal) or (ins.has("BOOL") and combine is None):
        raise w.refuse(f"{ins}: unsupported")
    inputs = [w.bits(w.operand(ins, at), 32) for at in (1, 2, 3)]
    inverse = [w.emit(f"xor i32 {value}, -1") for value in inputs]
    total = "0"
    for row in range(8):
        if table.value >> row & 1:
            a, b, c = (inputs[at] if row >> (2 - at) & 1 else inverse[at] for at in range(3))
            term = w.emit(f"and i32 {w.emit(f'and i32 {a}, {b}')}, {c}")
            total = w.emit(f"or i32 {total}, {term}")
    first, second = destinations(w.operand(ins, 0))
    w.write_bits(first, 32, total)
    if combine is not None and second is not None:
        truth = w.emit(f"icmp ne i32 {total}, 0")
        w.write_bits(second, 1, w.emit(f"{combine} i1 {truth}, {w.bits(w.operand(ins, 5), 1)}"))


@instruction("shl", "shr")
def _shift(w: Writer, ins: Instruction) -> None:
    """Shift; by the width or more gives 0 or the sign, which LLVM leaves undefined."""
    kind = last_type(w, ins)
    bits = kind.bits
    value, count = w.bits(w.operand(ins, 1), bits), w.bits(w.operand(ins, 2), 32)
    large = w.emit(f"icmp uge i32 {count}, {bits}")
    safe = w.emit(f"select i1 {large}, i32 {bits - 1}, i32 {count}")
    amount = w.resize(safe, 32, bits)
    if ins.opcode == "shr" and kind.is_signed:
        result = w.emit(f"ashr i{bits} {value}, {amount}")
    else:
        shifted = w.emit(f"{'shl' if ins.opcode == 'shl' else 'lshr'} i{bits} {value}, {amount}")
        result = w.emit(f"select i1 {large}, i{bits} 0, i{bits} {shifted}")
    w.write(w.operand(ins, 0), kind, result)


@instruction("shf")
def _funnel(w: Writer, ins: Instruction) -> None:
    low, high = w.bits(w.operand(ins, 1), 32), w.bits(w.operand(ins, 2), 32)
    count = w.bits(w.operand(ins, 3), 32)
    if ins.has("wrap"):
        count = w.emit(f"and i32 {count}, 31")
    else:
        count = w.intrinsic("llvm.umin.i32", "i32", ("i32", count), ("i32", "32"))
    both = w.emit(f"or i64 {w.emit(f'shl i64 {w.resize(high, 32, 64)}, 32')}, {w.resize(low, 32, 64)}")
    amount = w.resize(count, 32, 64)
    if ins.has("l"):
        shifted = w.emit(f"lshr i64 {w.emit(f'shl i64 {both}, {amount}')}, 32")
    else:
        shifted = w.emit(f"lshr i64 {both}, {amount}")
    w.write_bits(w.operand(ins, 0), 32, w.resize(shifted, 64, 32))


@instruction("setp", "set")
def _compare(w: Writer, ins: Instruction) -> None:
    kinds = types(ins)
    if not kinds or not ins.modifiers:
        raise w.wrong(f"{ins}: no type")
    kind = kinds[-1]
    table = _FLOAT if kind.is_float else _SIGNED if kind.is_signed else _UNSIGNED
    condition = table.get(ins.modifiers[0])
    if condition is None:
        raise w.wrong(f"{ins}: unknown comparison")
    a, b = (flushed(w, ins, kind, w.read(w.operand(ins, at), kind)) for at in (1, 2))
    result = w.emit(f"{'fcmp' if kind.is_float else 'icmp'} {condition} {llvm_type(kind)} {a}, {b}")
    truths = (
        [w.emit(f"extractelement <2 x i1> {result}, i32 {at}") for at in (0, 1)] if kind.lanes == 2 else [result]
    )
    first, second = destinations(w.operand(ins, 0))
    if second is not None and kind.lanes == 1:
        truths.append(w.emit(f"xor i1 {result}, true"))
    combine = next((part for part in ins.modifiers if part in ("and", "or", "xor")), None)
    if combine:
        other = w.bits(w.operand(ins, 3), 1)
        truths = [w.emit(f"{combine} i1 {truth}, {other}") for truth in truths]
    if ins.opcode == "set":
        _write_truths(w, first, kinds[0], truths)
        return
    w.write_bits(first, 1, truths[0])
    if second is not None:
        w.write_bits(second, 1, truths[1])


def destinations(target: Operand) -> tuple[Operand, Name | None]:
    """Return the one or two registers that an instruction writes."""
    return (target.first, target.second) if isinstance(target, Pair) else (target, None)


def _write_truths(w: Writer, target: Operand, kind: Type, truths: list[str]) -> None:
    """Write 1.0 or all ones for true, in each lane of the register."""
    width = kind.bits // len(truths)
    yes = {"f16": "15360", "bf16": "16256", "f32": "1065353216"}.get(kind.name.removesuffix("x2"), "-1")
    total = "0"
    for at, truth in enumerate(truths):
        bits = w.resize(w.emit(f"select i1 {truth}, i{width} {yes}, i{width} 0"), width, kind.bits)
        total = w.emit(f"or i{kind.bits} {total}, {w.emit(f'shl i{kind.bits} {bits}, {width * at}')}")
    w.write_bits(target, kind.bits, total, signed=kind.is_signed)


@instruction("selp")
def _select(w: Writer, ins: Instruction) -> None:
    bits = last_type(w, ins).bits
    a, b = w.bits(w.operand(ins, 1), bits), w.bits(w.operand(ins, 2), bits)
    chosen = w.emit(f"select i1 {w.bits(w.operand(ins, 3), 1)}, i{bits} {a}, i{bits} {b}")
    w.write_bits(w.operand(ins, 0), bits, chosen)


@instruction("slct")
def _select_by_sign(w: Writer, ins: Instruction) -> None:
    kinds = types(ins)
    if len(kinds) != 2:
        raise w.wrong(f"{ins}: two types needed")
    bits = kinds[0].bits
    a, b, c = (
        w.bits(w.operand(ins, 1), bits),
        w.bits(w.operand(ins, 2), bits),
        flushed(w, ins, kinds[1], w.read(w.operand(ins, 3), kinds[1])),
    )
    test = f"fcmp oge float {c}, 0.0" if kinds[1].is_float else f"icmp sge i32 {c}, 0"
    w.write_bits(w.operand(ins, 0), bits, w.emit(f"select i1 {w.emit(test)}, i{bits} {a}, i{bits} {b}"))


@instruction("popc")
def _popc(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    count = w.math("ctpop", kind, w.bits(w.operand(ins, 1), kind.bits))
    w.write_bits(w.operand(ins, 0), 32, w.resize(count, kind.bits, 32))


def _leading_zeros(w: Writer, value: str, bits: int) -> str:
    count = w.intrinsic(f"llvm.ctlz.i{bits}", f"i{bits}", (f"i{bits}", value), ("i1", "false"))
    return w.resize(count, bits, 32)


@instruction("clz")
def _clz(w: Writer, ins: Instruction) -> None:
    bits = last_type(w, ins).bits
    w.write_bits(w.operand(ins, 0), 32, _leading_zeros(w, w.bits(w.operand(ins, 1), bits), bits))


@instruction("bfind")
def _bfind(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    bits = kind.bits
    value = w.bits(w.operand(ins, 1), bits)
    if kind.is_signed:
        value = w.emit(f"xor i{bits} {value}, {w.emit(f'ashr i{bits} {value}, {bits - 1}')}")
    zeros = _leading_zeros(w, value, bits)
    place = zeros if ins.has("shiftamt") else w.emit(f"sub i32 {bits - 1}, {zeros}")
    none = w.emit(f"icmp eq i{bits} {value}, 0")
    w.write_bits(w.operand(ins, 0), 32, w.emit(f"select i1 {none}, i32 -1, i32 {place}"))


@instruction("brev")
def _brev(w: Writer, ins: Instruction) -> None:
    kind = last_type(w, ins)
    w.write_bits(w.operand(ins, 0), kind.bits, w.math("bitreverse", kind, w.bits(w.operand(ins, 1), kind.bits)))


@instruction("bfe")
def _extract(w: Writer, ins: Instruction) -> None:
    """Extract bits [position, position+length); beyond the top, the sign or zeros fill in."""
    kind = last_type(w, ins)
    bits = kind.bits
    value = w.bits(w.operand(ins, 1), bits)
    position, length = (w.emit(f"and i32 {w.bits(w.operand(ins, at), 32)}, 255") for at in (2, 3))
    # In twice the width, and with the position clamped to the width, every shift is defined in LLVM.
    double = bits * 2
    position, length = (
        w.resize(w.intrinsic("llvm.umin.i32", "i32", ("i32", each), ("i32", str(bits))), 32, double)
        for each in (position, length)
    )
    shift = "ashr" if kind.is_signed else "lshr"
    down = w.emit(f"{shift} i{double} {w.resize(value, bits, double, signed=kind.is_signed)}, {position}")
    # Shift left until the field's top bit is the top bit, then back: this cuts out the field and extends its sign.
    gap = w.emit(f"sub i{double} {double}, {length}")
    none = w.emit(f"icmp eq i{double} {length}, 0")
    gap = w.emit(f"select i1 {none}, i{double} {bits}, i{double} {gap}")
    cut = w.emit(f"{shift} i{double} {w.emit(f'shl i{double} {down}, {gap}')}, {gap}")
    result = w.emit(f"select i1 {none}, i{double} 0, i{double} {cut}")
    w.write(w.operand(ins, 0), kind, w.resize(result, double, bits))


@instruction("bfi")
def _insert(w: Writer, ins: Instruction) -> None:
    bits = last_type(w, ins).bits
    a, b = w.bits(w.operand(ins, 1), bits), w.bits(w.operand(ins, 2), bits)
    mask = _mask(w, w.bits(w.operand(ins, 3), 32), w.bits(w.operand(ins, 4), 32), bits)
    position = w.emit(f"and i32 {w.bits(w.operand(ins, 3), 32)}, 255")
    safe = w.resize(w.intrinsic("llvm.umin.i32", "i32", ("i32", position), ("i32", str(bits - 1))), 32, bits)
    inserted = w.emit(f"and i{bits} {w.emit(f'shl i{bits} {a}, {safe}')}, {mask}")
    kept = w.emit(f"and i{bits} {b}, {w.emit(f'xor i{bits} {mask}, -1')}")
    w.write_bits(w.operand(ins, 0), bits, w.emit(f"or i{bits} {kept}, {inserted}"))


@instruction("bmsk")
def _bit_mask(w: Writer, ins: Instruction) -> None:
    mask = _mask(w, w.bits(w.operand(ins, 1), 32), w.bits(w.operand(ins, 2), 32), 32)
    w.write_bits(w.operand(ins, 0), 32, mask)


def _mask(w: Writer, position: str, length: str, bits: int) -> str:
    """Return `length` ones from `position` up, in twice the width so that every shift is defined."""
    double = bits * 2
    position, length = (w.emit(f"and i32 {value}, 255") for value in (position, length))
    position, length = (
        w.resize(w.intrinsic("llvm.umin.i32", "i32", ("i32", value), ("i32", str(bits))), 32, double)
        for value in (position, length)
    )
    ones = w.emit(f"sub i{double} {w.emit(f'shl i{double} 1, {length}')}, 1")
    return w.resize(w.emit(f"shl i{double} {ones}, {position}"), double, bits)


@instruction("szext")
def _extend(w: Writer, ins: Instruction) -> None:
    """Keep as many lower bits as the second operand says, and extend them with their sign or zeros."""
    kind = last_type(w, ins)
    value, length = w.bits(w.operand(ins, 1), 32), w.bits(w.operand(ins, 2), 32)
    count = w.emit(f"and i32 {length}, 31") if ins.has("wrap") else _at_most(w, length, 32)
    gap = w.emit(f"sub i32 32, {count}")
    none = w.emit(f"icmp eq i32 {count}, 0")
    safe = w.emit(f"select i1 {none}, i32 0, i32 {gap}")
    up = w.emit(f"shl i32 {value}, {safe}")
    down = w.emit(f"{'ashr' if kind.is_signed else 'lshr'} i32 {up}, {safe}")
    w.write_bits(w.operand(ins, 0), 32, w.emit(f"select i1 {none}, i32 0, i32 {down}"))


def _at_most(w: Writer, value: str, limit: int) -> str:
    return w.intrinsic("llvm.umin.i32", "i32", ("i32", value), ("i32", str(limit)))


@instruction("fns")
def _find_nth_set(w: Writer, ins: Instruction) -> None:
    mask, base, offset = (w.bits(w.operand(ins, at), 32) for at in (1, 2, 3))
    found = w.intrinsic("sg_find_nth_set", "i32", ("i32", mask), ("i32", base), ("i32", offset))
    w.write_bits(w.operand(ins, 0), 32, found)


# For the fixed modes: the source of each of the four result bytes, by the lower two bits of the third operand.
_PERMUTATIONS = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


@instruction("prmt")
def _permute(w: Writer, ins: Instruction) -> None:
    """Choose each of four result bytes from eight bytes, or replicate the sign of one."""
    a, b, chooser = (w.bits(w.operand(ins, at), 32) for at in (1, 2, 3))
    mode = next((_PERMUTATIONS[part] for part in ins.modifiers if part in _PERMUTATIONS), None)
    if mode is not None:
        chooser = _nibbles(w, mode, chooser)
    both = w.emit(f"or i64 {w.emit(f'shl i64 {w.resize(b, 32, 64)}, 32')}, {w.resize(a, 32, 64)}")
    total = "0"
    for byte in range(4):
        nibble = w.emit(f"lshr i32 {chooser}, {4 * byte}")
        shift = w.resize(w.emit(f"shl i32 {w.emit(f'and i32 {nibble}, 7')}, 3"), 32, 64)
        value = w.resize(w.emit(f"lshr i64 {both}, {shift}"), 64, 8)
        spread = w.emit(f"icmp ne i32 {w.emit(f'and i32 {nibble}, 8')}, 0")
        value = w.emit(f"select i1 {spread}, i8 {w.emit(f'ashr i8 {value}, 7')}, i8 {value}")
        total = w.emit(f"or i32 {total}, {w.emit(f'shl i32 {w.resize(value, 8, 32)}, {8 * byte}')}")
    w.write_bits(w.operand(ins, 0), 32, total)


def _nibbles(w: Writer, rows: tuple[tuple[int, ...], ...], row: str) -> str:
    """Write the bytes that a fixed mode chooses in the form of the free mode."""
    words = [sum(byte << 4 * at for at, byte in enumerate(choice)) for choice in rows]
    low = w.emit(f"and i32 {row}, 3")
    chosen = str(words[0])
    for at, value in enumerate(words[1:], 1):
        chosen = w.emit(f"select i1 {w.emit(f'icmp eq i32 {low}, {at}')}, i32 {value}, i32 {chosen}")
    return chosen
