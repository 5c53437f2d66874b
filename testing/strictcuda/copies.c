/* Copies and fills of the strict driver, and memory of the host: what was freed is not used again. */
#include "objects.h"
#include <stdlib.h>

/* A copy takes as long as on a PCIe link of 10 GB/s. */
enum { BYTES_PER_NS = 10 };

API cuMemHostAlloc(void **made, size_t size, unsigned flags)
{
    ENTER;
    (void)flags;
    strict_unsafe(entered);
    struct object *memory = strict_new(HOST, strict_current(entered));
    *made = malloc(size);
    memory->address = (uint64_t)(uintptr_t)*made;
    memory->bytes = size;
    return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static struct object *host_at(const void *pointer)
{
    uint64_t address = (uint64_t)(uintptr_t)pointer;
    for (struct object *each = NULL; (each = strict_each(each, HOST));)
        if (address - each->address < each->bytes)
            return each;
    return NULL;
}

/* The driver waits for copies that use the memory. It is not given back: its address is not reused, so that a later
 * use is noticed. */
API cuMemFreeHost(void *pointer)
{
    ENTER;
    strict_unsafe(entered);
    struct object *found = host_at(pointer);
    if (!found || found->address != (uint64_t)(uintptr_t)pointer)
        strict_forbid(entered, "not memory of the host, or freed before");
    strict_wait(found->at);
    strict_destroy(found);
    return CUDA_SUCCESS;
}

static CUresult move(const char *call, const void *host, CUdeviceptr pointer, size_t size, CUstream stream)
{
    struct object *of = strict_stream(call, stream), *memory = host ? host_at(host) : NULL;
    strict_current(call);
    if (!strict_memory_at(pointer) || !strict_memory_at(pointer + size - 1))
        strict_forbid(call, "memory of the GPU that was not allocated, or was freed");
    if (host && !memory)
        strict_forbid(call, "memory of the host that was not allocated, or was freed");
    int64_t end = strict_add_work(call, of, (int64_t)size / BYTES_PER_NS);
    if (memory && end > memory->at)
        memory->at = end;
    return CUDA_SUCCESS;
}

API cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
    ENTER;
    return move(entered, from, to, size, stream);
}

API cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
    ENTER;
    return move(entered, to, from, size, stream);
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    ENTER;
    (void)value;
    return move(entered, NULL, to, count, stream);
}
