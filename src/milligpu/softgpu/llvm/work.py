"""Code that counts its work, from which a GPU in modeled time derives how long the work takes.

Each thread has two counters: instructions, and nanoseconds slept. They live on its stack, where LLVM turns them
into registers and, in straight-line code, constants. A block sums up its threads: all instructions, those of the
busiest thread, and the longest sleep. Offsets mirror `struct sg_block` in `abi.h`.
"""

from milligpu.softgpu.llvm.writer import TICK, Writer

_TOTAL, _LONGEST, _SLEEP = 64, 72, 80
_SLEPT = "getelementptr i8, ptr %work, i64 8"

# What the loop over a block's threads does around each thread: without counting, and with it.
NO_COUNTS = {"$READONLY$": "readonly ", "$BEGIN$\n": "", "  $BEFORE$\n": "", "  $AFTER$\n": "", "$END$\n": ""}
LOOP_COUNTS = {
    "$READONLY$": "",
    "$BEGIN$\n": """  %work = alloca [2 x i64]
  %slept.at = getelementptr i8, ptr %work, i64 8
  %total.at = alloca i64
  %longest.at = alloca i64
  %sleep.at = alloca i64
  store i64 0, ptr %total.at
  store i64 0, ptr %longest.at
  store i64 0, ptr %sleep.at
""",
    "  $BEFORE$\n": "  store [2 x i64] zeroinitializer, ptr %work\n",
    "  $AFTER$\n": """  %did = load i64, ptr %work
  %slept = load i64, ptr %slept.at
  %total.old = load i64, ptr %total.at
  %total.new = add i64 %total.old, %did
  store i64 %total.new, ptr %total.at
  %longest.old = load i64, ptr %longest.at
  %longer = icmp ugt i64 %did, %longest.old
  %longest.new = select i1 %longer, i64 %did, i64 %longest.old
  store i64 %longest.new, ptr %longest.at
  %sleep.old = load i64, ptr %sleep.at
  %sleepier = icmp ugt i64 %slept, %sleep.old
  %sleep.new = select i1 %sleepier, i64 %slept, i64 %sleep.old
  store i64 %sleep.new, ptr %sleep.at
""",
    "$END$\n": "".join(
        f"  %{name}.end = load i64, ptr %{name}.at\n"
        f"  %{name}.to = getelementptr i8, ptr %block, i64 {offset}\n"
        f"  store i64 %{name}.end, ptr %{name}.to\n"
        for name, offset in (("total", _TOTAL), ("longest", _LONGEST), ("sleep", _SLEEP))
    ),
}
# The same for a thread on its fiber, where the runtime sums up.
FIBER_COUNTS = (
    "  %work = alloca [2 x i64]\n  store [2 x i64] zeroinitializer, ptr %work",
    f"  %slept.at = {_SLEPT}\n  %did = load i64, ptr %work\n  %slept = load i64, ptr %slept.at\n"
    "  call void @sg_work(ptr %fiber, i64 %did, i64 %slept)",
)


def with_counts(lines: list[str]) -> list[str]:
    """Count with one addition per basic block, at its first instruction."""
    result: list[str] = []
    place = ticks = 0
    for number, line in enumerate([*lines, "end:"]):
        if not line.startswith(" "):
            if ticks:
                result[place] = _add(number, ticks)
            ticks = 0
        if line == TICK:
            ticks += 1
            if ticks > 1:
                continue
            place = len(result)
        result.append(line)
    return result[:-1]


def _add(number: int, count: int) -> str:
    return (
        f"  %c{number}.a = load i64, ptr %work\n"
        f"  %c{number}.b = add i64 %c{number}.a, {count}\n"
        f"  store i64 %c{number}.b, ptr %work"
    )


def note_work(w: Writer) -> None:
    """Report a thread's work before it ends in the middle of a call."""
    if w.shared.timed:
        did, slept = _counters(w)
        w.intrinsic("sg_work", "void", ("ptr", "%fiber"), ("i64", did), ("i64", slept))


def sleep(w: Writer, nanoseconds: str) -> None:
    """Add to the thread's sleep time."""
    if not w.shared.timed:
        return
    place = w.emit(_SLEPT)
    longer = w.emit(f"add i64 {w.emit(f'load i64, ptr {place}')}, {w.resize(nanoseconds, 32, 64)}")
    w.do(f"store i64 {longer}, ptr {place}")


def clock(w: Writer, *, cycles: bool) -> str:
    """Read the time: the machine's clock, or in modeled time the thread's own."""
    if not w.shared.timed:
        return w.intrinsic("sg_clock", "i64")
    did, slept = _counters(w)
    arguments = [("ptr", "%block"), ("i64", did), ("i64", slept), ("i32", str(int(cycles)))]
    return w.intrinsic("sg_modelled_clock", "i64", *arguments)


def _counters(w: Writer) -> tuple[str, str]:
    return w.emit("load i64, ptr %work"), w.emit(f"load i64, ptr {w.emit(_SLEPT)}")
