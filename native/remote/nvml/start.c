/* Opens the connection for NVML. It has a worker of its own, in the same session. */
#include "nvml_client.h"
#include <pthread.h>

#define API __attribute__((visibility("default"))) nvmlReturn_t

const int link_status_not_started = NVML_ERROR_UNINITIALIZED, link_status_lost = NVML_ERROR_GPU_IS_LOST;
static struct wire_welcome *welcome;
static int users;

API nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    int status = link_start(API_NVML, NVML_API_VERSION, &welcome);
    if (!status)
        __atomic_fetch_add(&users, 1, __ATOMIC_SEQ_CST);
    return status == link_status_not_started ? NVML_ERROR_DRIVER_NOT_LOADED : (nvmlReturn_t)status;
}

API nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

/* The connection stays, for the next that begins. */
API nvmlShutdown(void)
{
    if (__atomic_load_n(&users, __ATOMIC_SEQ_CST) <= 0)
        return NVML_ERROR_UNINITIALIZED;
    __atomic_fetch_sub(&users, 1, __ATOMIC_SEQ_CST);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlapi_missing(const char *symbol)
{
    (void)symbol;
    return NVML_ERROR_NOT_SUPPORTED;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t error)
{
    switch (error) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
    }
}
