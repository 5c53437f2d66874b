"""What the threads of a warp or block do together: barriers, shuffles, votes and reductions.

Each is a call into the runtime, where a thread waits for the others on its fiber. The codes mirror `abi.h`.
"""

from milligpu.softgpu.llvm.logic import destinations
from milligpu.softgpu.llvm.table import instruction, last_type, one_of
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Instruction
from milligpu.softgpu.ptx.types import S32

SHUFFLES = {"up": 0, "down": 1, "bfly": 2, "idx": 3}
VOTES = {"all": 4, "any": 5, "uni": 6, "ballot": 7}
SYNC, ACTIVE = 8, 9
REDUCTIONS = {"add": 10, "min": 11, "max": 12, "smin": 13, "smax": 14, "and": 15, "or": 16, "xor": 17}
MATCH_ANY, MATCH_ALL = 18, 19
# Above the barrier numbers that programs use.
CLUSTER_BARRIER = 16
BARRIER_REDUCTIONS = {"popc": 0, "and": 1, "or": 2}
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
    elif ins.has("cluster"):
        # A cluster is one block here; arriving also waits, so the wait itself does nothing.
        if ins.has("wait"):
            w.intrinsic("sg_barrier", "void", ("ptr", "%fiber"), ("i32", str(CLUSTER_BARRIER)), ("i32", "0"))
    elif ins.has("arrive"):
        barrier, count = w.warp_word(w.operand(ins, 0)), w.warp_word(w.operand(ins, 1))
        w.intrinsic("sg_barrier_arrive", "void", ("ptr", "%fiber"), ("i32", barrier), ("i32", count))
    elif ins.has("sync") or not ins.modifiers:
        barrier = w.warp_word(ins.operands[0]) if ins.operands else "0"
        count = w.warp_word(ins.operands[1]) if len(ins.operands) > 1 else "0"
        w.intrinsic("sg_barrier", "void", ("ptr", "%fiber"), ("i32", barrier), ("i32", count))
    else:
        raise w.refuse(f"{ins}: unsupported")


def _warp(w: Writer, code: int, mask: str, value: str, *, lane: str = "0", clamp: str = "0") -> str:
    """Call the runtime for any warp operation; returns the result, for some with a truth value in bit 32."""
    w.needs_fibers = True
    arguments = [("ptr", "%fiber"), ("i32", str(code)), ("i32", mask), ("i64", value), ("i32", lane)]
    return w.intrinsic("sg_warp", "i64", *arguments, ("i32", clamp))


def _truth(w: Writer, result: str) -> str:
    return w.emit(f"trunc i64 {w.emit(f'lshr i64 {result}, 32')} to i1")


def shuffled(w: Writer, value: str, lane: str) -> str:
    """Read 32 bits from another lane; all lanes must take part."""
    result = _warp(w, SHUFFLES["idx"], _FULL, w.resize(value, 32, 64), lane=lane, clamp="31")
    return w.resize(result, 64, 32)


def synchronise(w: Writer) -> None:
    """Wait for all lanes, so that their memory accesses are complete before any of them continues."""
    _warp(w, SYNC, _FULL, "0")


@instruction("shfl")
def _shuffle(w: Writer, ins: Instruction) -> None:
    code = SHUFFLES[one_of(w, ins, *SHUFFLES)]
    value = w.resize(w.warp_word(w.operand(ins, 1)), 32, 64)
    lane, clamp = w.warp_word(w.operand(ins, 2)), w.warp_word(w.operand(ins, 3))
    mask = w.warp_word(w.operand(ins, 4)) if ins.has("sync") else _FULL
    result = _warp(w, code, mask, value, lane=lane, clamp=clamp)
    target, valid = destinations(w.operand(ins, 0))
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
    """Match threads at the same instruction: the runtime recognizes it by its line."""
    who = _warp(w, ACTIVE, "0", "0", lane=str(w.line))
    w.write_bits(w.operand(ins, 0), 32, w.resize(who, 64, 32))


@instruction("elect")
def _elect(w: Writer, ins: Instruction) -> None:
    """Elect the lowest lane of the mask."""
    mask = w.warp_word(w.operand(ins, 1))
    _warp(w, SYNC, mask, "0")
    leader = w.intrinsic("llvm.cttz.i32", "i32", ("i32", mask), ("i1", "false"))
    first, second = destinations(w.operand(ins, 0))
    w.write_bits(first, 32, leader)
    if second is not None:
        w.write_bits(second, 1, w.emit(f"icmp eq i32 {leader}, {w.emit('and i32 %linear, 31')}"))


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
    target, same = destinations(w.operand(ins, 0))
    w.write_bits(target, 32, w.resize(result, 64, 32))
    if same is not None:
        w.write_bits(same, 1, _truth(w, result))
