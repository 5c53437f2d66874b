/* Fills: rows of equal elements. */
#include "softgpu.h"

CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS_v2 *fill)
{
    size_t row, bytes, unit = fill->elementSize;
    bool bad = (unit != 1 && unit != 2 && unit != 4) || !fill->height || fill->dst % unit
               || __builtin_mul_overflow(fill->width, unit, &row)
               || (fill->height > 1 && (fill->pitch < row || fill->pitch % unit))
               || __builtin_mul_overflow(fill->height - 1, fill->pitch, &bytes)
               || __builtin_add_overflow(bytes, row, &bytes) || !memory_holds(fill->dst, bytes);
    return bad ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult fill_submit(const CUDA_MEMSET_NODE_PARAMS_v2 *fill, struct stream *stream)
{
    struct work *work = work_new(WORK_FILL, 0);
    if (work) {
        work->fill.to = (char *)(uintptr_t)fill->dst;
        work->fill.value = fill->value;
        work->fill.unit = fill->elementSize;
        work->fill.count = fill->width;
        work->fill.rows = fill->height;
        work->fill.pitch = fill->pitch;
    }
    return stream_submit(stream, work);
}

static CUresult fill_on(CUstream on, CUDA_MEMSET_NODE_PARAMS_v2 fill, bool wait)
{
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    if (status || !fill.width || !fill.height)
        return status;
    status = fill_check(&fill);
    if (!status)
        status = fill_submit(&fill, stream);
    return status || !wait ? status : stream_wait(stream, stream_submitted(stream));
}

/* For each element width: one row or several, synchronous or in a stream. */
#define FILLS(BITS, TYPE)                                                                                              \
    API cuMemsetD##BITS##_v2(CUdeviceptr to, TYPE value, size_t count)                                                 \
    {                                                                                                                  \
        return fill_on(0, (CUDA_MEMSET_NODE_PARAMS_v2){to, 0, value, BITS / 8, count, 1, 0}, true);                    \
    }                                                                                                                  \
    API cuMemsetD##BITS##Async(CUdeviceptr to, TYPE value, size_t count, CUstream on)                                  \
    {                                                                                                                  \
        return fill_on(on, (CUDA_MEMSET_NODE_PARAMS_v2){to, 0, value, BITS / 8, count, 1, 0}, false);                  \
    }                                                                                                                  \
    API cuMemsetD2D##BITS##_v2(CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t height)                  \
    {                                                                                                                  \
        return fill_on(0, (CUDA_MEMSET_NODE_PARAMS_v2){to, pitch, value, BITS / 8, width, height, 0}, true);           \
    }                                                                                                                  \
    API cuMemsetD2D##BITS##Async(CUdeviceptr to, size_t pitch, TYPE value, size_t width, size_t height, CUstream on)   \
    {                                                                                                                  \
        return fill_on(on, (CUDA_MEMSET_NODE_PARAMS_v2){to, pitch, value, BITS / 8, width, height, 0}, false);         \
    }

FILLS(8, unsigned char)
FILLS(16, unsigned short)
FILLS(32, unsigned)
