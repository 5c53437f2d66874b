/* Device memory: allocations, what is known of addresses, and pools. */
#include "client.h"

static CUresult note(CUresult status, CUdeviceptr base, size_t size)
{
    struct range old;
    const struct range range = {.base = base, .size = size};
    if (status || !size || range_add(&range))
        return status;
    /* The driver gave out an address that it had freed without our knowing, such as that of a destroyed context. */
    if (range_find(base, &old))
        range_remove(old.base, &old);
    range_add(&range);
    return status;
}

static CUstream order_of(CUstream stream)
{
    return stream ? stream : cudaapi_null_stream;
}

/* A small piece comes from a slab; with zero in `pointer` it has to come from the driver. */
static CUresult take(CUdeviceptr *pointer, size_t size, CUstream order)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    return pointer && size ? slab_take(pointer, size, order) : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    CUresult status = take(pointer, size, NULL);
    if (status || *pointer)
        return status;
    status = ask_cuMemAlloc_v2(pointer, size);
    return note(status, *pointer, size);
}

API cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned int element)
{
    CUresult status = ask_cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    return status ? status : note(status, *pointer, *pitch * height);
}

API cuMemFree_v2(CUdeviceptr pointer)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pointer)
        return CUDA_SUCCESS;
    if (!range_find(pointer, &range) || range.base != pointer || (range.host && !range.managed))
        return CUDA_ERROR_INVALID_VALUE;
    if (range.managed)
        return host_free(pointer);
    range_remove(pointer, &range);
    if (!range.slabs)
        return ask_cuMemFree_v2(pointer);
    slab_give(&range, NULL);
    return CUDA_SUCCESS;
}

API cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream)
{
    CUresult status = take(pointer, size, order_of(stream));
    if (status || *pointer)
        return status;
    status = ask_cuMemAllocAsync(pointer, size, stream);
    return note(status, *pointer, size);
}

/* From slabs, too: what a pool says of its own use is then less than what is used. */
API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream)
{
    CUresult status = take(pointer, size, order_of(stream));
    if (status || *pointer)
        return status;
    status = ask_cuMemAllocFromPoolAsync(pointer, size, pool, stream);
    return note(status, *pointer, size);
}

API cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!range_find(pointer, &range) || range.base != pointer || range.host)
        return CUDA_ERROR_INVALID_VALUE;
    range_remove(pointer, &range);
    if (!range.slabs)
        return ask_cuMemFreeAsync(pointer, stream);
    slab_give(&range, order_of(stream));
    return CUDA_SUCCESS;
}

/* The caller may want to know one of the two only. */
static CUresult note_global(CUresult status, CUdeviceptr base, size_t bytes, CUdeviceptr *pointer, size_t *size)
{
    if (pointer)
        *pointer = base;
    if (size)
        *size = bytes;
    return note(status, base, bytes);
}

API cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *size, CUmodule module, const char *name)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult status = ask_cuModuleGetGlobal_v2(&base, &bytes, module, name);
    return note_global(status, base, bytes, pointer, size);
}

API cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *size, CUlibrary library, const char *name)
{
    CUdeviceptr base = 0;
    size_t bytes = 0;
    CUresult status = ask_cuLibraryGetGlobal(&base, &bytes, library, name);
    return note_global(status, base, bytes, pointer, size);
}

API cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr wanted,
                        unsigned long long flags)
{
    CUresult status = ask_cuMemAddressReserve(pointer, size, alignment, wanted, flags);
    return status ? status : note(status, *pointer, size);
}

API cuMemAddressFree(CUdeviceptr pointer, size_t size)
{
    struct range range;
    CUresult status = ask_cuMemAddressFree(pointer, size);
    if (!status)
        range_remove(pointer, &range);
    return status;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!range_find(pointer, &range) || range.host)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = range.base;
    if (size)
        *size = range.size;
    return CUDA_SUCCESS;
}

/* How many bytes each attribute has, by its number; 0: not served. */
static const unsigned char ATTRIBUTE_SIZES[] = {0, 8, 4, 8, 8, 0, 4, 8, 4, 4, 4, 8, 8, 4, 8, 4, 4, 8, 0, 0, 0, 4};

static CUresult ask_attribute(void *data, unsigned attribute, CUdeviceptr pointer)
{
    struct message m;
    int status = message_begin(&m, OP_pointer_attribute);
    if (status)
        return (CUresult)status;
    put_u64(&m, attribute);
    put_u64(&m, pointer);
    status = message_call(&m);
    uint64_t value = get_u64(&m);
    if (!status)
        memcpy(data, &value, ATTRIBUTE_SIZES[attribute]);
    return (CUresult)status;
}

static CUresult pointer_attribute(void *data, unsigned attribute, CUdeviceptr pointer)
{
    struct range range;
    uint64_t value;
    if (attribute >= sizeof ATTRIBUTE_SIZES || !ATTRIBUTE_SIZES[attribute] || !data)
        return CUDA_ERROR_INVALID_VALUE;
    if (!range_find(pointer, &range))
        return ask_attribute(data, attribute, pointer);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        value = range.host && !range.managed ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: value = pointer; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!range.host)
            return CUDA_ERROR_INVALID_VALUE;
        value = pointer;
        break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: value = range.base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: value = range.size; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: value = range.managed; break;
    default:
        if (!range.host)
            return ask_attribute(data, attribute, pointer);
        value = 0;
    }
    memcpy(data, &value, ATTRIBUTE_SIZES[attribute]);
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    return facts ? pointer_attribute(data, attribute, pointer) : CUDA_ERROR_NOT_INITIALIZED;
}

/* What an unknown address has, the driver says: -2 for a device's number, else zero. */
API cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr pointer)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!attributes || !data)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        unsigned attribute = attributes[i];
        if (attribute >= sizeof ATTRIBUTE_SIZES || !ATTRIBUTE_SIZES[attribute])
            return CUDA_ERROR_INVALID_VALUE;
        if (!pointer_attribute(data[i], attribute, pointer))
            continue;
        memset(data[i], 0, ATTRIBUTE_SIZES[attribute]);
        if (attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
            *(int *)data[i] = CU_DEVICE_INVALID;
    }
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

static bool is_device_memory(const CUmemLocation *location, CUmemAllocationType type)
{
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
}

API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!properties || !is_device_memory(&properties->location, properties->allocType)
        || properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    return ask_cuMemPoolCreate(pool, properties);
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult status = facts_device(device);
    return status ? status : ask_cuDeviceGetDefaultMemPool(pool, device);
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    CUresult status = facts_device(device);
    return status ? status : ask_cuDeviceGetMemPool(pool, device);
}

API cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return is_device_memory(location, type) ? cuDeviceGetDefaultMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

API cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return is_device_memory(location, type) ? cuDeviceGetMemPool(pool, location->id) : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult pool_attribute(bool set, CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    struct message m;
    uint64_t number = 0;
    size_t size = attribute <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES ? sizeof(int) : sizeof number;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    int status = message_begin(&m, OP_pool_attribute);
    if (status)
        return (CUresult)status;
    if (set)
        memcpy(&number, value, size);
    put_u64(&m, set);
    put_u64(&m, handle_number(pool));
    put_u64(&m, attribute);
    put_u64(&m, number);
    status = message_call(&m);
    if (!status && !set && get(&m, &number, sizeof number))
        memcpy(value, &number, size);
    return (CUresult)status;
}

API cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    return pool_attribute(true, pool, attribute, value);
}

API cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    return pool_attribute(false, pool, attribute, value);
}
