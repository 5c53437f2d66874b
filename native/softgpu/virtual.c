/* Virtual memory management: addresses are reserved, physical memory is created, and one is mapped to the other.
 * Physical memory is an unnamed file, charged to its GPU until it has no holder and no mapping. */
#include "softgpu.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* As on most real GPUs; programs round up to it. */
static const size_t GRANULARITY = 2 << 20;

struct physical {
    struct physical *next;
    CUmemGenericAllocationHandle handle;
    int file;
    size_t size;
    struct card *card; /* the GPU that is charged; null for memory of the host and of other processes */
    CUmemAllocationProp prop;
    unsigned holders, mappings;
};

struct range { /* of addresses: reserved, or mapped to physical memory */
    struct range *next;
    uintptr_t start;
    size_t size;
    struct physical *physical;
    bool open; /* it may be accessed */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range *reserved, *mapped;
static struct physical *all;

static bool whole(size_t size)
{
    return size && size % GRANULARITY == 0;
}

static bool within(const struct range *range, uintptr_t start, size_t size)
{
    return start >= range->start && size <= range->size && start - range->start <= range->size - size;
}

static bool overlap(const struct range *range, uintptr_t start, size_t size)
{
    return start < range->start + range->size && range->start < start + size;
}

static bool add_range(struct range **list, struct range content)
{
    struct range *range = malloc(sizeof *range);
    if (!range)
        return false;
    *range = content;
    range->next = *list;
    *list = range;
    return true;
}

static void drop_range(struct range **at)
{
    struct range *range = *at;
    *at = range->next;
    free(range);
}

/* ---- addresses ---- */
API cuMemAddressReserve(CUdeviceptr *made, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!made || !whole(size) || flags || alignment & (alignment - 1) || size > SIZE_MAX / 4)
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment > GRANULARITY)
        return CUDA_ERROR_NOT_SUPPORTED;
    void *start = mmap(wanted ? (void *)(uintptr_t)wanted : memory_fresh_address(size), size, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&lock);
    bool good = (uintptr_t)start % GRANULARITY == 0
                && add_range(&reserved, (struct range){.start = (uintptr_t)start, .size = size});
    pthread_mutex_unlock(&lock);
    if (!good) {
        munmap(start, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (CUdeviceptr)(uintptr_t)start;
    return CUDA_SUCCESS;
}

/* Under the lock. */
static bool is_mapped(uintptr_t start, size_t size)
{
    bool found = false;
    for (struct range *range = mapped; range && !found; range = range->next)
        found = overlap(range, start, size);
    return found;
}

API cuMemAddressFree(CUdeviceptr start, size_t size)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct range **at = &reserved; *at; at = &(*at)->next)
        if ((*at)->start == start && (*at)->size == size && !is_mapped(start, size)) {
            munmap((void *)(uintptr_t)start, size);
            drop_range(at);
            status = CUDA_SUCCESS;
            break;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

/* ---- memory ---- */
static CUresult check_prop(const CUmemAllocationProp *prop, struct card **card)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    *card = 0;
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        return sg_card(prop->location.id, card);
    return prop->location.type == CU_MEM_LOCATION_TYPE_HOST ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

API cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
                                  CUmemAllocationGranularity_flags which)
{
    struct card *card;
    CUresult status = check_prop(prop, &card);
    if (!status && (!bytes || (unsigned)which > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status)
        *bytes = GRANULARITY;
    return status;
}

static CUresult physical_new(int file, size_t size, struct card *card, const CUmemAllocationProp *prop,
                             CUmemGenericAllocationHandle *made)
{
    struct physical *physical = malloc(sizeof *physical);
    if (physical) {
        *physical = (struct physical){.file = file, .size = size, .card = card, .prop = *prop, .holders = 1};
        physical->handle = (CUmemGenericAllocationHandle)(uintptr_t)handle_new(HANDLE_PHYSICAL, physical);
    }
    if (!physical || !physical->handle) {
        free(physical);
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&lock);
    physical->next = all;
    all = physical;
    pthread_mutex_unlock(&lock);
    *made = physical->handle;
    return CUDA_SUCCESS;
}

API cuMemCreate(CUmemGenericAllocationHandle *made, size_t size, const CUmemAllocationProp *prop,
                unsigned long long flags)
{
    struct card *card;
    CUresult status = check_prop(prop, &card);
    if (!status && (!made || !whole(size) || flags))
        status = CUDA_ERROR_INVALID_VALUE;
    if (!status && size > SIZE_MAX / 4)
        status = CUDA_ERROR_OUT_OF_MEMORY;
    if (!status && card)
        status = card_reserve(card, size);
    if (status)
        return status;
    int file = memfd_create("milligpu", MFD_CLOEXEC);
    if (file >= 0 && ftruncate(file, (off_t)size)) {
        close(file);
        file = -1;
    }
    status = file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : physical_new(file, size, card, prop, made);
    if (status && card)
        card_release(card, size);
    return status;
}

/* Memory that has a holder. Under the lock. */
static struct physical *find(CUmemGenericAllocationHandle handle)
{
    struct physical *physical = handle_get(HANDLE_PHYSICAL, (void *)(uintptr_t)handle);
    return physical && physical->holders ? physical : 0;
}

/* Under the lock. */
static void settle(struct physical *physical)
{
    if (physical->holders || physical->mappings)
        return;
    handle_drop(HANDLE_PHYSICAL, (void *)(uintptr_t)physical->handle);
    struct physical **at = &all;
    while (*at != physical)
        at = &(*at)->next;
    *at = physical->next;
    close(physical->file);
    if (physical->card)
        card_release(physical->card, physical->size);
    free(physical);
}

API cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    struct physical *physical = find(handle);
    if (physical) {
        physical->holders--;
        settle(physical);
    }
    pthread_mutex_unlock(&lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    const struct physical *physical = prop ? find(handle) : 0;
    if (physical)
        *prop = physical->prop;
    pthread_mutex_unlock(&lock);
    return physical ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemExportToShareableHandle(void *answer, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                 unsigned long long flags)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    pthread_mutex_lock(&lock);
    const struct physical *physical = find(handle);
    bool good = physical && answer && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                && physical->prop.requestedHandleTypes & type;
    int file = good ? fcntl(physical->file, F_DUPFD_CLOEXEC, 0) : -1;
    pthread_mutex_unlock(&lock);
    if (file >= 0)
        *(int *)answer = file;
    return file >= 0 ? CUDA_SUCCESS : good ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
}

/* The process that created the memory is charged for it. */
API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *made, void *given, CUmemAllocationHandleType type)
{
    struct context *context;
    struct stat about;
    CUresult status = context_current(&context);
    if (status)
        return status;
    int file = (int)(intptr_t)given;
    if (!made || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || fstat(file, &about) || !S_ISREG(about.st_mode)
        || !whole((size_t)about.st_size))
        return CUDA_ERROR_INVALID_VALUE;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = type,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = context->card->ordinal}};
    file = fcntl(file, F_DUPFD_CLOEXEC, 0);
    return file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : physical_new(file, (size_t)about.st_size, 0, &prop, made);
}

