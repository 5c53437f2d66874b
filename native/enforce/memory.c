/* Plain memory: linear, pitched, managed and imported; and the sizes that programs can query. */
#include "enforce.h"

/* ---- allocating ---- */
API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size)
{
    return ALLOCATE(HOLDING_POINTER, "cuMemAlloc", size, pointer, cudaapi_real.cuMemAlloc_v2(pointer, size));
}

API cuMemAlloc(CUdeviceptr_v1 *pointer, unsigned size)
{
    return ALLOCATE(HOLDING_POINTER, "cuMemAlloc", size, pointer, cudaapi_real.cuMemAlloc(pointer, size));
}

API cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags)
{
    return ALLOCATE(HOLDING_POINTER, "cuMemAllocManaged", size, pointer,
                    cudaapi_real.cuMemAllocManaged(pointer, size, flags));
}

/* The width of a row is known only after the allocation: charge the least it can be first, then what it is. */
static CUresult pitched(struct charge charge, CUresult status, CUdeviceptr pointer, uint64_t pitch, uint64_t height)
{
    uint64_t whole = pitch * height;
    if (!status && charge.gpu >= 0 && whole > charge.bytes) {
        if (granules_change((unsigned)charge.gpu, charge.bytes, whole))
            charge.bytes = whole;
        else {
            status = charge_refused("cuMemAllocPitch", (unsigned)charge.gpu, whole);
            cudaapi_real.cuMemFree_v2(pointer);
        }
    }
    return charge_end(charge, status, HOLDING_POINTER, pointer);
}

API cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element)
{
    struct charge charge;
    uint64_t least;
    if (__builtin_mul_overflow((uint64_t)width, (uint64_t)height, &least))
        least = UINT64_MAX;
    CUresult status = charge_begin(&charge, "cuMemAllocPitch", least);
    if (status)
        return status;
    status = cudaapi_real.cuMemAllocPitch_v2(pointer, pitch, width, height, element);
    return pitched(charge, status, status ? 0 : *pointer, status ? 0 : *pitch, height);
}

API cuMemAllocPitch(CUdeviceptr_v1 *pointer, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    struct charge charge;
    CUresult status = charge_begin(&charge, "cuMemAllocPitch", (uint64_t)width * height);
    if (status)
        return status;
    status = cudaapi_real.cuMemAllocPitch(pointer, pitch, width, height, element);
    return pitched(charge, status, status ? 0 : *pointer, status ? 0 : *pitch, height);
}

/* ---- freeing ---- */
API cuMemFree_v2(CUdeviceptr pointer)
{
    CUresult status = GIVE_BACK(HOLDING_POINTER, pointer, cudaapi_real.cuMemFree_v2(pointer));
    pools_refresh(); /* it may have belonged to a pool */
    return status;
}

API cuMemFree(CUdeviceptr_v1 pointer)
{
    CUresult status = GIVE_BACK(HOLDING_POINTER, pointer, cudaapi_real.cuMemFree(pointer));
    pools_refresh();
    return status;
}

/* ---- imports: memory of another process stays allocated while this one has it open, whichever process paid for it
 * ---- */

/* The GPU that memory is on: not always that of the current context, which another GPU's memory can be opened in. */
int pointer_gpu(CUdeviceptr pointer)
{
    int device = -1;
    CUresult status = cudaapi_real.cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, pointer);
    int gpu = status ? -1 : device_gpu(device);
    return gpu >= 0 ? gpu : current_gpu();
}

static CUresult opened(CUresult status, CUdeviceptr pointer)
{
    struct charge charge;
    size_t size = 0;
    if (status)
        return status;
    if (cudaapi_real.cuMemGetAddressRange_v2(0, &size, pointer))
        size = 0;
    status = size ? charge_begin_on(&charge, "cuIpcOpenMemHandle", pointer_gpu(pointer), size)
                  : CUDA_ERROR_NOT_SUPPORTED;
    if (status) {
        cudaapi_real.cuIpcCloseMemHandle(pointer);
        return status;
    }
    return charge_end(charge, CUDA_SUCCESS, HOLDING_IMPORT, pointer);
}

API cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    CUresult status = cudaapi_real.cuIpcOpenMemHandle_v2(pointer, handle, flags);
    return opened(status, status ? 0 : *pointer);
}

API cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
    CUresult status = cudaapi_real.cuIpcOpenMemHandle(pointer, handle, flags);
    return opened(status, status ? 0 : *pointer);
}

API cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    return GIVE_BACK(HOLDING_IMPORT, pointer, cudaapi_real.cuIpcCloseMemHandle(pointer));
}

API cuImportExternalMemory(CUexternalMemory *made, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted)
{
    return ALLOCATE(HOLDING_EXTERNAL, "cuImportExternalMemory", wanted ? wanted->size : 0, made,
                    cudaapi_real.cuImportExternalMemory(made, wanted));
}

API cuDestroyExternalMemory(CUexternalMemory memory)
{
    return GIVE_BACK(HOLDING_EXTERNAL, memory, cudaapi_real.cuDestroyExternalMemory(memory));
}

/* ---- queries ---- */
static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

API cuMemGetInfo_v2(size_t *available, size_t *total)
{
    size_t gpu_free, gpu_total;
    CUresult status = cudaapi_real.cuMemGetInfo_v2(&gpu_free, &gpu_total);
    int gpu = current_gpu();
    if (status || gpu < 0)
        return status ? status : CUDA_ERROR_INVALID_CONTEXT;
    pools_refresh();
    account_settle();
    uint64_t limit = account_limit((unsigned)gpu), used = account_used((unsigned)gpu);
    if (available)
        *available = smaller(gpu_free, used < limit ? limit - used : 0);
    if (total)
        *total = smaller(gpu_total, limit);
    return CUDA_SUCCESS;
}

API cuMemGetInfo(unsigned *available, unsigned *total)
{
    size_t wide_available, wide_total;
    CUresult status = cuMemGetInfo_v2(&wide_available, &wide_total);
    if (!status && available)
        *available = (unsigned)smaller(wide_available, UINT32_MAX);
    if (!status && total)
        *total = (unsigned)smaller(wide_total, UINT32_MAX);
    return status;
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult status = cudaapi_real.cuDeviceTotalMem_v2(bytes, device);
    int gpu = device_gpu(device);
    if (!status)
        *bytes = gpu < 0 ? 0 : smaller(*bytes, account_limit((unsigned)gpu));
    return status;
}

API cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t wide = 0;
    CUresult status = cuDeviceTotalMem_v2(&wide, device);
    if (!status && bytes)
        *bytes = (unsigned)smaller(wide, UINT32_MAX);
    return status;
}
