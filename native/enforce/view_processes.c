/* The processes that a tenant sees: its own, read from its usage page, with the pids of their own namespace. */
#include "view.h"
#include <fcntl.h>
#include <unistd.h>

extern int view_usage_file;

/* Whether the slot's process lives: then it holds a lock on the slot's byte of the file. A process does not see its own
 * lock. */
static bool is_alive(unsigned slot, unsigned pid)
{
    struct flock byte = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    byte.l_start = (off_t)(offsetof(struct mg_usage_page, slots) + slot * sizeof(struct mg_process_slot));
    if (pid == (unsigned)getpid())
        return true;
    return fcntl(view_usage_file, F_GETLK, &byte) == 0 && byte.l_type != F_UNLCK;
}

bool view_next(unsigned gpu, unsigned *slot, struct view_process *found)
{
    for (; *slot < MG_USAGE_SLOTS; ++*slot) {
        const struct mg_process_slot *at = &view_usage->slots[*slot];
        *found = (struct view_process){at->pid, at->used[gpu]};
        if (at->state && found->bytes && is_alive(*slot, found->pid)) {
            ++*slot;
            return true;
        }
    }
    return false;
}

bool view_has_process(unsigned pid)
{
    for (unsigned slot = 0; slot < MG_USAGE_SLOTS; slot++)
        if (view_usage->slots[slot].state && view_usage->slots[slot].pid == pid && is_alive(slot, pid))
            return true;
    return false;
}

/* The three versions differ in what follows the memory. */
#define RUNNING(function, type, rest)                                                                                  \
    API function(nvmlDevice_t device, unsigned *count, type *infos)                                                    \
    {                                                                                                                  \
        int gpu = view_gpu(device);                                                                                    \
        unsigned room = count ? *count : 0, used = 0;                                                                  \
        struct view_process process;                                                                                   \
        if (gpu < 0 || !count || (room && !infos))                                                                     \
            return view_limits ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;                               \
        for (unsigned slot = 0; view_next((unsigned)gpu, &slot, &process); used++)                                     \
            if (used < room)                                                                                           \
                infos[used] = (type){.pid = process.pid, .usedGpuMemory = process.bytes, rest};                        \
        *count = used;                                                                                                 \
        return used > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;                                              \
    }
#define NO_INSTANCE .gpuInstanceId = 0xFFFFFFFF, .computeInstanceId = 0xFFFFFFFF
#define NOTHING
RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, NOTHING)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, NO_INSTANCE)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, NO_INSTANCE)

/* A share has no graphics processes, and MPS belongs to the node. */
#define NONE(function, type)                                                                                           \
    API function(nvmlDevice_t device, unsigned *count, type *infos)                                                    \
    {                                                                                                                  \
        (void)infos;                                                                                                   \
        if (view_gpu(device) < 0 || !count)                                                                            \
            return view_limits ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;                               \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* ---- samples and accounting: only this tenant's processes are passed on ---- */
API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                    unsigned long long since)
{
    unsigned kept = 0;
    nvmlReturn_t status = ASK(nvmlDeviceGetProcessUtilization, device, samples, count, since);
    if (status || !samples)
        return status;
    for (unsigned at = 0; at < *count; at++)
        if (view_has_process(samples[at].pid))
            samples[kept++] = samples[at];
    *count = kept;
    return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *infos)
{
    unsigned kept = 0;
    nvmlReturn_t status = ASK(nvmlDeviceGetProcessesUtilizationInfo, device, infos);
    if (status || !infos->procUtilArray)
        return status;
    for (unsigned at = 0; at < infos->processSamplesCount; at++)
        if (view_has_process(infos->procUtilArray[at].pid))
            infos->procUtilArray[kept++] = infos->procUtilArray[at];
    infos->processSamplesCount = kept;
    return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    unsigned kept = 0;
    nvmlReturn_t status = ASK(nvmlDeviceGetAccountingPids, device, count, pids);
    for (unsigned at = 0; !status && pids && at < *count; at++)
        if (view_has_process(pids[at]))
            pids[kept++] = pids[at];
    if (!status && pids)
        *count = kept;
    return status;
}

API nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)
{
    if (view_limits && !view_has_process(pid))
        return NVML_ERROR_NOT_FOUND;
    return ASK(nvmlDeviceGetAccountingStats, device, pid, stats);
}

API nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *stats)
{
    if (view_limits && stats && !view_has_process(stats->pid))
        return NVML_ERROR_NOT_FOUND;
    return ASK(nvmlDeviceGetAccountingStats_v2, device, stats);
}

API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    (void)device, (void)list;
    return NVML_ERROR_NOT_SUPPORTED;
}
