/* Host memory: it is this process's own, and page-locked means nothing over a network. Kernels may use it, though.
 *
 * When a kernel's parameters contain an address of memory that was allocated or registered here, the worker maps memory
 * at the same address. From then on what this process changed goes there before each launch and each wait, and what
 * kernels changed comes back before the answer to whatever waits. Both sides keep a shadow of what the other has, and
 * send only the lines that differ. Pointers to host memory inside device memory are not seen. */
#define _GNU_SOURCE
#include "client.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

struct mirror {
    struct mirror *next;
    char *base;
    size_t size;
    char *shadow;
    struct landing *landing;
};
static struct mirror *mirrors;
static int registered; /* pieces of the program's own memory */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static size_t pages(size_t size)
{
    return (size + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static CUresult send_lines(struct mirror *mirror, size_t from, size_t size)
{
    struct message m;
    int status = message_begin(&m, OP_host_in);
    if (status)
        return (CUresult)status;
    memcpy(mirror->shadow + from, mirror->base + from, size);
    put_u64(&m, (uintptr_t)mirror->base + from);
    put_u64(&m, size);
    return (CUresult)message_send_with(&m, mirror->shadow + from, size);
}

static CUresult send_changes(struct mirror *mirror)
{
    CUresult status = CUDA_SUCCESS;
    for (size_t at = 0, size; !status && (size = next_change(mirror->base, mirror->shadow, mirror->size, &at));
         at += size)
        status = send_lines(mirror, at, size);
    return status;
}

CUresult host_send(void)
{
    CUresult status = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (struct mirror *each = mirrors; each && !status; each = each->next)
        status = send_changes(each);
    pthread_mutex_unlock(&lock);
    return status;
}

static int before_waiting(void)
{
    return host_send();
}

static CUresult mirror_begin(const struct range *range)
{
    struct message m;
    struct mirror *mirror = calloc(1, sizeof *mirror);
    if (!mirror)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *mirror = (struct mirror){.base = (char *)range->base, .size = range->size};
    mirror->shadow = calloc(1, mirror->size);
    mirror->landing = mirror->shadow ? landing_begin(mirror->base, mirror->size, false, mirror->shadow) : NULL;
    int status = mirror->landing ? message_begin(&m, OP_host_map) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!status) {
        put_u64(&m, range->base);
        put_u64(&m, mirror->size);
        put_u64(&m, landing_cookie(mirror->landing));
        status = message_send(&m);
    }
    if (status) {
        if (mirror->landing)
            landing_end(mirror->landing);
        free(mirror->shadow);
        free(mirror);
        return (CUresult)status;
    }
    mirror->next = mirrors;
    mirrors = mirror;
    return CUDA_SUCCESS;
}

CUresult host_note(uint64_t word)
{
    struct range range;
    CUresult status = CUDA_SUCCESS;
    if (word - HOST_BASE >= HOST_SPAN && !__atomic_load_n(&registered, __ATOMIC_RELAXED))
        return CUDA_SUCCESS; /* most words are no addresses of the host */
    if (!range_find(word, &range) || !range.host)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct mirror *mirror = mirrors;
    while (mirror && (uintptr_t)mirror->base != range.base)
        mirror = mirror->next;
    if (!mirror)
        status = mirror_begin(&range);
    pthread_mutex_unlock(&lock);
    if (!status)
        link_before_waiting = before_waiting;
    return status;
}

/* After the answer nothing more arrives there. */
static void mirror_end(uintptr_t base)
{
    struct message m;
    pthread_mutex_lock(&lock);
    struct mirror **at = &mirrors;
    while (*at && (uintptr_t)(*at)->base != base)
        at = &(*at)->next;
    struct mirror *mirror = *at;
    if (mirror)
        *at = mirror->next;
    pthread_mutex_unlock(&lock);
    if (!mirror)
        return;
    if (!message_begin(&m, OP_host_end)) {
        put_u64(&m, base);
        message_call(&m);
    }
    landing_end(mirror->landing);
    free(mirror->shadow);
    free(mirror);
}

static CUresult allocate(void **pointer, size_t size, bool managed, unsigned flags)
{
    static uintptr_t next = HOST_BASE;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pointer || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (size > HOST_SPAN)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t at = __atomic_fetch_add(&next, pages(size) + PAGE, __ATOMIC_RELAXED); /* with a page between */
    if (at + pages(size) > HOST_BASE + HOST_SPAN)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap((void *)at, pages(size), PROT_READ | PROT_WRITE, how, -1, 0) != (void *)at)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct range range = {.base = at, .size = size, .host = true, .managed = managed, .flags = flags};
    if (!range_add(&range)) {
        munmap((void *)at, pages(size));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *pointer = (void *)at;
    return CUDA_SUCCESS;
}

CUresult host_free(uintptr_t base)
{
    struct range range;
    if (!range_find(base, &range) || range.base != base || !range.host || range.registered)
        return CUDA_ERROR_INVALID_VALUE;
    range_remove(base, &range);
    mirror_end(base);
    munmap((void *)base, pages(range.size));
    return CUDA_SUCCESS;
}

API cuMemHostAlloc(void **pointer, size_t size, unsigned int flags)
{
    return allocate(pointer, size, false, flags);
}

API cuMemAllocHost_v2(void **pointer, size_t size)
{
    return allocate(pointer, size, false, 0);
}

API cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned int flags)
{
    void *host;
    if (!pointer || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = allocate(&host, size, true, flags);
    if (!status)
        *pointer = (CUdeviceptr)(uintptr_t)host;
    return status;
}

API cuMemFreeHost(void *pointer)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!range_find((uintptr_t)pointer, &range) || range.managed)
        return CUDA_ERROR_INVALID_VALUE;
    return host_free((uintptr_t)pointer);
}

API cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags)
{
    const struct range range = {
        .base = (uintptr_t)pointer, .size = size, .host = true, .registered = true, .flags = flags};
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!pointer || !size)
        return CUDA_ERROR_INVALID_VALUE;
    if (!range_add(&range))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    __atomic_fetch_add(&registered, 1, __ATOMIC_RELAXED);
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *pointer)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!range_find((uintptr_t)pointer, &range) || range.base != (uintptr_t)pointer || !range.registered)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    range_remove((uintptr_t)pointer, &range);
    __atomic_fetch_sub(&registered, 1, __ATOMIC_RELAXED);
    mirror_end((uintptr_t)pointer);
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned int *flags, void *pointer)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (!flags || !range_find((uintptr_t)pointer, &range) || !range.host)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range.flags;
    return CUDA_SUCCESS;
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned int flags)
{
    struct range range;
    if (!facts)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (flags || !device || !range_find((uintptr_t)pointer, &range) || !range.host)
        return CUDA_ERROR_INVALID_VALUE;
    *device = (CUdeviceptr)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}
