/* API functions that allocate, free and describe memory. */
#include "softgpu.h"
#include <string.h>

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct context *context;
    uint64_t answer[2] = {0, 0};
    size_t size = sizeof answer;
    CUresult status = context_current(&context);
    if (!status)
        status = card_call(context->card, WIRE_MEMORY, 0, 0, answer, &size, 0);
    if (status)
        return status;
    if (free_bytes)
        *free_bytes = answer[0];
    if (total)
        *total = answer[1];
    return CUDA_SUCCESS;
}

static CUresult allocate(size_t size, enum memory_kind kind, void **pointer)
{
    struct context *context;
    CUresult status = context_current(&context);
    if (!status)
        status = context_status(context);
    if (status)
        return status;
    return pointer ? memory_new(context, size, kind, pointer) : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    return allocate(size, MEMORY_DEVICE, (void **)pointer);
}

API cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    return allocate(size, MEMORY_MANAGED, (void **)pointer);
}

API cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    if (width > SIZE_MAX / 4 || height > SIZE_MAX / 4 / ((width + 511) & ~(size_t)511))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t row = (width + 511) & ~(size_t)511;
    CUresult status = allocate(row * height, MEMORY_DEVICE, (void **)pointer);
    if (!status)
        *pitch = row;
    return status;
}

API cuMemHostAlloc(void **pointer, size_t size, unsigned flags)
{
    if (flags & ~(unsigned)(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = allocate(size, MEMORY_HOST, pointer);
    if (!status)
        memory_flags((uintptr_t)*pointer, flags);
    return status;
}

API cuMemAllocHost_v2(void **pointer, size_t size)
{
    return cuMemHostAlloc(pointer, size, 0);
}

/* As with a real driver, freeing waits for work that may still use the memory. */
static CUresult release(uintptr_t start, bool host)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status || !start)
        return status;
    if (!memory_find(start, &found) || found.start != start)
        return CUDA_ERROR_INVALID_VALUE;
    context_drain(found.context, false);
    return memory_free(start, host);
}

API cuMemFree_v2(CUdeviceptr pointer)
{
    return release(pointer, false);
}

API cuMemFreeHost(void *pointer)
{
    return pointer ? release((uintptr_t)pointer, true) : CUDA_ERROR_INVALID_VALUE;
}

API cuMemFreeAsync(CUdeviceptr pointer, CUstream on)
{
    struct stream *stream;
    struct allocation found;
    CUresult status = stream_find(on, &stream);
    if (status || !pointer)
        return status;
    if (!memory_find(pointer, &found) || found.start != pointer || !found.mapped)
        return CUDA_ERROR_INVALID_VALUE;
    if (!stream->capture && !memory_leave(pointer))
        return CUDA_ERROR_INVALID_VALUE; /* it is already queued in a stream to be freed */
    struct work *work = work_new(WORK_FREE, 0);
    if (work)
        work->pointer = pointer;
    return stream_submit(stream, work);
}

API cuMemHostRegister_v2(void *start, size_t size, unsigned flags)
{
    struct context *context;
    const unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!start || !size || flags & ~known || (uintptr_t)start + size < size)
        return CUDA_ERROR_INVALID_VALUE;
    if (memory_overlaps((uintptr_t)start, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    status = memory_adopt(context, start, size, MEMORY_REGISTERED);
    if (!status)
        memory_flags((uintptr_t)start, flags);
    return status;
}

API cuMemHostUnregister(void *start)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!memory_find((uintptr_t)start, &found) || found.start != (uintptr_t)start || found.kind != MEMORY_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    memory_forget(start);
    return CUDA_SUCCESS;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned flags)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!pointer || flags || !memory_find((uintptr_t)host, &found) || found.kind == MEMORY_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = (CUdeviceptr)(uintptr_t)host;
    return CUDA_SUCCESS;
}
