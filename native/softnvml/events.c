/* Events: a set is a group of connections on which the GPUs' daemon sends events unasked. */
#include "softnvml.h"
#include "../softgpu/wire.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    SUPPORTED = nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError | nvmlEventTypePState
    | nvmlEventTypeXidCriticalError | nvmlEventTypeClock
};

struct set {
    struct set *next;
    struct pollfd ends[MOST_CARDS];
    struct card *from[MOST_CARDS];
    unsigned count;
};
static struct set *sets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A set's handle is only dereferenced if it is in the list of known sets. */
static struct set *find(nvmlEventSet_t handle)
{
    pthread_mutex_lock(&lock);
    struct set *set = sets;
    while (set && (void *)set != (void *)handle)
        set = set->next;
    pthread_mutex_unlock(&lock);
    return set;
}

API nvmlEventSetCreate(nvmlEventSet_t *handle)
{
    if (ready() || !handle)
        return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
    struct set *set = calloc(1, sizeof *set);
    if (!set)
        return NVML_ERROR_MEMORY;
    pthread_mutex_lock(&lock);
    set->next = sets;
    sets = set;
    pthread_mutex_unlock(&lock);
    *handle = (nvmlEventSet_t)set;
    return NVML_SUCCESS;
}

API nvmlEventSetFree(nvmlEventSet_t handle)
{
    if (ready())
        return NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&lock);
    struct set **at = &sets;
    while (*at && (void *)*at != (void *)handle)
        at = &(*at)->next;
    struct set *set = *at;
    if (set)
        *at = set->next;
    pthread_mutex_unlock(&lock);
    if (!set)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned each = 0; each < set->count; each++)
        close(set->ends[each].fd);
    free(set);
    return NVML_SUCCESS;
}

API nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    LOOK(device, types);
    *types = SUPPORTED;
    return NVML_SUCCESS;
}

API nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t handle)
{
    struct set *set = find(handle);
    LOOK(device, set);
    if (types & ~(unsigned long long)SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    if (!types)
        return NVML_SUCCESS;
    if (set->count == MOST_CARDS)
        return NVML_ERROR_UNKNOWN;
    int end = card_connect(card);
    uint64_t wanted = types;
    status = end < 0 ? NVML_ERROR_GPU_IS_LOST : ask(end, WATCH_EVENTS, &wanted, sizeof wanted, 0, 0);
    if (status) {
        if (end >= 0)
            close(end);
        return status;
    }
    set->from[set->count] = card;
    set->ends[set->count++] = (struct pollfd){end, POLLIN, 0};
    return NVML_SUCCESS;
}

static long long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000ll + now.tv_nsec / 1000000;
}

/* Whether a GPU of the set is lost. */
static nvmlReturn_t lost(struct set *set)
{
    struct watch_reading reading;
    for (unsigned at = 0; at < set->count; at++) {
        size_t room = sizeof reading;
        nvmlReturn_t status = card_ask(set->from[at], WATCH_READING, 0, 0, &reading, &room);
        if (status)
            return status;
    }
    return NVML_SUCCESS;
}

/* An event that has arrived, NVML_ERROR_TIMEOUT if there is none, NVML_ERROR_GPU_IS_LOST if a GPU ended or was
 * lost. */
static nvmlReturn_t take(struct set *set, nvmlEventData_t *data, int patience)
{
    int found = poll(set->ends, set->count, patience);
    if (found <= 0)
        return NVML_ERROR_TIMEOUT;
    for (unsigned at = 0; at < set->count; at++) {
        struct watch_event event;
        if (!set->ends[at].revents)
            continue;
        ssize_t got = recv(set->ends[at].fd, &event, sizeof event, MSG_WAITALL);
        if (got != sizeof event || !event.type)
            return NVML_ERROR_GPU_IS_LOST;
        *data = (nvmlEventData_t){(nvmlDevice_t)set->from[at], event.type, event.data, -1, -1};
        return NVML_SUCCESS;
    }
    return NVML_ERROR_TIMEOUT;
}

API nvmlEventSetWait_v2(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned timeout)
{
    if (ready())
        return NVML_ERROR_UNINITIALIZED;
    struct set *set = find(handle);
    if (!set || !data)
        return NVML_ERROR_INVALID_ARGUMENT;
    long long end = milliseconds() + timeout;
    nvmlReturn_t status = take(set, data, 0);
    while (status) {
        nvmlReturn_t gone = lost(set);
        if (gone) /* events that were reported before the loss come first */
            return take(set, data, 0) ? gone : NVML_SUCCESS;
        long long left = end - milliseconds();
        if (left <= 0)
            return NVML_ERROR_TIMEOUT;
        status = take(set, data, left > 3600000 ? 3600000 : (int)left);
    }
    return NVML_SUCCESS;
}
API nvmlEventSetWait(nvmlEventSet_t handle, nvmlEventData_t *data, unsigned timeout)
{
    return nvmlEventSetWait_v2(handle, data, timeout);
}
