/* Memory of the client that kernels use, at the same address here. See client/host.c. */
#define _GNU_SOURCE
#include "worker.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

struct mirror {
    struct mirror *next;
    char *base;
    size_t size;
    char *shadow;
    uint64_t cookie;
};
static struct mirror *mirrors;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void do_host_map(struct request *r)
{
    uint64_t base = take_u64(r), size = take_u64(r), cookie = take_u64(r);
    require(r, size && size <= HOST_SPAN && base - HOST_BASE <= HOST_SPAN - size && !(base % PAGE) && !(size % PAGE));
    if (r->status)
        return;
    struct mirror *mirror = calloc(1, sizeof *mirror);
    char *shadow = calloc(1, size);
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (!mirror || !shadow || mmap((void *)base, size, PROT_READ | PROT_WRITE, how, -1, 0) != (void *)base) {
        r->status = CUDA_ERROR_OUT_OF_MEMORY;
        free(mirror);
        free(shadow);
        return;
    }
    *mirror = (struct mirror){NULL, (char *)base, size, shadow, cookie};
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    r->status = (int)real_cuda.cuMemHostRegister_v2(mirror->base, size, flags);
    if (r->status) {
        munmap(mirror->base, size);
        free(shadow);
        free(mirror);
        return;
    }
    pthread_mutex_lock(&lock);
    mirror->next = mirrors;
    mirrors = mirror;
    pthread_mutex_unlock(&lock);
}

void do_host_in(struct request *r)
{
    size_t size;
    uint64_t to = take_u64(r);
    const void *data = take_block(r, &size);
    if (r->status || !data)
        return;
    pthread_mutex_lock(&lock);
    struct mirror *mirror = mirrors;
    while (mirror && (size > mirror->size || to - (uintptr_t)mirror->base > mirror->size - size))
        mirror = mirror->next;
    if (mirror) {
        memcpy((char *)to, data, size);
        memcpy(mirror->shadow + (to - (uintptr_t)mirror->base), data, size);
    }
    pthread_mutex_unlock(&lock);
    require(r, mirror);
}

void do_host_end(struct request *r)
{
    uint64_t base = take_u64(r);
    pthread_mutex_lock(&lock);
    struct mirror **at = &mirrors;
    while (*at && (uintptr_t)(*at)->base != base)
        at = &(*at)->next;
    struct mirror *mirror = *at;
    if (mirror)
        *at = mirror->next;
    pthread_mutex_unlock(&lock);
    require(r, mirror);
    if (!mirror)
        return;
    real_cuda.cuCtxSynchronize(); /* as freeing does */
    real_cuda.cuMemHostUnregister(mirror->base);
    munmap(mirror->base, mirror->size);
    free(mirror->shadow);
    free(mirror);
}

/* Send the lines that kernels changed. */
static void send_changes(const struct mirror *mirror)
{
    for (size_t at = 0; at < mirror->size;) {
        size_t start = at;
        while (at < mirror->size && at - start < WIRE_PIECE / 2
               && memcmp(mirror->base + at, mirror->shadow + at, HOST_LINE)) {
            memcpy(mirror->shadow + at, mirror->base + at, HOST_LINE);
            at += HOST_LINE;
        }
        if (at > start)
            out_data(mirror->cookie, start, mirror->shadow + start, at - start);
        else
            at += HOST_LINE;
    }
}

void host_return(void)
{
    pthread_mutex_lock(&lock);
    for (const struct mirror *mirror = mirrors; mirror; mirror = mirror->next)
        send_changes(mirror);
    pthread_mutex_unlock(&lock);
}
