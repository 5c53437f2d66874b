/* Shared by the generated wrappers of copies and fills. */
#pragma once
#include "enforce.h"
#include "lease.h"
#include "pace.h"

/* Smaller copies are cheaper than arbitrating them: 64 KiB take 5 us of a PCIe 3 link, and a tenant cannot keep a copy
 * engine busy with copies that each cost it a call. */
enum { MOVE_THRESHOLD = 64 << 10 };

struct move {
    int gpu; /* -1: too small to count */
    struct lease_work work;
};

/* `function` is the entry in the driver's table. Copies to the GPU, from it and within it differ in speed. */
static inline struct move move_begin(const void *function, uint64_t bytes, CUstream stream)
{
    int counts = bytes >= MOVE_THRESHOLD && !lease_is_captured(stream);
    struct move move = {counts ? current_gpu() : -1, {.key = pace_key(function, bytes), .bytes = bytes}};
    if (move.gpu >= 0)
        lease_enter((unsigned)move.gpu, &move.work);
    return move;
}

static inline CUresult move_end(struct move move, CUstream stream, CUresult status)
{
    if (move.gpu >= 0)
        lease_leave((unsigned)move.gpu, &move.work, stream, status == CUDA_SUCCESS);
    return status;
}

static inline uint64_t moved_sum(size_t count, const size_t *sizes)
{
    uint64_t sum = 0;
    for (size_t at = 0; sizes && at < count; at++)
        sum += sizes[at];
    return sum;
}

/* Array extents are in elements of at most 16 bytes. */
static inline uint64_t moved_boxes(size_t count, const CUDA_MEMCPY3D_BATCH_OP *boxes)
{
    uint64_t sum = 0;
    for (size_t at = 0; boxes && at < count; at++) {
        int array = boxes[at].src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY
                    || boxes[at].dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
        const CUextent3D *extent = &boxes[at].extent;
        sum += (uint64_t)extent->width * extent->height * extent->depth * (array ? 16 : 1);
    }
    return sum;
}

static inline uint64_t moved_decompressed(size_t count, const CUmemDecompressParams *parts)
{
    uint64_t sum = 0;
    for (size_t at = 0; parts && at < count; at++)
        sum += parts[at].srcNumBytes + parts[at].dstNumBytes;
    return sum;
}
