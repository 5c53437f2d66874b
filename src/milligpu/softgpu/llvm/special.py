"""Special registers, such as a thread's index. Offsets mirror `struct sg_block` in `abi.h`."""

from milligpu.softgpu.llvm.work import clock
from milligpu.softgpu.llvm.writer import STATIC_SHARED, Writer

GRID, BLOCK, INDEX, THREADS, DYNAMIC_SHARED, SHARED, PARAMETERS = 0, 12, 24, 36, 40, 48, 56
BLOCK_BYTES = 104
# Address space that each worker has for a block's shared memory; more than any GPU offers.
SHARED_WINDOW = 1 << 20
_AXES = {".x": 0, ".y": 1, ".z": 2}
# A cluster is one block: there are as many clusters as blocks, and each block is the first of its cluster.
_VECTORS = {"%ntid": BLOCK, "%nctaid": GRID, "%ctaid": INDEX, "%nclusterid": GRID, "%clusterid": INDEX}
_CLUSTER = {"%cluster_ctaid": 0, "%cluster_nctaid": 1}
_CONSTANTS = {"%smid": 0, "%nsmid": 1, "WARP_SZ": 32, "%cluster_ctarank": 0, "%cluster_nctarank": 1}


def special(w: Writer, name: str) -> tuple[str, int]:
    """Return the value and its width in bits."""
    stem, axis = (name[:-2], name[-2:]) if name[-2:] in _AXES else (name, "")
    if stem == "%tid" and axis:
        return f"%tid{axis[1]}", 32
    if stem in _VECTORS and axis:
        return word(w, _VECTORS[stem] + 4 * _AXES[axis]), 32
    if stem in _CLUSTER and axis:
        return str(_CLUSTER[stem]), 32
    if name in _CONSTANTS:
        return str(_CONSTANTS[name]), 32
    return _lane(w, name) if name.startswith("%lane") else _other(w, name)


def word(w: Writer, offset: int) -> str:
    """Read a 32-bit field of the block; it is constant while a thread runs, so LLVM may hoist the load."""
    pointer = w.emit(f"getelementptr i8, ptr %block, i64 {offset}")
    return w.emit(f"load i32, ptr {pointer}, !invariant.load !0")


def _lane(w: Writer, name: str) -> tuple[str, int]:
    lane = w.emit("and i32 %linear, 31")
    match name:
        case "%laneid":
            return lane, 32
        case "%lanemask_eq":
            return w.emit(f"shl i32 1, {lane}"), 32
        case "%lanemask_lt":
            return w.emit(f"sub i32 {w.emit(f'shl i32 1, {lane}')}, 1"), 32
        case "%lanemask_ge":
            return w.emit(f"shl i32 -1, {lane}"), 32
        case "%lanemask_gt":
            return w.emit(f"shl i32 {w.emit(f'shl i32 -1, {lane}')}, 1"), 32
        case "%lanemask_le":
            above = w.emit(f"shl i32 {w.emit(f'shl i32 -1, {lane}')}, 1")
            return w.emit(f"xor i32 {above}, -1"), 32
        case _:
            raise w.refuse(f"unknown register {name}")


def _other(w: Writer, name: str) -> tuple[str, int]:
    match name:
        case "%warpid":
            return w.emit("lshr i32 %linear, 5"), 32
        case "%nwarpid":
            return w.emit(f"lshr i32 {w.emit(f'add i32 {word(w, THREADS)}, 31')}, 5"), 32
        case "%dynamic_smem_size":
            return word(w, DYNAMIC_SHARED), 32
        case "%total_smem_size":
            return w.emit(f"add i32 {word(w, DYNAMIC_SHARED)}, {STATIC_SHARED}"), 32
        case "%clock" | "%clock64" | "%clock_hi" | "%globaltimer" | "%globaltimer_lo" | "%globaltimer_hi":
            value = clock(w, cycles=name.startswith("%clock"))
            return (w.emit(f"lshr i64 {value}, 32") if name.endswith("_hi") else value), 64
        case "%gridid":
            return "0", 64
        case "%is_explicit_cluster":
            return "false", 1
        case _:
            raise w.refuse(f"unknown register {name}")
