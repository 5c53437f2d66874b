"""Asynchronous copies, and the barriers in shared memory that count them.

Here a copy runs at once, so a later wait for it returns immediately.
"""

from milligpu.softgpu.llvm.memory import space
from milligpu.softgpu.llvm.table import instruction
from milligpu.softgpu.llvm.writer import Writer
from milligpu.softgpu.ptx.syntax import Address, Instruction, Literal, Name, Operand

_GROUPS = ("commit_group", "wait_group", "wait_all")


@instruction("cp")
def _copy(w: Writer, ins: Instruction) -> None:
    if not ins.has("async") or ins.has("tensor") or ins.has("prefetch"):
        raise w.refuse(f"{ins}: unsupported")
    if any(ins.has(each) for each in _GROUPS):
        return
    if ins.has("mbarrier"):
        # The arrival that the copies trigger. Without `noinc`, the barrier expects one more arrival for it.
        if ins.has("noinc"):
            _arrive(w, w.operand(ins, 0), space(ins), "1")
        w.needs_fibers = True
    elif ins.has("bulk"):
        _copy_bulk(w, ins)
    else:
        _copy_few(w, ins)


def _copy_few(w: Writer, ins: Instruction) -> None:
    target, source, size = (w.operand(ins, at) for at in (0, 1, 2))
    if not isinstance(source, Address) or not isinstance(size, Literal):
        raise w.wrong(f"{ins}: wrong operands")
    to, origin = w.pointer(target, "shared"), w.pointer(source, "global")
    hinted = any(part.endswith("cache_hint") for part in ins.modifiers)
    count = w.bits(ins.operands[3], 32) if len(ins.operands) > 3 + hinted else str(size.value)
    name = "llvm.memset.p0.i32"
    w.shared.intrinsics[name] = f"declare void @{name}(ptr, i8, i32, i1 immarg)"
    w.do(f"call void @{name}(ptr {to}, i8 0, i32 {size.value}, i1 false)")
    _copy_bytes(w, to, origin, count)


def _copy_bytes(w: Writer, to: str, origin: str, count: str) -> None:
    name = "llvm.memcpy.p0.p0.i32"
    w.shared.intrinsics[name] = f"declare void @{name}(ptr, ptr, i32, i1 immarg)"
    w.do(f"call void @{name}(ptr {to}, ptr {origin}, i32 {count}, i1 false)")


def _copy_bulk(w: Writer, ins: Instruction) -> None:
    """Copy between global and shared memory; a barrier counts the copied bytes."""
    spaces = [part.split("::")[0] for part in ins.modifiers if part.split("::")[0] in ("shared", "global")]
    if len(spaces) != 2 or ins.has("multicast::cluster"):
        raise w.refuse(f"{ins}: unsupported")
    to, origin = w.pointer(w.operand(ins, 0), spaces[0]), w.pointer(w.operand(ins, 1), spaces[1])
    count = w.bits(w.operand(ins, 2), 32)
    _copy_bytes(w, to, origin, count)
    if any(part.startswith("mbarrier") for part in ins.modifiers):
        _arrive(w, w.operand(ins, 3), "shared", "0", bytes_=w.emit(f"sub i32 0, {count}"))


def _arrive(w: Writer, barrier: Operand, where: str, count: str, *, drop: bool = False, bytes_: str = "0") -> str:
    """Arrive at a barrier; returns its state before the arrival."""
    w.needs_fibers = True
    pointer = w.pointer(barrier, where)
    arguments = [("ptr", pointer), ("i32", count), ("i32", str(int(drop))), ("i32", bytes_)]
    return w.intrinsic("sg_mbarrier_arrive", "i64", *arguments)


@instruction("mbarrier")
def _barrier(w: Writer, ins: Instruction) -> None:
    w.needs_fibers = True
    where = space(ins)
    match ins.modifiers[0] if ins.modifiers else "":
        case "init":
            count = ("i32", w.bits(w.operand(ins, 1), 32))
            w.intrinsic("sg_mbarrier_init", "void", ("ptr", w.pointer(w.operand(ins, 0), where)), count)
        case "inval":
            pass
        case "expect_tx" | "complete_tx" as verb:
            bytes_ = w.bits(w.operand(ins, 1), 32)
            sign = bytes_ if verb == "expect_tx" else w.emit(f"sub i32 0, {bytes_}")
            _arrive(w, w.operand(ins, 0), where, "0", bytes_=sign)
        case "arrive" | "arrive_drop" as verb:
            _arrive_by(w, ins, where, drop=verb == "arrive_drop")
        case "test_wait" | "try_wait":
            _wait(w, ins, where)
        case "pending_count":
            state = w.bits(w.operand(ins, 1), 64)
            w.write_bits(w.operand(ins, 0), 32, w.resize(w.emit(f"and i64 {state}, 1048575"), 64, 32))
        case _:
            raise w.refuse(f"{ins}: unsupported")


def _arrive_by(w: Writer, ins: Instruction, where: str, *, drop: bool) -> None:
    """Translate `arrive`, with or without a register for the state, with a count of threads or of bytes."""
    operands = ins.operands if isinstance(w.operand(ins, 0), Name) else (Name("_"), *ins.operands)
    number = w.bits(operands[2], 32) if len(operands) > 2 else None
    if len(operands) < 2:
        raise w.wrong(f"{ins}: too few operands")
    if ins.has("expect_tx"):
        state = _arrive(w, operands[1], where, "1", drop=drop, bytes_=number or "0")
    else:
        state = _arrive(w, operands[1], where, number or "1", drop=drop)
    w.write_bits(operands[0], 64, state)


def _wait(w: Writer, ins: Instruction, where: str) -> None:
    if ins.has("parity"):
        phase = w.emit(f"and i32 {w.bits(w.operand(ins, 2), 32)}, 1")
    else:
        phase = w.resize(w.emit(f"lshr i64 {w.bits(w.operand(ins, 2), 64)}, 63"), 64, 32)
    pointer = w.pointer(w.operand(ins, 1), where)
    over = w.intrinsic("sg_mbarrier_wait", "i32", ("ptr", "%fiber"), ("ptr", pointer), ("i32", phase))
    w.write_bits(w.operand(ins, 0), 1, w.resize(over, 32, 1))
