/* Answered without the worker: facts of the devices, which came with the handshake, and what concerns this library. */
#include "client.h"
#include <stdio.h>
#include <stdlib.h>

const int link_status_not_started = CUDA_ERROR_NOT_INITIALIZED, link_status_lost = CUDA_ERROR_DEVICE_UNAVAILABLE;
struct wire_welcome *facts;

API cuInit(unsigned int flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    int status = link_start(API_CUDA, CUDA_VERSION, &facts);
    return status == link_status_not_started ? CUDA_ERROR_NO_DEVICE : (CUresult)status;
}

CUresult facts_device(CUdevice device)
{
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && (unsigned)device < facts->devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

API cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    if (!facts)
        cuInit(0); /* programs may ask for the version first */
    *version = facts ? (int)facts->driver : CUDA_VERSION;
    return CUDA_SUCCESS;
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult status = facts_device(ordinal);
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!status)
        *device = ordinal;
    return status;
}

API cuDeviceGetCount(int *count)
{
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    if (facts)
        *count = (int)facts->devices;
    return facts ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

API cuDeviceGetName(char *name, int room, CUdevice device)
{
    CUresult status = facts_device(device);
    if (!name || room <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!status)
        snprintf(name, (size_t)room, "%.127s", facts->device[device].name);
    return status;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    CUresult status = facts_device(device);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!status)
        memcpy(uuid, facts->device[device].uuid, sizeof *uuid);
    return status;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult status = facts_device(device);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!status)
        *bytes = facts->device[device].memory;
    return status;
}

/* Kernels on the server reach only memory that this library allocated. */
static bool needs_the_same_machine(CUdevice_attribute attribute)
{
    return attribute == CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
           || attribute == CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS
           || attribute == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
           || attribute == CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST;
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult status = facts_device(device);
    if (!value || attribute <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (status)
        return status;
    if (needs_the_same_machine(attribute)) {
        *value = 0;
        return CUDA_SUCCESS;
    }
    if ((int)attribute >= FACT_ATTRIBUTES)
        return ask_cuDeviceGetAttribute(value, attribute, device);
    if (!facts->device[device].statuses[attribute])
        *value = facts->device[device].attributes[attribute];
    return (CUresult)facts->device[device].statuses[attribute];
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult status = cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    return status ? status : cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    CUresult status = facts_device(device);
    if (!status)
        status = facts_device(peer);
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!status)
        *can = facts->device[device].peers[peer];
    return status;
}

CUresult cudaapi_missing(const char *symbol)
{
    const char *debug = getenv("MILLIGPU_REMOTE_DEBUG");
    if (debug && *debug)
        fprintf(stderr, "milligpu: %s is not served over the network\n", symbol);
    return CUDA_ERROR_NOT_SUPPORTED;
}

API cuGetErrorName(CUresult error, const char **text)
{
    return cudaapi_error_name(error, text);
}

API cuGetErrorString(CUresult error, const char **text)
{
    return cudaapi_error_string(error, text);
}

/* A function that is not served is not found, so that a program can do without it. */
API cuGetProcAddress_v2(const char *symbol, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result)
{
    int known;
    if (!symbol || !function)
        return CUDA_ERROR_INVALID_VALUE;
    const struct cudaapi_proc *row = cudaapi_find(symbol, release, flags, &known);
    if (row && !row->implemented) {
        row = NULL;
        known = 0;
    }
    *function = row ? (void *)row->function : NULL;
    if (result)
        *result = row     ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return row ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *symbol, void **function, int release, cuuint64_t flags)
{
    return cuGetProcAddress_v2(symbol, function, release, flags, NULL);
}

/* Private tables of the vendor's runtime. */
API cuGetExportTable(const void **table, const CUuuid *which)
{
    (void)which;
    if (table)
        *table = NULL;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API cuProfilerStart(void);
API cuProfilerStart(void)
{
    return CUDA_SUCCESS;
}

API cuProfilerStop(void);
API cuProfilerStop(void)
{
    return CUDA_SUCCESS;
}
