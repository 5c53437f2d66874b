/* Maps a device of the driver to a GPU of the limits page.
 *
 * The driver shows the GPUs that CUDA_VISIBLE_DEVICES allows. A program may use that variable to choose among its own
 * GPUs, by number (the order of the page) or by UUID, but must never reach another GPU. The driver therefore reads a
 * list that this file makes from the page and the variable. */
#include "enforce.h"
#include "lease.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VISIBLE "CUDA_VISIBLE_DEVICES"

int devices_only = -1;
static int count;
static unsigned gpus[MG_PAGE_GPUS]; /* by the driver's device number */
static bool started;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int device_gpu(CUdevice device)
{
    return device >= 0 && device < count ? (int)gpus[device] : -1;
}

CUdevice gpu_device(unsigned gpu)
{
    for (int device = 0; device < count; device++)
        if (gpus[device] == gpu)
            return device;
    return -1;
}

int devices_current(void)
{
    CUdevice device;
    return count && cudaapi_real.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device_gpu(device) : -1;
}

/* ---- the GPU of a stream: a program's own streams are remembered until they or a context end ---- */

enum { STREAMS = 256 };
/* A stream's address, and its GPU in the low bits, which an aligned address leaves free. 0: none. */
static uintptr_t streams[STREAMS];
_Static_assert(MG_PAGE_GPUS <= 16, "a GPU fits into four bits");

static uintptr_t *place_of(CUstream stream)
{
    return &streams[((uintptr_t)stream >> 4 ^ (uintptr_t)stream >> 12) % STREAMS];
}

static int ask_gpu(CUstream stream)
{
    CUcontext context;
    if (cudaapi_real.cuStreamGetCtx(stream, &context) || cudaapi_real.cuCtxPushCurrent_v2(context))
        return devices_current();
    int gpu = devices_current();
    cudaapi_real.cuCtxPopCurrent_v2(&context);
    return gpu;
}

int devices_of_stream(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return devices_current();
    uintptr_t known = __atomic_load_n(place_of(stream), __ATOMIC_RELAXED);
    if (known && (known & ~(uintptr_t)15) == (uintptr_t)stream)
        return (int)(known & 15);
    int gpu = ask_gpu(stream);
    if (gpu >= 0 && !((uintptr_t)stream & 15))
        __atomic_store_n(place_of(stream), (uintptr_t)stream | (unsigned)gpu, __ATOMIC_RELAXED);
    return gpu;
}

void devices_stream_ends(CUstream stream)
{
    __atomic_store_n(place_of(stream), 0, __ATOMIC_RELAXED);
}

void devices_context_ends(void)
{
    for (unsigned i = 0; i < STREAMS; i++)
        __atomic_store_n(&streams[i], 0, __ATOMIC_RELAXED);
}

/* One item of the list: a number, or the beginning of a UUID. -1 ends the list, as in the driver. */
static int chosen(const struct mg_limits_page *page, const char *word, size_t length)
{
    unsigned number = 0;
    size_t digits = 0;
    while (digits < length && digits < 4 && word[digits] >= '0' && word[digits] <= '9')
        number = number * 10 + (unsigned)(word[digits++] - '0');
    if (length && digits == length)
        return number < page->gpu_count ? (int)number : -1;
    for (unsigned gpu = 0; gpu < page->gpu_count && length > 4; gpu++)
        if (length < MG_UUID_SIZE && !strncmp(page->gpus[gpu].uuid, word, length))
            return (int)gpu;
    return -1;
}

/* The UUIDs of the page that the program wants to see, in the program's order. */
static void visible_list(const struct mg_limits_page *page, const char *wanted, char *list, size_t room)
{
    bool used[MG_PAGE_GPUS] = {false};
    size_t at = 0;
    list[0] = 0;
    for (unsigned gpu = 0; !wanted && gpu < page->gpu_count; gpu++)
        at += (size_t)snprintf(list + at, room - at, "%s%s", at ? "," : "", page->gpus[gpu].uuid);
    while (wanted && *wanted) {
        size_t length = strcspn(wanted, ",");
        int gpu = chosen(page, wanted, length);
        if (gpu < 0 || used[gpu])
            return;
        used[gpu] = true;
        at += (size_t)snprintf(list + at, room - at, "%s%s", at ? "," : "", page->gpus[gpu].uuid);
        wanted += length + (wanted[length] == ',');
    }
}

