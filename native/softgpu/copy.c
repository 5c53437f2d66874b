/* Copies. Synchronous copies wait for the work that a real driver would wait for, then run on the caller's thread. */
#include "softgpu.h"
#include <string.h>

/* Device memory, or host memory that the driver knows; other host addresses are taken on trust. */
static bool device_side(uintptr_t address, size_t size)
{
    return memory_holds(address, size);
}

static CUresult submit_copy(struct stream *stream, uintptr_t to, uintptr_t from, size_t size)
{
    struct work *work = work_new(WORK_COPY, 0);
    if (work) {
        work->copy.to = (char *)to;
        work->copy.from = (const char *)from;
        work->copy.width = size;
        work->copy.rows = 1;
    }
    return stream_submit(stream, work);
}

static CUresult copy_now(uintptr_t to, bool to_device, uintptr_t from, bool from_device, size_t size)
{
    struct stream *stream;
    CUresult status = stream_find(0, &stream);
    if (!status)
        status = stream_settle(stream);
    if (status || !size)
        return status;
    if (!to || !from || (to_device && !device_side(to, size)) || (from_device && !device_side(from, size)))
        return CUDA_ERROR_INVALID_VALUE;
    if (modelled(stream->context)) {
        status = submit_copy(stream, to, from, size);
        return status ? status : stream_wait(stream, stream_submitted(stream));
    }
    uint64_t start = now_nanoseconds();
    memmove((void *)to, (const void *)from, size);
    account_transfer(stream->context, (void *)to, (const void *)from, size, now_nanoseconds() - start);
    return CUDA_SUCCESS;
}

/* Memory that is not page-locked may change or be freed as soon as the call returns, so the call waits. */
static CUresult copy_later(uintptr_t to, bool to_device, uintptr_t from, bool from_device, size_t size, CUstream on)
{
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    if (status || !size)
        return status;
    if (!to || !from || (to_device && !device_side(to, size)) || (from_device && !device_side(from, size)))
        return CUDA_ERROR_INVALID_VALUE;
    bool pinned = memory_holds(to, size) && memory_holds(from, size);
    status = submit_copy(stream, to, from, size);
    return status || pinned ? status : stream_wait(stream, stream_submitted(stream));
}

API cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy_now(to, true, (uintptr_t)from, false, size);
}

API cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy_now((uintptr_t)to, false, from, true, size);
}

API cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_now(to, true, from, true, size);
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy_now(to, false, from, false, size);
}

API cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size)
{
    struct context *other = handle_get(HANDLE_CONTEXT, from_context);
    if (!other || !handle_get(HANDLE_CONTEXT, to_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult status = context_drain(other, true);
    return status ? status : copy_now(to, true, from, true, size);
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream on)
{
    return copy_later(to, true, (uintptr_t)from, false, size, on);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream on)
{
    return copy_later((uintptr_t)to, false, from, true, size, on);
}

API cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream on)
{
    return copy_later(to, true, from, true, size, on);
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream on)
{
    return copy_later(to, false, from, false, size, on);
}

API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                      CUstream on)
{
    if (!handle_get(HANDLE_CONTEXT, from_context) || !handle_get(HANDLE_CONTEXT, to_context))
        return CUDA_ERROR_INVALID_CONTEXT;
    return copy_later(to, true, from, true, size, on);
}

/* ---- boxes ---- */
static uintptr_t corner(CUmemorytype kind, const void *host, CUdeviceptr device, size_t x, size_t y, size_t z,
                        size_t pitch, size_t height)
{
    uintptr_t base = kind == CU_MEMORYTYPE_HOST ? (uintptr_t)host : (uintptr_t)device;
    return base ? base + (z * height + y) * pitch + x : 0;
}

static bool linear(CUmemorytype kind)
{
    return kind == CU_MEMORYTYPE_HOST || kind == CU_MEMORYTYPE_DEVICE || kind == CU_MEMORYTYPE_UNIFIED;
}

/* Bytes from the first byte of a box to after its last one; 0 if the sizes are impossible. */
static size_t span(const CUDA_MEMCPY3D *box, size_t pitch, size_t height)
{
    size_t rows, bytes;
    if (__builtin_mul_overflow(box->Depth - 1, height, &rows) || __builtin_add_overflow(rows, box->Height - 1, &rows)
        || __builtin_mul_overflow(rows, pitch, &bytes) || __builtin_add_overflow(bytes, box->WidthInBytes, &bytes))
        return 0;
    return rows && pitch < box->WidthInBytes ? 0 : bytes;
}

