/* The part of the machine's NVML that a tenant sees: the GPUs of its limits page, in the page's order, with its share
 * of their memory. Calls about any other GPU return as if that GPU did not exist. */
#include "view.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

const struct mg_limits_page *view_limits;
const struct mg_usage_page *view_usage;
int view_usage_file = -1;
static void *library;

/* The usage file is never closed here: closing it would drop the record lock by which libcuda's account knows that this
 * process lives. */
__attribute__((constructor)) static void view_open(void)
{
    folder_find();
    const char *problem = folder_limits(&view_limits);
    view_usage_file = problem ? -1 : folder_open("usage", O_RDONLY);
    view_usage = problem ? 0 : folder_map(view_usage_file, sizeof *view_usage, PROT_READ);
    if (!problem && !view_usage)
        problem = "the usage page cannot be opened";
    if (!problem && !(library = folder_library("libnvidia-ml.so.1")))
        problem = "the driver's libnvidia-ml.so.1 cannot be loaded";
    if (problem) {
        view_limits = 0;
        say("no NVML for this process: %s (%s)", problem, tenant_folder);
    }
}

void *nvmlapi_next(const char *symbol)
{
    return view_limits ? dlsym(library, symbol) : 0;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t error)
{
    const char *(*next)(nvmlReturn_t) = (const char *(*)(nvmlReturn_t))nvmlapi_next("nvmlErrorString");
    return next ? next(error) : error == NVML_ERROR_DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}

static nvmlReturn_t start(nvmlReturn_t answer)
{
    return view_limits ? answer : NVML_ERROR_DRIVER_NOT_LOADED;
}

API nvmlInit(void)
{
    return start(ASK(nvmlInit));
}
API nvmlInit_v2(void)
{
    return start(ASK(nvmlInit_v2));
}
API nvmlInitWithFlags(unsigned flags)
{
    return start(ASK(nvmlInitWithFlags, flags));
}

/* ---- GPUs ---- */
static int place_of(const char *uuid)
{
    for (unsigned gpu = 0; uuid && gpu < view_limits->gpu_count; gpu++)
        if (!strcmp(view_limits->gpus[gpu].uuid, uuid))
            return (int)gpu;
    return -1;
}

int view_gpu(nvmlDevice_t device)
{
    char uuid[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
    if (!view_limits || ASK(nvmlDeviceGetUUID, device, uuid, sizeof uuid))
        return -1;
    return place_of(uuid);
}

API nvmlDeviceGetCount_v2(unsigned *count)
{
    nvmlReturn_t status = ASK(nvmlDeviceGetCount_v2, count);
    if (!status)
        *count = view_limits->gpu_count;
    return status;
}

API nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    if (view_limits && index >= view_limits->gpu_count)
        return NVML_ERROR_INVALID_ARGUMENT;
    return ASK(nvmlDeviceGetHandleByUUID, view_limits->gpus[index].uuid, device);
}

API nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    nvmlReturn_t status = ASK(nvmlDeviceGetIndex, device, index);
    int gpu = status ? -1 : view_gpu(device);
    if (gpu >= 0)
        *index = (unsigned)gpu;
    return status;
}

/* Look up a GPU by one of its names; a GPU of another tenant is not found. */
static nvmlReturn_t found(nvmlReturn_t status, nvmlDevice_t *device)
{
    if (status || view_gpu(*device) >= 0)
        return status;
    *device = 0;
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return found(ASK(nvmlDeviceGetHandleByUUID, uuid, device), device);
}

API nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
    return found(ASK(nvmlDeviceGetHandleByUUIDV, uuid, device), device);
}

API nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return found(ASK(nvmlDeviceGetHandleBySerial, serial, device), device);
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *place, nvmlDevice_t *device)
{
    return found(ASK(nvmlDeviceGetHandleByPciBusId_v2, place, device), device);
}

API nvmlDeviceGetHandleByPciBusId(const char *place, nvmlDevice_t *device)
{
    return found(ASK(nvmlDeviceGetHandleByPciBusId, place, device), device);
}

/* Lists of neighbors would name GPUs that the tenant cannot see. */
API nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned *count,
                                     nvmlDevice_t *devices)
{
    (void)device, (void)level, (void)count, (void)devices;
    return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlSystemGetTopologyGpuSet(unsigned cpu, unsigned *count, nvmlDevice_t *devices)
{
    (void)cpu, (void)count, (void)devices;
    return NVML_ERROR_NOT_SUPPORTED;
}

API nvmlUnitGetDevices(nvmlUnit_t unit, unsigned *count, nvmlDevice_t *devices)
{
    (void)unit, (void)count, (void)devices;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* ---- memory ---- */
static void share_of(unsigned gpu, unsigned long long gpu_total, unsigned long long *total, unsigned long long *used)
{
    unsigned long long limit = __atomic_load_n(&view_limits->gpus[gpu].memory_limit, __ATOMIC_RELAXED);
    unsigned long long sum = 0;
    struct view_process process;
    for (unsigned slot = 0; view_next(gpu, &slot, &process);)
        sum += process.bytes;
    *total = limit < gpu_total ? limit : gpu_total;
    *used = sum < *total ? sum : *total;
}

API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    nvmlReturn_t status = ASK(nvmlDeviceGetMemoryInfo, device, memory);
    int gpu = status ? -1 : view_gpu(device);
    if (gpu >= 0) {
        share_of((unsigned)gpu, memory->total, &memory->total, &memory->used);
        memory->free = memory->total - memory->used;
    }
    return status ? status : gpu < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlReturn_t status = ASK(nvmlDeviceGetMemoryInfo_v2, device, memory);
    int gpu = status ? -1 : view_gpu(device);
    if (gpu >= 0) {
        share_of((unsigned)gpu, memory->total, &memory->total, &memory->used);
        memory->free = memory->total - memory->used;
        memory->reserved = 0;
    }
    return status ? status : gpu < 0 ? NVML_ERROR_INVALID_ARGUMENT : NVML_SUCCESS;
}
