/* The driver's directory of functions.
 *
 * Version and private tables of the driver are passed on untouched: the CUDA runtime checks one against the other.
 * Functions of releases that are newer than the header of this library are hidden, because it is not known whether they
 * allocate or launch. */
#include "enforce.h"
#include <string.h>

typedef CUresult lookup(const char *name, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result);

static CUresult hide(void **function, CUdriverProcAddressQueryResult *result)
{
    *function = 0;
    if (!result)
        return CUDA_ERROR_NOT_FOUND;
    *result = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS;
}

/* The newest release whose functions the driver has. */
static int release_of_driver(void)
{
    int release = 0;
    return cudaapi_real.cuDriverGetVersion(&release) ? 0 : release;
}

/* `*function` is the driver's function for this release. A program that asks for a newer release than the header's gets
 * the header's variant if the driver has no newer one; otherwise it expects a signature that this library does not
 * know. */
static CUresult ours(lookup *driver, void **function, const char *name, int release, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *result)
{
    int known;
    void *older = *function;
    if (release > CUDA_VERSION && driver(name, &older, CUDA_VERSION, flags, 0))
        return hide(function, result);
    int newest = release_of_driver();
    const struct cudaapi_proc *row = cudaapi_find(name, release < newest ? release : newest, flags, &known);
    if (!row || older != *function)
        return hide(function, result);
    if (row->implemented)
        *function = (void *)row->function;
    return CUDA_SUCCESS;
}

API cuGetProcAddress_v2(const char *name, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result)
{
    CUresult status = cudaapi_real.cuGetProcAddress_v2(name, function, release, flags, result);
    if (status || !name || !function || !*function)
        return status;
    return ours(cudaapi_real.cuGetProcAddress_v2, function, name, release, flags, result);
}

static CUresult look_up_v1(const char *name, void **function, int release, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *result)
{
    (void)result;
    return cudaapi_real.cuGetProcAddress(name, function, release, flags);
}

API cuGetProcAddress(const char *name, void **function, int release, cuuint64_t flags)
{
    CUresult status = look_up_v1(name, function, release, flags, 0);
    if (status || !name || !function || !*function)
        return status;
    return ours(look_up_v1, function, name, release, flags, 0);
}

/* Error strings work even without a driver, so that a program can print why there is none. */
API cuGetErrorString(CUresult error, const char **text)
{
    if (tenant_limits)
        return cudaapi_real.cuGetErrorString(error, text);
    return cudaapi_error_string(error, text);
}

API cuGetErrorName(CUresult error, const char **text)
{
    if (tenant_limits)
        return cudaapi_real.cuGetErrorName(error, text);
    return cudaapi_error_name(error, text);
}