static CUresult check_linear(const CUDA_MEMCPY3D *box)
{
    if (!linear(box->srcMemoryType) || !linear(box->dstMemoryType))
        return CUDA_ERROR_INVALID_VALUE;
    if (!box->WidthInBytes || !box->Height || !box->Depth)
        return CUDA_SUCCESS;
    uintptr_t from = corner(box->srcMemoryType, box->srcHost, box->srcDevice, box->srcXInBytes, box->srcY, box->srcZ,
                            box->srcPitch, box->srcHeight);
    uintptr_t to = corner(box->dstMemoryType, box->dstHost, box->dstDevice, box->dstXInBytes, box->dstY, box->dstZ,
                          box->dstPitch, box->dstHeight);
    size_t from_span = span(box, box->srcPitch, box->srcHeight), to_span = span(box, box->dstPitch, box->dstHeight);
    if (!from || !to || !from_span || !to_span)
        return CUDA_ERROR_INVALID_VALUE;
    if ((box->srcMemoryType == CU_MEMORYTYPE_DEVICE && !device_side(from, from_span))
        || (box->dstMemoryType == CU_MEMORYTYPE_DEVICE && !device_side(to, to_span)))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult copy_check(const CUDA_MEMCPY3D *copy)
{
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = *copy;
    CUresult status = array_resolve(&box);
    return status ? status : check_linear(&box);
}

CUresult copy_submit(struct stream *stream, const CUDA_MEMCPY3D *copy)
{
    if (!copy)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D resolved = *copy, *box = &resolved;
    CUresult status = array_resolve(box);
    if (!status)
        status = check_linear(box);
    for (size_t z = 0; !status && z < box->Depth; z++) {
        struct work *work = work_new(WORK_COPY, 0);
        if (work) {
            work->copy.from = (const char *)corner(box->srcMemoryType, box->srcHost, box->srcDevice, box->srcXInBytes,
                                                   box->srcY, box->srcZ + z, box->srcPitch, box->srcHeight);
            work->copy.to = (char *)corner(box->dstMemoryType, box->dstHost, box->dstDevice, box->dstXInBytes,
                                           box->dstY, box->dstZ + z, box->dstPitch, box->dstHeight);
            work->copy.width = box->WidthInBytes;
            work->copy.rows = box->Height;
            work->copy.from_pitch = box->srcPitch;
            work->copy.to_pitch = box->dstPitch;
        }
        status = stream_submit(stream, work);
    }
    return status;
}

static bool on_card(CUmemorytype kind)
{
    return kind == CU_MEMORYTYPE_DEVICE || kind == CU_MEMORYTYPE_ARRAY;
}

API cuMemcpy3D_v2(const CUDA_MEMCPY3D *box)
{
    struct stream *stream;
    CUresult status = stream_find(0, &stream);
    if (!status)
        status = copy_submit(stream, box);
    return status ? status : stream_wait(stream, stream_submitted(stream));
}

API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *box, CUstream on)
{
    struct stream *stream;
    CUresult status = stream_find(on, &stream);
    if (!status)
        status = copy_submit(stream, box);
    if (status || (on_card(box->srcMemoryType) && on_card(box->dstMemoryType)))
        return status;
    return stream_wait(stream, stream_submitted(stream));
}

/* A rectangle is a box of depth one. */
static CUDA_MEMCPY3D box_of(const CUDA_MEMCPY2D *flat)
{
    return (CUDA_MEMCPY3D){.srcXInBytes = flat->srcXInBytes,
                           .srcY = flat->srcY,
                           .srcMemoryType = flat->srcMemoryType,
                           .srcHost = flat->srcHost,
                           .srcDevice = flat->srcDevice,
                           .srcArray = flat->srcArray,
                           .srcPitch = flat->srcPitch,
                           .srcHeight = flat->Height,
                           .dstXInBytes = flat->dstXInBytes,
                           .dstY = flat->dstY,
                           .dstMemoryType = flat->dstMemoryType,
                           .dstHost = flat->dstHost,
                           .dstDevice = flat->dstDevice,
                           .dstArray = flat->dstArray,
                           .dstPitch = flat->dstPitch,
                           .dstHeight = flat->Height,
                           .WidthInBytes = flat->WidthInBytes,
                           .Height = flat->Height,
                           .Depth = 1};
}

static CUresult flat_check(const CUDA_MEMCPY2D *flat)
{
    bool bad = !flat
               || (flat->srcMemoryType != CU_MEMORYTYPE_ARRAY && flat->srcPitch && flat->srcPitch < flat->WidthInBytes)
               || (flat->dstMemoryType != CU_MEMORYTYPE_ARRAY && flat->dstPitch && flat->dstPitch < flat->WidthInBytes);
    return bad ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *flat)
{
    if (flat_check(flat))
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = box_of(flat);
    return cuMemcpy3D_v2(&box);
}

API cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *flat)
{
    return cuMemcpy2D_v2(flat);
}

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *flat, CUstream on)
{
    if (flat_check(flat))
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = box_of(flat);
    return cuMemcpy3DAsync_v2(&box, on);
}
