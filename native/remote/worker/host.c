/* Memory of the client that kernels use, at the same address here. See client/host.c. */
#define _GNU_SOURCE
#include "worker.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };
#define USER_END (UINT64_C(1) << 47)

struct mirror {
    struct mirror *next;
    char *base;
    size_t size;
    char *shadow;
    uint64_t cookie;
};
static struct mirror *mirrors;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Memory that a program registered may begin and end anywhere; whole pages are mapped. */
static char *first_page(const struct mirror *mirror)
{
    return mirror->base - (uintptr_t)mirror->base % PAGE;
}

static size_t page_bytes(const struct mirror *mirror)
{
    size_t used = (uintptr_t)mirror->base % PAGE + mirror->size;
    return (used + PAGE - 1) & ~(size_t)(PAGE - 1);
}

/* Nothing of this process is replaced: where it has memory of its own, the client's cannot be. */
static int map_pages(const struct mirror *mirror)
{
    char *first = first_page(mirror);
    int how = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    void *mapped = mmap(first, page_bytes(mirror), PROT_READ | PROT_WRITE, how, -1, 0);
    if (mapped == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    unsigned flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    int status = mapped == first ? (int)real_cuda.cuMemHostRegister_v2(first, page_bytes(mirror), flags)
                                 : CUDA_ERROR_OUT_OF_MEMORY;
    if (status)
        munmap(mapped, page_bytes(mirror));
    return status;
}

void do_host_map(struct request *r)
{
    uint64_t base = take_u64(r), size = take_u64(r), cookie = take_u64(r);
    require(r, size && size <= HOST_SPAN && base >= PAGE && base < USER_END && size <= USER_END - base);
    if (r->status)
        return;
    struct mirror *mirror = calloc(1, sizeof *mirror);
    char *shadow = calloc(1, size);
    if (!mirror || !shadow) {
        r->status = CUDA_ERROR_OUT_OF_MEMORY;
        free(mirror);
        free(shadow);
        return;
    }
    *mirror = (struct mirror){NULL, (char *)base, size, shadow, cookie};
    r->status = map_pages(mirror);
    if (r->status) {
        free(shadow);
        free(mirror);
        return;
    }
    pthread_mutex_lock(&lock);
    mirror->next = mirrors;
    mirrors = mirror;
    pthread_mutex_unlock(&lock);
}

/* The mirror in which all of this memory is; with the lock. */
static const struct mirror *mirror_with(uint64_t address, uint64_t size)
{
    const struct mirror *mirror = mirrors;
    while (mirror && (size > mirror->size || address - (uintptr_t)mirror->base > mirror->size - size))
        mirror = mirror->next;
    return mirror;
}

bool host_has(uint64_t address, uint64_t size)
{
    pthread_mutex_lock(&lock);
    bool found = mirror_with(address, size);
    pthread_mutex_unlock(&lock);
    return found;
}

void do_host_in(struct request *r)
{
    size_t size;
    uint64_t to = take_u64(r);
    const void *data = take_block(r, &size);
    if (r->status || !data)
        return;
    pthread_mutex_lock(&lock);
    const struct mirror *mirror = mirror_with(to, size);
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
    real_cuda.cuMemHostUnregister(first_page(mirror));
    munmap(first_page(mirror), page_bytes(mirror));
    free(mirror->shadow);
    free(mirror);
}

/* Send the lines that kernels changed. */
static void send_changes(const struct mirror *mirror)
{
    for (size_t at = 0, size; (size = next_change(mirror->base, mirror->shadow, mirror->size, &at)); at += size) {
        memcpy(mirror->shadow + at, mirror->base + at, size);
        out_data(mirror->cookie, at, mirror->shadow + at, size);
    }
}

void host_return(void)
{
    pthread_mutex_lock(&lock);
    for (const struct mirror *mirror = mirrors; mirror; mirror = mirror->next)
        send_changes(mirror);
    pthread_mutex_unlock(&lock);
}
