"""What threads do together: barriers, shuffles, votes, reductions and matrix products.

Each is a call into the runtime, where a thread waits for the others on its fiber. The codes mirror `abi.h`.
"""

import re

from milligpu.softgpu.llvm.table import instruction, last_type, one_of, types
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction, Name, Operand, Pair, Vector
from milligpu.softgpu.ptx.types import S32

SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}
VOTES = {"all": 4, "any": 5, "uni": 6, "ballot": 7}
SYNC, ACTIVE = 8, 9
REDUCTIONS = {"add": 10, "min": 11, "max": 12, "smin": 13, "smax": 14, "and": 15, "or": 16, "xor": 17}
MATCH_ANY, MATCH_ALL = 18, 19
BARRIER_REDUCTIONS = {"popc": 0, "and": 1, "or": 2}
# (shape, accumulator, input) to the code of the product.
PRODUCTS = {
    ("m16n8k16", "f32", "f16"): 1,
    ("m16n8k16", "f16", "f16"): 2,
    ("m16n8k16", "f32", "bf16"): 3,
    ("m16n8k8", "f32", "f16"): 4,
    ("m16n8k8", "f16", "f16"): 5,
    ("m16n8k8", "f32", "tf32"): 6,
}
_FULL = "-1"


@instruction("bar", "barrier")
def _barrier(w: Writer, ins: Instruction) -> None:
    w.needs_fibers = True
    if ins.has("warp"):
        _warp(w, SYNC, w.warp_word(w.operand(ins, 0)), "0")
    elif ins.has("red"):
        how = one_of(w, ins, *BARRIER_REDUCTIONS)
        count = w.warp_word(ins.operands[2]) if len(ins.operands) > 3 else "0"
        truth = w.resize(w.bits(w.operand(ins, len(ins.operands) - 1), 1), 1, 32)
        barrier = w.warp_word(w.operand(ins, 1))
        call = [("ptr", "%fiber"), ("i32", barrier), ("i32", count), ("i32", str(BARRIER_REDUCTIONS[how]))]
        result = w.intrinsic("sg_barrier_reduce", "i32", *call, ("i32", truth))
        if how == "popc":
            w.write_bits(w.operand(ins, 0), 32, result)
        else:
            w.write_bits(w.operand(ins, 0), 1, w.resize(result, 32, 1))
    elif ins.has("sync") or not ins.modifiers:
        barrier = w.warp_word(ins.operands[0]) if ins.operands else "0"
        count = w.warp_word(ins.operands[1]) if len(ins.operands) > 1 else "0"
        w.intrinsic("sg_barrier", "void", ("ptr", "%fiber"), ("i32", barrier), ("i32", count))
    else:
        raise w.refuse(f"{ins}: unsupported")


def _warp(w: Writer, code: int, mask: str, value: str, *, lane: str = "0", clamp: str = "0") -> str:
    """All warp operations are one call; it returns the result, and for some a truth in bit 32."""
    w.needs_fibers = True
    arguments = [("ptr", "%fiber"), ("i32", str(code)), ("i32", mask), ("i64", value), ("i32", lane)]
    return w.intrinsic("sg_warp", "i64", *arguments, ("i32", clamp))


def _truth(w: Writer, result: str) -> str:
    return w.emit(f"trunc i64 {w.emit(f'lshr i64 {result}, 32')} to i1")


def _both(target: Operand) -> tuple[Operand, Name | None]:
    return (target.first, target.second) if isinstance(target, Pair) else (target, None)


@instruction("shfl")
def _shuffle(w: Writer, ins: Instruction) -> None:
    code = SHUFFLES[one_of(w, ins, *SHUFFLES)]
    value = w.resize(w.warp_word(w.operand(ins, 1)), 32, 64)
    lane, clamp = w.warp_word(w.operand(ins, 2)), w.warp_word(w.operand(ins, 3))
    mask = w.warp_word(w.operand(ins, 4)) if ins.has("sync") else _FULL
    result = _warp(w, code, mask, value, lane=lane, clamp=clamp)
    target, valid = _both(w.operand(ins, 0))
    w.write_bits(target, 32, w.resize(result, 64, 32))
    if valid is not None:
        w.write_bits(valid, 1, _truth(w, result))


