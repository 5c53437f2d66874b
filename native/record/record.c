/* Writes down which functions of the driver a program calls, and with which sizes: `milligpu verify --record`.
 *
 * The library comes before the one that the program would have, which MILLIGPU_RECORD_NEXT names, and passes every call
 * on. The file MILLIGPU_RECORD gets a line per call, of all processes: process, thread, function, status and sizes. No
 * address, no handle and no name of the program's is written. */
#define _GNU_SOURCE
#include "record.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* Of one process. A training repeats itself long before; this limits the file to some 12 MB for each process. */
    CALLS_MAX = 200000,
    LINE = 512,
    /* Programs that close descriptors by number close low ones. */
    HIGH_DESCRIPTOR = 512,
};

static int file = -1;
static unsigned calls;

static CUresult no_device(void)
{
    return CUDA_ERROR_NO_DEVICE;
}

static CUresult not_supported(void)
{
    return CUDA_ERROR_NOT_SUPPORTED;
}

__attribute__((constructor)) static void record_open(void)
{
    const char *path = getenv("MILLIGPU_RECORD"), *next = getenv("MILLIGPU_RECORD_NEXT");
    void *driver = next ? dlopen(next, RTLD_NOW | RTLD_LOCAL) : NULL;
    void **table = (void **)&cudaapi_real;
    for (unsigned at = 0; at < CUDAAPI_REAL_COUNT; at++) {
        void *found = driver ? dlsym(driver, cudaapi_real_names[at]) : (void *)&no_device;
        table[at] = found ? found : (void *)&not_supported;
    }
    int low = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    file = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR);
    if (file < 0)
        file = low;
    else
        close(low);
}

/* One write per line, so that lines of several processes do not mix and none is lost when a process is killed. */
void record_call(const char *name, CUresult status, unsigned count, const struct record_size *sizes)
{
    char line[LINE];
    if (file < 0 || __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED) >= CALLS_MAX)
        return;
    int length = snprintf(line, sizeof line, "%d %ld %s %d", (int)getpid(), syscall(SYS_gettid), name, (int)status);
    for (unsigned at = 0; at < count && length < LINE; at++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %s=%llu", sizes[at].name,
                           (unsigned long long)sizes[at].value);
    if (length >= LINE)
        length = LINE - 1;
    line[length++] = '\n';
    if (write(file, line, (size_t)length) < 0)
        file = -1; /* the disk is full: the program goes on without a record */
}

/* What the library behind this one answers, with our own function in its place. */
static void wrap(const char *name, void **function, int release, cuuint64_t flags)
{
    int known, newest = 0;
    if (cudaapi_real.cuDriverGetVersion(&newest))
        return;
    const struct cudaapi_proc *row = cudaapi_find(name, release < newest ? release : newest, flags, &known);
    if (row && row->implemented)
        *function = (void *)row->function;
}

API cuGetProcAddress_v2(const char *name, void **function, int release, cuuint64_t flags,
                        CUdriverProcAddressQueryResult *result)
{
    CUresult status = cudaapi_real.cuGetProcAddress_v2(name, function, release, flags, result);
    if (!status && name && function && *function)
        wrap(name, function, release, flags);
    return status;
}

API cuGetProcAddress(const char *name, void **function, int release, cuuint64_t flags)
{
    CUresult status = cudaapi_real.cuGetProcAddress(name, function, release, flags);
    if (!status && name && function && *function)
        wrap(name, function, release, flags);
    return status;
}
