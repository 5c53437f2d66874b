/* The driver's own directory of functions, and what it says about itself.
 *
 * To a program this library is a driver of the CUDA release whose header it was made from, or of the driver's own
 * release where that is older: what a newer driver has beyond it does not exist, because nobody has read yet whether it
 * allocates or launches. */
#include "enforce.h"
#include <string.h>

static int release_of_driver(void)
{
    int release = 0;
    if (cudaapi_real.cuDriverGetVersion(&release))
        return 0;
    return release < CUDA_VERSION ? release : CUDA_VERSION;
}

API cuDriverGetVersion(int *release)
{
    CUresult status = cudaapi_real.cuDriverGetVersion(release);
    if (!status && *release > CUDA_VERSION)
        *release = CUDA_VERSION;
    return status;
}

/* Our function where we wrap, otherwise the driver's own. `found` is what the driver answered. */
static void *ours_or(void *found, const char *name, int release, cuuint64_t flags)
{
    int known;
    const struct cudaapi_proc *row = cudaapi_find(name, release, flags, &known);
    if (!row)
        return 0;
    return row->implemented ? (void *)row->function : found;
}

API cuGetProcAddress_v2(const char *name, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result)
{
    int newest = release_of_driver();
    if (release > newest)
        release = newest;
    CUresult status = cudaapi_real.cuGetProcAddress_v2(name, function, release, flags, result);
    if (status || !name || !function || !*function)
        return status;
    *function = ours_or(*function, name, release, flags);
    if (*function)
        return status;
    if (result)
        *result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return result ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **function, int release, cuuint64_t flags)
{
    int newest = release_of_driver();
    if (release > newest)
        release = newest;
    CUresult status = cudaapi_real.cuGetProcAddress(name, function, release, flags);
    if (status || !name || !function || !*function)
        return status;
    *function = ours_or(*function, name, release, flags);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* Without a driver there is still something to say: why there is none. */
static const struct cudaapi_error *find_error(CUresult error)
{
    for (unsigned at = 0; at < cudaapi_error_count; at++)
        if (cudaapi_errors[at].value == (int)error)
            return &cudaapi_errors[at];
    return 0;
}

API cuGetErrorString(CUresult error, const char **text)
{
    if (tenant_limits)
        return cudaapi_real.cuGetErrorString(error, text);
    const struct cudaapi_error *found = find_error(error);
    if (text)
        *text = found ? found->words : 0;
    return found && text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorName(CUresult error, const char **text)
{
    if (tenant_limits)
        return cudaapi_real.cuGetErrorName(error, text);
    const struct cudaapi_error *found = find_error(error);
    if (text)
        *text = found ? found->name : 0;
    return found && text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
