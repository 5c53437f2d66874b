/* Arrays: device memory in rows of 512 bytes, reached by copies. There are no textures and surfaces to read them with,
 * and no sparse arrays. The v1 variants of the create functions are answered by stubs. */
#include "softgpu.h"
#include <stdlib.h>

enum { ROW = 512 };

struct array {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uintptr_t start; /* of its memory, which ends with its context */
    size_t width;    /* of a row, in bytes */
    size_t pitch;    /* from one row to the next */
};

static size_t at_least_one(size_t value)
{
    return value ? value : 1;
}

static size_t element_bytes(CUarray_format format, unsigned channels)
{
    size_t bytes = 0;
    if (format == CU_AD_FORMAT_UNSIGNED_INT8 || format == CU_AD_FORMAT_SIGNED_INT8)
        bytes = 1;
    else if (format == CU_AD_FORMAT_UNSIGNED_INT16 || format == CU_AD_FORMAT_SIGNED_INT16
             || format == CU_AD_FORMAT_HALF)
        bytes = 2;
    else if (format == CU_AD_FORMAT_UNSIGNED_INT32 || format == CU_AD_FORMAT_SIGNED_INT32
             || format == CU_AD_FORMAT_FLOAT)
        bytes = 4;
    return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

/* The bytes that an array takes, or 0 if they cannot be counted. */
static size_t array_bytes(const struct array *array)
{
    size_t bytes;
    if (__builtin_mul_overflow(array->pitch, at_least_one(array->shape.Height), &bytes)
        || __builtin_mul_overflow(bytes, at_least_one(array->shape.Depth), &bytes))
        return 0;
    return bytes;
}

static struct array *array_find(CUarray handle)
{
    struct array *array = handle_get(HANDLE_ARRAY, handle);
    struct allocation found;
    return array && memory_find(array->start, &found) && found.start == array->start ? array : NULL;
}

API cuArray3DCreate_v2(CUarray *made, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    struct context *context;
    const unsigned known = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP
                           | CUDA_ARRAY3D_TEXTURE_GATHER;
    CUresult status = context_current(&context);
    if (!status)
        status = context_status(context);
    if (status)
        return status;
    if (!made || !wanted || !wanted->Width)
        return CUDA_ERROR_INVALID_VALUE;
    size_t element = element_bytes(wanted->Format, wanted->NumChannels);
    if (!element || wanted->Flags & ~known)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct array *array = calloc(1, sizeof *array);
    if (!array)
        return CUDA_ERROR_OUT_OF_MEMORY;
    array->shape = *wanted;
    if (__builtin_mul_overflow(wanted->Width, element, &array->width) || array->width > SIZE_MAX - ROW) {
        free(array);
        return CUDA_ERROR_INVALID_VALUE;
    }
    array->pitch = (array->width + ROW - 1) / ROW * ROW;
    size_t bytes = array_bytes(array);
    void *start = NULL;
    status = bytes ? memory_new(context, bytes, MEMORY_DEVICE, &start) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) {
        array->start = (uintptr_t)start;
        *made = handle_new(HANDLE_ARRAY, array);
        if (*made)
            return CUDA_SUCCESS;
        memory_free(array->start, false);
        status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(array);
    return status;
}

API cuArrayCreate_v2(CUarray *made, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    if (!wanted)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR box = {
        .Width = wanted->Width, .Height = wanted->Height, .Format = wanted->Format, .NumChannels = wanted->NumChannels};
    return cuArray3DCreate_v2(made, &box);
}

API cuArrayDestroy(CUarray handle)
{
    struct allocation found;
    CUresult status = sg_ready();
    if (status)
        return status;
    struct array *array = handle_drop(HANDLE_ARRAY, handle);
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    /* the memory is gone if its context ended before */
    if (memory_find(array->start, &found) && found.start == array->start) {
        context_drain(found.context, false);
        memory_free(array->start, false);
    }
    free(array);
    return CUDA_SUCCESS;
}

API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray handle)
{
    CUresult status = sg_ready();
    const struct array *array = status ? NULL : array_find(handle);
    if (status)
        return status;
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray handle)
{
    CUDA_ARRAY3D_DESCRIPTOR box;
    CUresult status = cuArray3DGetDescriptor_v2(&box, handle);
    if (status)
        return status;
    if (!shape)
        return CUDA_ERROR_INVALID_VALUE;
    *shape = (CUDA_ARRAY_DESCRIPTOR){box.Width, box.Height, box.Format, box.NumChannels};
    return CUDA_SUCCESS;
}

