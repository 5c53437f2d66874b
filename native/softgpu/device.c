/* Initialization, devices and their properties. */
#include "softgpu.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct card sg_cards[MOST_CARDS];
static int card_count;
/* A child of fork has the driver's state but none of its threads and connections. */
static atomic_int life; /* the driver's state in this process */
enum { LIFE_NONE, LIFE_READY, LIFE_FORKED };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* As with a real driver, such a child has no CUDA; it must not keep its parent's connections open. */
static void after_fork(void)
{
    for (int at = 0; at < card_count; at++) {
        close(sg_cards[at].socket);
        sg_cards[at].socket = -1;
    }
    checkpoint_forget();
    if (card_count)
        atomic_store(&life, LIFE_FORKED);
    card_count = 0;
}

API cuInit(unsigned flags)
{
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&life) == LIFE_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    if (!sg_alive() && (card_count = cards_open(sg_cards))) {
        pthread_atfork(0, 0, after_fork);
        atomic_store(&life, LIFE_READY);
        checkpoint_start();
    }
    pthread_mutex_unlock(&lock);
    return sg_alive() ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

bool sg_alive(void)
{
    return atomic_load_explicit(&life, memory_order_acquire) == LIFE_READY;
}

CUresult sg_ready(void)
{
    if (sg_worker) /* a host function that calls the driver would wait for itself */
        return CUDA_ERROR_NOT_PERMITTED;
    checkpoint_pass();
    return sg_alive() ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult sg_card(CUdevice device, struct card **card)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (device < 0 || device >= card_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *card = &sg_cards[device];
    return CUDA_SUCCESS;
}

unsigned long long next_id(void)
{
    static atomic_ullong last;
    return atomic_fetch_add(&last, 1) + 1;
}

API cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(int *count)
{
    ANSWER(sg_ready(), count, card_count);
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
    struct card *card;
    ANSWER(sg_card(ordinal, &card), device, ordinal);
}

API cuDeviceGetName(char *name, int length, CUdevice device)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, length, "%s", card->device.name);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid->bytes, card->device.uuid, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return cuDeviceGetUuid_v2(uuid, device);
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    struct card *card;
    ANSWER(sg_card(device, &card), bytes, card->device.memory);
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!major || !minor)
        return CUDA_ERROR_INVALID_VALUE;
    *major = (int)card->device.major;
    *minor = (int)card->device.minor;
    return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!text || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(text, length, "0000:%02X:00.0", card->device.pci_bus);
    return CUDA_SUCCESS;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    unsigned domain, bus;
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!device || !text || sscanf(text, "%x:%x", &domain, &bus) != 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int at = 0; at < card_count; at++)
        if (sg_cards[at].device.pci_bus == bus && domain == 0) {
            *device = at;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* The model's value, this library's capability, or 0 for what no software GPU has. */
static int attribute(const struct wire_device *device, CUdevice_attribute which)
{
    switch ((int)which) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return SG_MOST_THREADS;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return (int)device->shared_per_block;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return (int)device->shared_per_block_optin;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return (int)device->shared_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 0x7fffffff;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return 65536;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return (int)device->clock_khz;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return (int)device->memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return (int)device->bus_width;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return (int)device->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return (int)device->multiprocessors;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return (int)device->threads_per_multiprocessor;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)device->pci_bus;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return (int)device->major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return (int)device->minor;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED: return 1;
    default: return 0;
    }
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device)
{
    struct card *card;
    CUresult status = sg_card(device, &card);
    if (status)
        return status;
    if (!value || (int)which <= 0 || which >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute(&card->device, which);
    return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *answer, CUdevice device, CUdevice peer)
{
    struct card *one, *other;
    CUresult found = sg_card(device, &one);
    if (!found)
        found = sg_card(peer, &other);
    ANSWER(found, answer, device != peer);
}

/* ---- errors ---- */
API cuGetErrorString(CUresult error, const char **text)
{
    return cudaapi_error_string(error, text);
}

API cuGetErrorName(CUresult error, const char **text)
{
    return cudaapi_error_name(error, text);
}

/* ---- entry points ---- */
CUresult cudaapi_missing(const char *symbol)
{
    (void)symbol;
    return CUDA_ERROR_NOT_SUPPORTED;
}

API cuGetProcAddress_v2(const char *name, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result)
{
    if (!name || !function)
        return CUDA_ERROR_INVALID_VALUE;
    int known;
    const struct cudaapi_proc *found = cudaapi_find(name, release, flags, &known);
    *function = found ? (void *)found->function : 0;
    if (result)
        *result = found   ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                          : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found || result ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **function, int release, cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, release, flags, 0);
}

/* The vendor's private tables are not available; programs that need them get an error. */
API cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table)
        *table = 0;
    return CUDA_ERROR_NOT_SUPPORTED;
}