@instruction("vote")
def _vote(w: Writer, ins: Instruction) -> None:
    mode = one_of(w, ins, *VOTES)
    value = w.resize(w.bits(w.operand(ins, 1), 1), 1, 64)
    mask = w.warp_word(w.operand(ins, 2)) if ins.has("sync") else _FULL
    result = w.resize(_warp(w, VOTES[mode], mask, value), 64, 32)
    if mode == "ballot":
        w.write_bits(w.operand(ins, 0), 32, result)
    else:
        w.write_bits(w.operand(ins, 0), 1, w.resize(result, 32, 1))


@instruction("activemask")
def _active(w: Writer, ins: Instruction) -> None:
    w.write_bits(w.operand(ins, 0), 32, w.resize(_warp(w, ACTIVE, "0", "0"), 64, 32))


@instruction("redux")
def _redux(w: Writer, ins: Instruction) -> None:
    verb = one_of(w, ins, "add", "min", "max", "and", "or", "xor")
    if last_type(w, ins) == S32 and verb in ("min", "max"):
        verb = f"s{verb}"
    elif last_type(w, ins).is_float:
        raise w.refuse(f"{ins}: unsupported")
    value = w.resize(w.warp_word(w.operand(ins, 1)), 32, 64)
    result = _warp(w, REDUCTIONS[verb], w.warp_word(w.operand(ins, 2)), value)
    w.write_bits(w.operand(ins, 0), 32, w.resize(result, 64, 32))


@instruction("match")
def _match(w: Writer, ins: Instruction) -> None:
    bits = last_type(w, ins).bits
    value = w.resize(w.bits(w.operand(ins, 1), bits), bits, 64)
    code = MATCH_ALL if ins.has("all") else MATCH_ANY
    result = _warp(w, code, w.warp_word(w.operand(ins, 2)), value)
    target, same = _both(w.operand(ins, 0))
    w.write_bits(target, 32, w.resize(result, 64, 32))
    if same is not None:
        w.write_bits(same, 1, _truth(w, result))


@instruction("mma")
def _matrix(w: Writer, ins: Instruction) -> None:
    shape = next((part for part in ins.modifiers if re.fullmatch(r"m\d+n\d+k\d+", part)), "")
    kinds = types(ins)
    code = PRODUCTS.get((shape, kinds[0].name, kinds[1].name)) if len(kinds) == 4 else None
    if code is None or not (ins.has("row") and ins.has("col")):
        raise w.refuse(f"{ins}: unsupported")
    w.needs_fibers = True
    fragments: list[str] = []
    for at in (1, 2, 3):
        operand = w.operand(ins, at)
        if not isinstance(operand, Vector):
            raise w.wrong(f"{ins}: expected registers in braces")
        fragments.append(_fragment(w, operand))
    target = w.operand(ins, 0)
    if not isinstance(target, Vector):
        raise w.wrong(f"{ins}: expected registers in braces")
    result = w.fresh("d")
    w.slots.append(f"  {result} = alloca [4 x i32]")
    pointers = [("ptr", each) for each in (result, *fragments)]
    w.intrinsic("sg_mma", "void", ("ptr", "%fiber"), ("i32", str(code)), *pointers)
    for at, item in enumerate(target.items[:4]):
        place = w.emit(f"getelementptr i32, ptr {result}, i64 {at}")
        w.write_bits(item, 32, w.emit(f"load i32, ptr {place}"))


def _fragment(w: Writer, vector: Vector) -> str:
    """A thread's part of a matrix, in memory; always room for the largest."""
    place = w.fresh("m")
    w.slots.append(f"  {place} = alloca [4 x i32]")
    for at, item in enumerate(vector.items[:4]):
        to = w.emit(f"getelementptr i32, ptr {place}, i64 {at}")
        w.do(f"store i32 {w.bits(item, 32)}, ptr {to}")
    return place