static bool inside(size_t first, size_t count, size_t size)
{
    return first <= size && count <= size - first;
}

static CUresult resolve(CUarray handle, const CUDA_MEMCPY3D *box, size_t x, size_t y, size_t z, CUdeviceptr *start,
                        size_t *pitch, size_t *height)
{
    const struct array *array = array_find(handle);
    if (!array)
        return CUDA_ERROR_INVALID_HANDLE;
    *height = at_least_one(array->shape.Height);
    if (!inside(x, box->WidthInBytes, array->width) || !inside(y, box->Height, *height)
        || !inside(z, box->Depth, at_least_one(array->shape.Depth)))
        return CUDA_ERROR_INVALID_VALUE;
    *start = array->start;
    *pitch = array->pitch;
    return CUDA_SUCCESS;
}

CUresult array_resolve(CUDA_MEMCPY3D *box)
{
    CUresult status = CUDA_SUCCESS;
    if (box->srcMemoryType == CU_MEMORYTYPE_ARRAY) {
        status = resolve(box->srcArray, box, box->srcXInBytes, box->srcY, box->srcZ, &box->srcDevice, &box->srcPitch,
                         &box->srcHeight);
        box->srcMemoryType = CU_MEMORYTYPE_DEVICE;
    }
    if (!status && box->dstMemoryType == CU_MEMORYTYPE_ARRAY) {
        status = resolve(box->dstArray, box, box->dstXInBytes, box->dstY, box->dstZ, &box->dstDevice, &box->dstPitch,
                         &box->dstHeight);
        box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    }
    return status;
}

/* ---- copies of one row, by byte offset ---- */

static CUDA_MEMCPY3D row_to(CUarray to, size_t offset, size_t size)
{
    return (CUDA_MEMCPY3D){.dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = to,
                           .dstXInBytes = offset,
                           .WidthInBytes = size,
                           .Height = 1,
                           .Depth = 1};
}

static CUDA_MEMCPY3D row_from(CUarray from, size_t offset, size_t size)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                           .srcArray = from,
                           .srcXInBytes = offset,
                           .WidthInBytes = size,
                           .Height = 1,
                           .Depth = 1};
}

API cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t size)
{
    CUDA_MEMCPY3D box = row_to(to, offset, size);
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = from;
    return cuMemcpy3D_v2(&box);
}

API cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t size, CUstream on)
{
    CUDA_MEMCPY3D box = row_to(to, offset, size);
    box.srcMemoryType = CU_MEMORYTYPE_HOST;
    box.srcHost = from;
    return cuMemcpy3DAsync_v2(&box, on);
}

API cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t size)
{
    CUDA_MEMCPY3D box = row_to(to, offset, size);
    box.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    box.srcDevice = from;
    return cuMemcpy3D_v2(&box);
}

API cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset, size_t size)
{
    CUDA_MEMCPY3D box = row_to(to, to_offset, size);
    box.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    box.srcArray = from;
    box.srcXInBytes = from_offset;
    return cuMemcpy3D_v2(&box);
}

API cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t size)
{
    CUDA_MEMCPY3D box = row_from(from, offset, size);
    box.dstMemoryType = CU_MEMORYTYPE_HOST;
    box.dstHost = to;
    return cuMemcpy3D_v2(&box);
}

API cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t size, CUstream on)
{
    CUDA_MEMCPY3D box = row_from(from, offset, size);
    box.dstMemoryType = CU_MEMORYTYPE_HOST;
    box.dstHost = to;
    return cuMemcpy3DAsync_v2(&box, on);
}

API cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t size)
{
    CUDA_MEMCPY3D box = row_from(from, offset, size);
    box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box.dstDevice = to;
    return cuMemcpy3D_v2(&box);
}
