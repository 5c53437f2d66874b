/* Functions: their attributes, and how many blocks of them a GPU could run at once. */
#include "softgpu.h"

CUresult function_find(CUfunction handle, struct function **function)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    *function = handle_get(HANDLE_FUNCTION, handle);
    /* A library's kernel is accepted where a function is expected. */
    return *function ? CUDA_SUCCESS : kernel_find((CUkernel)handle, function);
}

int function_most_shared(const struct function *function)
{
    int room = (int)function->module->context->card->device.shared_per_block - (int)function->kernel->shared;
    return function->dynamic_shared > room ? function->dynamic_shared : room > 0 ? room : 0;
}

int function_most_threads(const struct function *function)
{
    return function->kernel->max_threads ? (int)function->kernel->max_threads : SG_MOST_THREADS;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction handle)
{
    struct function *function;
    CUresult status = function_find(handle, &function);
    if (status)
        return status;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    const struct wire_device *device = &function->module->context->card->device;
    switch ((int)which) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = function_most_threads(function); break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)function->kernel->shared; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)function->kernel->local; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = (int)(device->major * 10 + device->minor); break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function_most_shared(function); break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

API cuFuncSetAttribute(CUfunction handle, CUfunction_attribute which, int value)
{
    struct function *function;
    CUresult status = function_find(handle, &function);
    if (status)
        return status;
    if (which == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT)
        return CUDA_SUCCESS; /* advice about a cache that does not exist here */
    if (which != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return CUDA_ERROR_NOT_SUPPORTED;
    int limit = (int)function->module->context->card->device.shared_per_block_optin - (int)function->kernel->shared;
    if (value < 0 || value > limit)
        return CUDA_ERROR_INVALID_VALUE;
    function->dynamic_shared = value;
    return CUDA_SUCCESS;
}

API cuFuncGetName(const char **name, CUfunction handle)
{
    struct function *function;
    ANSWER(function_find(handle, &function), name, function->kernel->name);
}

API cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    struct function *function;
    ANSWER(function_find(handle, &function), module, function->module->handle);
}

API cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    struct function *function;
    CUresult status = function_find(handle, &function);
    if (status)
        return status;
    if (index >= function->kernel->parameters || !offset)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = function->kernel->offsets[index];
    if (size)
        *size = function->kernel->sizes[index];
    return CUDA_SUCCESS;
}

API cuFuncGetParamCount(CUfunction handle, size_t *count)
{
    struct function *function;
    ANSWER(function_find(handle, &function), count, function->kernel->parameters);
}

API cuFuncLoad(CUfunction handle)
{
    struct function *function;
    return function_find(handle, &function);
}

API cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
    struct function *function;
    ANSWER(function_find(handle, &function), state, CU_FUNCTION_LOADING_STATE_LOADED);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int threads, size_t dynamic_shared)
{
    struct function *function;
    CUresult status = function_find(handle, &function);
    if (status)
        return status;
    if (!blocks || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    const struct wire_device *device = &function->module->context->card->device;
    size_t shared = function->kernel->shared + dynamic_shared;
    int by_threads = threads > function_most_threads(function) ? 0 : (int)device->threads_per_multiprocessor / threads;
    size_t by_shared = shared ? device->shared_per_multiprocessor / shared : (size_t)by_threads;
    *blocks = by_shared < (size_t)by_threads ? (int)by_shared : by_threads;
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle, int threads,
                                                         size_t dynamic_shared, unsigned flags)
{
    return flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE
               ? CUDA_ERROR_INVALID_VALUE
               : cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, dynamic_shared);
}

/* The largest block with which a multiprocessor is as full as possible. */
API cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle, CUoccupancyB2DSize shared_of,
                                              size_t dynamic_shared, int limit, unsigned flags)
{
    struct function *function;
    int most = 0, best = 0;
    CUresult status = function_find(handle, &function);
    if (status)
        return status;
    if (!grid || !block || limit < 0)
        return CUDA_ERROR_INVALID_VALUE;
    int first = function_most_threads(function);
    first = limit && limit < first ? limit : first;
    for (int threads = first; !status && threads > 0; threads = (threads - 1) / 32 * 32) {
        int blocks;
        size_t shared = shared_of ? shared_of(threads) : dynamic_shared;
        status = cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, handle, threads, shared, flags);
        if (!status && blocks * threads > most) {
            most = blocks * threads;
            best = threads;
        }
    }
    if (status)
        return status;
    *block = best;
    *grid = best ? most / best * (int)function->module->context->card->device.multiprocessors : 0;
    return CUDA_SUCCESS;
}

API cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, CUoccupancyB2DSize shared_of,
                                     size_t dynamic_shared, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, dynamic_shared, limit, 0);
}

API cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int threads)
{
    struct function *function;
    CUresult status = function_find(handle, &function);
    if (status)
        return status;
    if (!bytes || blocks <= 0 || threads <= 0 || threads > function_most_threads(function))
        return CUDA_ERROR_INVALID_VALUE;
    const struct wire_device *device = &function->module->context->card->device;
    if ((uint64_t)blocks * (unsigned)threads > device->threads_per_multiprocessor)
        return CUDA_ERROR_INVALID_VALUE;
    size_t each = device->shared_per_multiprocessor / (unsigned)blocks, most = device->shared_per_block_optin;
    each = each < most ? each : most;
    *bytes = each > function->kernel->shared ? each - function->kernel->shared : 0;
    return CUDA_SUCCESS;
}
