"""Matrices that a warp holds together: products, and moves between memory and registers.

A product is a call into the runtime, which knows which lane holds which elements of `mma`'s fragments. PTX leaves
the fragments of `wmma` to the implementation: here each lane holds neighbors of one row, and lanes follow in order.
"""

import re
from dataclasses import dataclass

from milligpu.softgpu.llvm.memory import space
from milligpu.softgpu.llvm.table import instruction
from milligpu.softgpu.llvm.warp import shuffled, synchronise
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction, Operand, Vector

# Element types, numbered as in `matrix.c`, and their bits.
KINDS = ("f16", "bf16", "tf32", "f32", "f64", "s8", "u8", "s4", "u4", "s32", "e4m3", "e5m2")
_BITS = {"f64": 64, "tf32": 32, "f32": 32, "s32": 32, "f16": 16, "bf16": 16, "s4": 4, "u4": 4}
# Shapes of `mma` by input type, and the types of their sums.
_SHAPES = {
    "f16": (("m16n8k8", "m16n8k16"), ("f16", "f32")),
    "bf16": (("m16n8k8", "m16n8k16"), ("f32",)),
    "tf32": (("m16n8k4", "m16n8k8"), ("f32",)),
    "f64": (("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), ("f64",)),
    "s8": (("m8n8k16", "m16n8k16", "m16n8k32"), ("s32",)),
    "s4": (("m8n8k32", "m16n8k32", "m16n8k64"), ("s32",)),
    "e4m3": (("m16n8k16", "m16n8k32"), ("f16", "f32")),
}
_WIDE = ("m16n16k16", "m32n8k16", "m8n32k16")
_WMMA_SHAPES = {
    "f16": (_WIDE, ("f16", "f32")),
    "bf16": (_WIDE, ("f32",)),
    "tf32": (("m16n16k8",), ("f32",)),
    "f64": (("m8n8k4",), ("f64",)),
    "s8": (_WIDE, ("s32",)),
}
_SIBLINGS = {"u8": "s8", "u4": "s4", "e5m2": "e4m3"}


@dataclass(frozen=True, slots=True)
class Fragment:
    """The part of a matrix that one lane holds."""

    kind: str
    count: int
    """Number of elements."""

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return _BITS.get(self.kind, 8)

    @property
    def width(self) -> int:
        """Bits of a register."""
        return max(32, self.bits)

    @property
    def registers(self) -> int:
        """The number of registers that hold the fragment."""
        return self.count * self.bits // self.width


def _shape(ins: Instruction) -> tuple[str, int, int, int]:
    name = next((part for part in ins.modifiers if re.fullmatch(r"m\d+n\d+k\d+", part)), "m0n0k0")
    return name, *(int(number) for number in re.findall(r"\d+", name))  # pyright: ignore[reportReturnType]


def _kinds(ins: Instruction) -> list[str]:
    return [part for part in ins.modifiers if part in KINDS]


def _fragment(ins: Instruction, matrix: str, kind: str, *, free: bool) -> Fragment:
    """Return the fragments of A, B and the sums; `free` means `wmma`, where f16 inputs have sixteen elements."""
    _, m, n, k = _shape(ins)
    size = {"a": m * k, "b": k * n}.get(matrix, m * n)
    return Fragment(kind, 16 if free and kind == "f16" and matrix in "ab" else size // 32)


@instruction("mma")
def _product(w: Writer, ins: Instruction) -> None:
    kinds = _kinds(ins)
    if len(kinds) != 4 or ins.has("sp") or not (ins.has("row") and ins.has("col")):
        raise w.refuse(f"{ins}: unsupported")
    d, a, b, c = kinds
    _multiply(w, ins, (d, a, b, c), free=False)


def _multiply(w: Writer, ins: Instruction, kinds: tuple[str, str, str, str], *, free: bool) -> None:
    d, a, b, c = kinds
    name, m, n, k = _shape(ins)
    known, sums = (_WMMA_SHAPES if free else _SHAPES).get(_SIBLINGS.get(a, a), ((), ()))
    if name not in known or c not in sums or d not in sums or _SIBLINGS.get(a, a) != _SIBLINGS.get(b, b):
        raise w.refuse(f"{ins}: unsupported")
    fields = [(m // 8, 0), (n // 8, 3), (k // 4, 6), (free, 27), (ins.has("satfinite"), 28)]
    fields += [(KINDS.index(each), at) for each, at in ((a, 11), (b, 15), (c, 19), (d, 23))]
    code = sum(value << at for value, at in fields)
    w.needs_fibers = True
    inputs = zip("abc", (a, b, c), (1, 2, 3), strict=True)
    places = [_spill(w, w.operand(ins, at), _fragment(ins, matrix, kind, free=free)) for matrix, kind, at in inputs]
    result = _fragment(ins, "d", d, free=free)
    target = w.fresh("d")
    w.slots.append(f"  {target} = alloca [{result.registers} x i{result.width}], align 8")
    pointers = [("ptr", each) for each in (target, *places)]
    w.intrinsic("sg_mma", "void", ("ptr", "%fiber"), ("i32", str(code)), *pointers)
    for at, item in enumerate(_items(w, w.operand(ins, 0), result.registers)):
        place = w.emit(f"getelementptr i{result.width}, ptr {target}, i64 {at}")
        w.write_bits(item, result.width, w.emit(f"load i{result.width}, ptr {place}"))


def _items(w: Writer, operand: Operand, count: int) -> tuple[Operand, ...]:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    if len(items) != count:
        raise w.wrong(f"expected {count} registers in braces, found {len(items)}")
    return items


def _spill(w: Writer, operand: Operand, fragment: Fragment) -> str:
    """Store a fragment in memory, where the runtime reads it."""
    place, word = w.fresh("m"), f"i{fragment.width}"
    w.slots.append(f"  {place} = alloca [{fragment.registers} x {word}], align 8")
    for at, item in enumerate(_items(w, operand, fragment.registers)):
        to = w.emit(f"getelementptr {word}, ptr {place}, i64 {at}")
        w.do(f"store {word} {w.bits(item, fragment.width)}, ptr {to}")
    return place


@instruction("wmma")
def _wmma(w: Writer, ins: Instruction) -> None:
    kinds = _kinds(ins)
    verb = ins.modifiers[0] if ins.modifiers else ""
    if verb == "mma" and len(kinds) == 2:  # of f16, which is then not said
        _multiply(w, ins, (kinds[0], "f16", "f16", kinds[1]), free=True)
    elif verb == "mma" and len(kinds) == 4:
        _multiply(w, ins, (kinds[0], kinds[1], kinds[2], kinds[3]), free=True)
    elif verb in ("load", "store") and len(kinds) == 1:
        _move_fragment(w, ins, kinds[0], store=verb == "store")
    else:
        raise w.refuse(f"{ins}: unsupported")


def _move_fragment(w: Writer, ins: Instruction, kind: str, *, store: bool) -> None:
    matrix = ins.modifiers[1] if len(ins.modifiers) > 1 else ""
    name, m, n, k = _shape(ins)
    fragment = _fragment(ins, matrix, kind, free=True)
    rows, columns = {"a": (m, k), "b": (k, n), "c": (m, n), "d": (m, n)}.get(matrix, (0, 0))
    if not rows * columns or fragment.bits < 8 or not any(name in shapes for shapes, _ in _WMMA_SHAPES.values()):
        raise w.refuse(f"{ins}: unsupported")
    by_rows = ins.has("row")
    at_address, at_registers = (0, 1) if store else (1, 0)
    origin = w.pointer(w.operand(ins, at_address), space(ins))
    stride = w.bits(ins.operands[2], 32) if len(ins.operands) > 2 else str(columns if by_rows else rows)
    items = _items(w, w.operand(ins, at_registers), fragment.registers)
    first = w.emit(f"mul i32 {w.emit('and i32 %linear, 31')}, {fragment.count}")
    places: list[str] = []
    for at in range(fragment.count):
        index = w.emit(f"and i32 {w.emit(f'add i32 {first}, {at}')}, {rows * columns - 1}")
        row = w.emit(f"lshr i32 {index}, {columns.bit_length() - 1}")
        column = w.emit(f"and i32 {index}, {columns - 1}")
        outer, inner = (row, column) if by_rows else (column, row)
        offset = w.emit(f"add i32 {w.emit(f'mul i32 {outer}, {stride}')}, {inner}")
        places.append(w.emit(f"getelementptr i{fragment.bits}, ptr {origin}, i64 {w.resize(offset, 32, 64)}"))
    (_store if store else _load)(w, fragment, items, places)
    synchronise(w)


def _load(w: Writer, fragment: Fragment, items: tuple[Operand, ...], places: list[str]) -> None:
    bits, width = fragment.bits, fragment.width
    values = [w.resize(w.emit(f"load i{bits}, ptr {place}"), bits, width) for place in places]
    packed = width // bits
    for at, item in enumerate(items):
        total = values[at * packed]
        for part in range(1, packed):
            above = w.emit(f"shl i{width} {values[at * packed + part]}, {bits * part}")
            total = w.emit(f"or i{width} {total}, {above}")
        w.write_bits(item, width, total)


def _store(w: Writer, fragment: Fragment, items: tuple[Operand, ...], places: list[str]) -> None:
    bits, width = fragment.bits, fragment.width
    packed = width // bits
    words = [w.bits(item, width) for item in items]
    for at, place in enumerate(places):
        down = w.emit(f"lshr i{width} {words[at // packed]}, {bits * (at % packed)}")
        w.do(f"store i{bits} {w.resize(down, width, bits)}, ptr {place}")


@instruction("ldmatrix", "stmatrix")
def _rows(w: Writer, ins: Instruction) -> None:
    """Move 8x8 matrices of 16 bits: a lane gives the address of one row and holds two elements of another."""
    if not ins.has("m8n8") or not ins.has("b16"):
        raise w.refuse(f"{ins}: unsupported")
    count = next((int(part[1:]) for part in ins.modifiers if part in ("x1", "x2", "x4")), 1)
    loads = ins.opcode == "ldmatrix"
    address = w.pointer(w.operand(ins, 1 if loads else 0), space(ins))
    base = w.emit("ptrtoint ptr %shared to i64")
    offset = w.resize(w.emit(f"sub i64 {w.emit(f'ptrtoint ptr {address} to i64')}, {base}"), 64, 32)
    lane = w.emit("and i32 %linear, 31")
    group, member = w.emit(f"lshr i32 {lane}, 2"), w.emit(f"and i32 {lane}, 3")
    for at, item in enumerate(_items(w, w.operand(ins, 0 if loads else 1), count)):
        places: list[str] = []
        for half in (0, 1):
            pair = w.emit(f"add i32 {w.emit(f'shl i32 {member}, 1')}, {half}")
            row, column = (pair, group) if ins.has("trans") else (group, pair)
            # The lane with the number of the row has its address.
            start = shuffled(w, offset, w.emit(f"add i32 {row}, {8 * at}"))
            place = w.emit(f"add i32 {start}, {w.emit(f'shl i32 {column}, 1')}")
            places.append(w.emit(f"getelementptr i8, ptr %shared, i64 {w.resize(place, 32, 64)}"))
        _load_pair(w, item, places) if loads else _store_pair(w, item, places)
    synchronise(w)


def _load_pair(w: Writer, item: Operand, places: list[str]) -> None:
    low, high = (w.resize(w.emit(f"load i16, ptr {place}"), 16, 32) for place in places)
    w.write_bits(item, 32, w.emit(f"or i32 {low}, {w.emit(f'shl i32 {high}, 16')}"))


def _store_pair(w: Writer, item: Operand, places: list[str]) -> None:
    value = w.bits(item, 32)
    for half, place in enumerate(places):
        w.do(f"store i16 {w.resize(w.emit(f'lshr i32 {value}, {16 * half}'), 32, 16)}, ptr {place}")


@instruction("movmatrix")
def _transpose(w: Writer, ins: Instruction) -> None:
    """Transpose an 8x8 matrix of 16 bits: this lane's two elements come from two other lanes."""
    if not (ins.has("m8n8") and ins.has("trans") and ins.has("b16")):
        raise w.refuse(f"{ins}: unsupported")
    value = w.bits(w.operand(ins, 1), 32)
    lane = w.emit("and i32 %linear, 31")
    row, member = w.emit(f"lshr i32 {lane}, 2"), w.emit(f"and i32 {lane}, 3")
    shift = w.emit(f"shl i32 {w.emit(f'and i32 {row}, 1')}, 4")
    parts: list[str] = []
    for half in (0, 1):
        column = w.emit(f"add i32 {w.emit(f'shl i32 {member}, 1')}, {half}")
        holder = w.emit(f"add i32 {w.emit(f'shl i32 {column}, 2')}, {w.emit(f'lshr i32 {row}, 1')}")
        found = w.emit(f"lshr i32 {shuffled(w, value, holder)}, {shift}")
        parts.append(w.emit(f"and i32 {found}, 65535"))
    w.write_bits(w.operand(ins, 0), 32, w.emit(f"or i32 {parts[0]}, {w.emit(f'shl i32 {parts[1]}, 16')}"))
