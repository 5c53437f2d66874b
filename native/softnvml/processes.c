/* The processes that use a GPU, with their memory and their part of its time. */
#include "softnvml.h"
#include <stdlib.h>

/* A list from the daemon, in memory that the caller frees. */
static nvmlReturn_t fetch(struct card *card, uint32_t kind, const void *body, size_t size, void **list, size_t *room)
{
    *room = MOST_BODY;
    *list = malloc(*room);
    if (!*list)
        return NVML_ERROR_MEMORY;
    nvmlReturn_t status = card_ask(card, kind, body, size, *list, room);
    if (status)
        free(*list);
    return status;
}

/* The three versions differ in what follows the memory. */
#define RUNNING(function, type, rest)                                                                                  \
    API function(nvmlDevice_t device, unsigned *count, type *infos)                                                    \
    {                                                                                                                  \
        LOOK(device, count);                                                                                           \
        struct watch_process *list;                                                                                    \
        size_t room;                                                                                                   \
        if ((status = fetch(card, WATCH_PROCESSES, 0, 0, (void **)&list, &room)))                                      \
            return status;                                                                                             \
        unsigned found = room / sizeof *list;                                                                          \
        status = room_for(found, count, infos);                                                                        \
        for (unsigned at = 0; !status && at < found; at++)                                                             \
            infos[at] = (type){.pid = list[at].pid, .usedGpuMemory = list[at].memory, rest};                           \
        free(list);                                                                                                    \
        return status;                                                                                                 \
    }
#define NO_INSTANCE .gpuInstanceId = -1, .computeInstanceId = -1
#define NOTHING
RUNNING(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, NOTHING)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, NO_INSTANCE)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, NO_INSTANCE)

/* Software GPUs have no graphics processes and no MPS. */
#define NOBODY(function, type)                                                                                         \
    API function(nvmlDevice_t device, unsigned *count, type *infos)                                                    \
    {                                                                                                                  \
        LOOK(device, count);                                                                                           \
        (void)infos;                                                                                                   \
        *count = 0;                                                                                                    \
        return NVML_SUCCESS;                                                                                           \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples, unsigned *count,
                                    unsigned long long newer)
{
    LOOK(device, count);
    struct watch_sample *list;
    size_t room;
    uint64_t since = newer;
    if ((status = fetch(card, WATCH_SAMPLES, &since, sizeof since, (void **)&list, &room)))
        return status;
    unsigned found = room / sizeof *list;
    status = found ? room_for(found, count, samples) : NVML_ERROR_NOT_FOUND;
    for (unsigned at = 0; !status && at < found; at++)
        samples[at] = (nvmlProcessUtilizationSample_t){.pid = list[at].pid,
                                                       .timeStamp = list[at].microseconds,
                                                       .smUtil = list[at].utilization,
                                                       .memUtil = list[at].memory_utilization};
    free(list);
    return status;
}

API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    LOOK(device, info);
    if (info->version != nvmlProcessesUtilizationInfo_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    struct watch_sample *list;
    size_t room;
    uint64_t since = info->lastSeenTimeStamp;
    if ((status = fetch(card, WATCH_SAMPLES, &since, sizeof since, (void **)&list, &room)))
        return status;
    unsigned found = room / sizeof *list;
    status = found ? room_for(found, &info->processSamplesCount, info->procUtilArray) : NVML_ERROR_NOT_FOUND;
    for (unsigned at = 0; !status && at < found; at++)
        info->procUtilArray[at] = (nvmlProcessUtilizationInfo_v1_t){.timeStamp = list[at].microseconds,
                                                                    .pid = list[at].pid,
                                                                    .smUtil = list[at].utilization,
                                                                    .memUtil = list[at].memory_utilization};
    free(list);
    return status;
}

/* ---- accounting: what each process used in its lifetime ---- */
API nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    LOOK(device, count);
    struct watch_account *list;
    size_t room;
    if ((status = fetch(card, WATCH_ACCOUNTING, 0, 0, (void **)&list, &room)))
        return status;
    unsigned found = room / sizeof *list;
    status = room_for(found, count, pids);
    for (unsigned at = 0; !status && at < found; at++)
        pids[at] = list[at].pid;
    free(list);
    return status;
}

API nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *stats)
{
    LOOK(device, stats);
    struct watch_account *list;
    size_t room;
    if ((status = fetch(card, WATCH_ACCOUNTING, 0, 0, (void **)&list, &room)))
        return status;
    status = NVML_ERROR_NOT_FOUND;
    for (unsigned at = 0; at < room / sizeof *list; at++)
        if (list[at].pid == pid) {
            *stats = (nvmlAccountingStats_t){.gpuUtilization = list[at].utilization,
                                             .memoryUtilization = list[at].memory_utilization,
                                             .maxMemoryUsage = list[at].most_memory,
                                             .time = list[at].milliseconds,
                                             .startTime = list[at].start,
                                             .isRunning = list[at].running};
            status = NVML_SUCCESS;
        }
    free(list);
    return status;
}