static CUresult start_driver(const struct mg_limits_page *page, unsigned flags)
{
    char list[MG_PAGE_GPUS * (MG_UUID_SIZE + 1)];
    const char *wanted = getenv(VISIBLE);
    char *before = wanted ? strdup(wanted) : 0;
    visible_list(page, before, list, sizeof list);
    if (!*list || (wanted && !before)) {
        free(before);
        return CUDA_ERROR_NO_DEVICE;
    }
    setenv(VISIBLE, list, 1);
    CUresult status = cudaapi_real.cuInit(flags);
    if (before)
        setenv(VISIBLE, before, 1);
    else
        unsetenv(VISIBLE);
    free(before);
    return status;
}

static int page_gpu(const struct mg_limits_page *page, const CUuuid *uuid)
{
    char name[MG_UUID_SIZE] = "GPU-";
    int at = 4;
    for (int byte = 0; byte < 16; byte++)
        at += snprintf(name + at, sizeof name - (size_t)at, "%s%02x",
                       byte == 4 || byte == 6 || byte == 8 || byte == 10 ? "-" : "", (unsigned char)uuid->bytes[byte]);
    for (unsigned gpu = 0; gpu < page->gpu_count; gpu++)
        if (!strcmp(page->gpus[gpu].uuid, name))
            return (int)gpu;
    return -1;
}

/* If the driver shows a GPU that the page does not name, the process gets no device at all. */
static CUresult match_devices(const struct mg_limits_page *page)
{
    int found;
    CUresult status = cudaapi_real.cuDeviceGetCount(&found);
    if (status)
        return status;
    if (found < 1 || found > (int)MG_PAGE_GPUS)
        return CUDA_ERROR_NO_DEVICE;
    for (int device = 0; device < found; device++) {
        CUuuid uuid;
        int gpu = cudaapi_real.cuDeviceGetUuid_v2(&uuid, device) == CUDA_SUCCESS
                          || cudaapi_real.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS
                      ? page_gpu(page, &uuid)
                      : -1;
        if (gpu < 0) {
            say("no GPU for this process: the driver shows a GPU that is not on the limits page");
            return CUDA_ERROR_NO_DEVICE;
        }
        gpus[device] = (unsigned)gpu;
    }
    count = found;
    devices_only = found == 1 ? (int)gpus[0] : -1;
    return CUDA_SUCCESS;
}

static void start_lease(void)
{
    static struct lease_driver driver;
    driver = (struct lease_driver){.event_create = cudaapi_real.cuEventCreate,
                                   .event_destroy = cudaapi_real.cuEventDestroy_v2,
                                   .event_record = cudaapi_real.cuEventRecord,
                                   .event_query = cudaapi_real.cuEventQuery,
                                   .event_elapsed = cudaapi_real.cuEventElapsedTime,
                                   .stream_context = cudaapi_real.cuStreamGetCtx,
                                   .stream_capturing = cudaapi_real.cuStreamIsCapturing,
                                   .capture_mode = cudaapi_real.cuThreadExchangeStreamCaptureMode,
                                   .context_get = cudaapi_real.cuCtxGetCurrent,
                                   .context_push = cudaapi_real.cuCtxPushCurrent_v2,
                                   .context_pop = cudaapi_real.cuCtxPopCurrent_v2};
    lease_start(tenant_limits, tenant_folder, &driver);
}

static CUresult start(unsigned flags)
{
    struct mg_limits_page page;
    if (mg_limits_read(tenant_limits, &page)) {
        say("no GPU for this process: the limits page is not valid (%s)", tenant_folder);
        return CUDA_ERROR_NO_DEVICE;
    }
    CUresult status = start_driver(&page, flags);
    if (!status)
        status = match_devices(&page);
    if (!status)
        start_lease();
    return status;
}

/* A child of fork starts from scratch. */
void devices_in_child(void)
{
    pthread_mutex_init(&lock, 0);
    started = false;
}

API cuInit(unsigned flags)
{
    if (!tenant_limits)
        return CUDA_ERROR_NO_DEVICE;
    pthread_mutex_lock(&lock);
    CUresult status = started ? cudaapi_real.cuInit(flags) : start(flags);
    started |= status == CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return status;
}
