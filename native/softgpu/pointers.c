/* What the driver knows about an address. */
#include "softgpu.h"
#include <string.h>

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!memory_find(pointer, &found))
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = found.start;
    if (size)
        *size = found.size;
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *pointer)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!flags || !memory_find((uintptr_t)pointer, &found) || !memory_on_host(&found))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = found.flags;
    return CUDA_SUCCESS;
}

static size_t size_of(CUpointer_attribute which)
{
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return 4;
    default: return 0;
    }
}

static uint64_t value_of(const struct allocation *found, CUpointer_attribute which, CUdeviceptr pointer)
{
    bool device_only = found->kind == MEMORY_DEVICE || found->kind == MEMORY_MODULE;
    switch ((int)which) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: return (uintptr_t)found->context->handle;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: return memory_on_host(found) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: return pointer;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return device_only ? 0 : pointer;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: return found->start;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: return found->size;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: return found->kind == MEMORY_MANAGED;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: return (unsigned)found->context->card->ordinal;
    case CU_POINTER_ATTRIBUTE_MAPPED: return 1;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: return (uintptr_t)pool_handle(found->pool);
    default: return 0; /* no memory here is exported, shared with another process, or read by a network card */
    }
}

API cuPointerGetAttribute(void *value, CUpointer_attribute which, CUdeviceptr pointer)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!value || !memory_find(pointer, &found))
        return CUDA_ERROR_INVALID_VALUE;
    size_t size = size_of(which);
    if (!size)
        return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t answer = value_of(&found, which, pointer);
    if (which == CU_POINTER_ATTRIBUTE_HOST_POINTER && !answer)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, &answer, size);
    return CUDA_SUCCESS;
}

/* In a query of several attributes, an unknown address is not an error: all its attributes are zero. */
API cuPointerGetAttributes(unsigned count, CUpointer_attribute *which, void **values, CUdeviceptr pointer)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!count || !which || !values)
        return CUDA_ERROR_INVALID_VALUE;
    bool known = memory_find(pointer, &found);
    for (unsigned at = 0; at < count; at++) {
        size_t size = size_of(which[at]);
        uint64_t answer = known ? value_of(&found, which[at], pointer) : 0;
        if (!known && which[at] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            answer = (uint32_t)CU_DEVICE_INVALID;
        if (!values[at] || !size)
            return values[at] ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
        memcpy(values[at], &answer, size);
    }
    return CUDA_SUCCESS;
}
