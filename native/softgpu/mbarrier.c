/* Barriers in shared memory. All threads of a block run on one CPU thread, so nothing here needs to be atomic. The
 * layout of the 64 bits is free to choose: pending arrivals, arrivals of the next phase, bytes in transit, the
 * phase. */
#include "engine.h"

enum { COUNT_BITS = 20, COUNT_MASK = (1 << COUNT_BITS) - 1, BYTES_AT = 2 * COUNT_BITS };
/* Bytes are counted from here, because more bytes may have arrived than were announced. */
enum { NO_BYTES = 1 << 22, BYTES_MASK = (1 << 23) - 1 };

static uint64_t pack(uint64_t pending, uint64_t expected, uint64_t bytes, uint64_t phase)
{
    return (pending & COUNT_MASK) | (expected & COUNT_MASK) << COUNT_BITS | (bytes & BYTES_MASK) << BYTES_AT
           | phase << 63;
}

void sg_mbarrier_init(uint64_t *barrier, uint32_t count)
{
    *barrier = pack(count, count, NO_BYTES, 0);
}

/* `count` threads arrive, permanently if they drop out; `bytes` is added to the awaited bytes and may be negative.
 * Returns the previous value. */
uint64_t sg_mbarrier_arrive(uint64_t *barrier, uint32_t count, uint32_t drop, int32_t bytes)
{
    uint64_t before = *barrier, pending = before & COUNT_MASK, expected = before >> COUNT_BITS & COUNT_MASK;
    uint64_t awaited = (before >> BYTES_AT & BYTES_MASK) + (uint64_t)bytes, phase = before >> 63;
    if (count > pending)
        fault_raise(CUDA_ERROR_ILLEGAL_INSTRUCTION);
    pending -= count;
    expected -= drop ? count : 0;
    if (!pending && awaited == NO_BYTES) {
        pending = expected;
        phase ^= 1;
    }
    *barrier = pack(pending, expected, awaited, phase);
    return before;
}

/* Whether the phase is over. If not, every other thread runs before this one asks again. */
uint32_t sg_mbarrier_wait(struct sg_fiber *fiber, const uint64_t *barrier, uint32_t phase)
{
    if (*barrier >> 63 == phase)
        fiber_pause(fiber);
    return *barrier >> 63 != phase;
}