size_t virtual_charged(const struct card *card)
{
    size_t total = 0;
    pthread_mutex_lock(&lock);
    for (struct physical *each = all; each; each = each->next)
        total += each->card == card ? each->size : 0;
    pthread_mutex_unlock(&lock);
    return total;
}

/* ---- mapping ---- */
/* Under the lock. */
static bool is_reserved(uintptr_t start, size_t size)
{
    bool found = false;
    for (struct range *range = reserved; range && !found; range = range->next)
        found = within(range, start, size);
    return found;
}

API cuMemMap(CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    struct physical *physical = find(handle);
    if (physical && !flags && whole(size) && start % GRANULARITY == 0 && offset % GRANULARITY == 0
        && offset <= physical->size && size <= physical->size - offset && is_reserved(start, size)
        && !is_mapped(start, size)) {
        void *place = mmap((void *)(uintptr_t)start, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file,
                           (off_t)offset);
        bool good = place != MAP_FAILED && add_range(&mapped, (struct range){0, start, size, physical, false});
        status = good ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        physical->mappings += good;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

/* From now on calls and kernels may, or may no longer, use the range. Under the lock. */
static CUresult open_range(struct range *range, struct context *context, bool open)
{
    if (range->open == open)
        return CUDA_SUCCESS;
    if (mprotect((void *)range->start, range->size, open ? PROT_READ | PROT_WRITE : PROT_NONE))
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->open = open;
    if (!open) {
        memory_forget((void *)range->start);
        return CUDA_SUCCESS;
    }
    bool host = range->physical->prop.location.type == CU_MEM_LOCATION_TYPE_HOST;
    return memory_adopt(context, (void *)range->start, range->size, host ? MEMORY_REGISTERED : MEMORY_DEVICE);
}

/* How much of these addresses complete mappings cover. Under the lock. */
static size_t covered(uintptr_t start, size_t size)
{
    const struct range all = {.start = start, .size = size};
    size_t total = 0;
    for (struct range *range = mapped; range; range = range->next)
        total += within(&all, range->start, range->size) ? range->size : 0;
    return total;
}

API cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *wanted, size_t count)
{
    const struct range all = {.start = start, .size = size};
    struct context *context;
    CUresult status = context_current(&context);
    if (status)
        return status;
    if (!wanted || !count || !size)
        return CUDA_ERROR_INVALID_VALUE;
    bool open = false;
    for (size_t at = 0; at < count; at++) {
        if (wanted[at].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
            return CUDA_ERROR_NOT_SUPPORTED;
        open |= wanted[at].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    pthread_mutex_lock(&lock);
    status = covered(start, size) == size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (struct range *range = mapped; range && !status; range = range->next)
        if (within(&all, range->start, range->size))
            status = open_range(range, context, open);
    pthread_mutex_unlock(&lock);
    return status;
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    if (!flags || !location)
        return CUDA_ERROR_INVALID_VALUE;
    status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct range *range = mapped; range; range = range->next)
        if (within(range, pointer, 1)) {
            *flags = range->open ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
            status = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *made, void *address)
{
    CUresult status = sg_ready();
    if (status)
        return status;
    status = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    for (struct range *range = mapped; made && range; range = range->next)
        if (within(range, (uintptr_t)address, 1)) {
            range->physical->holders++;
            *made = range->physical->handle;
            status = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&lock);
    return status;
}

/* The addresses stay reserved. Under the lock. */
static void unmap(struct range **at)
{
    struct range *range = *at;
    open_range(range, 0, false);
    mmap((void *)range->start, range->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    range->physical->mappings--;
    settle(range->physical);
    drop_range(at);
}

/* As when memory is freed, wait for work that may still use it. */
API cuMemUnmap(CUdeviceptr start, size_t size)
{
    const struct range all = {.start = start, .size = size};
    CUresult status = sg_ready();
    if (status)
        return status;
    contexts_drain();
    pthread_mutex_lock(&lock);
    status = size && covered(start, size) == size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    for (struct range **at = &mapped; *at && !status;)
        if (within(&all, (*at)->start, (*at)->size))
            unmap(at);
        else
            at = &(*at)->next;
    pthread_mutex_unlock(&lock);
    return status;
}
