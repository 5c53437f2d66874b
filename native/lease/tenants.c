#define _GNU_SOURCE
#include "tenants.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { BACKLOG = 512 };

int64_t arbiter_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- descriptors ---- */

int source_watch(struct arbiter *arbiter, struct source *source, enum source_kind kind, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    source->kind = kind;
    source->descriptor = descriptor;
    if (descriptor < 0)
        return -1;
    return epoll_ctl(arbiter->epoll, EPOLL_CTL_ADD, descriptor, &event);
}

void source_listen(struct arbiter *arbiter, struct source *source, int to_it)
{
    struct epoll_event event = {.events = to_it ? EPOLLIN : 0, .data.ptr = source};
    epoll_ctl(arbiter->epoll, EPOLL_CTL_MOD, source->descriptor, &event);
}

void source_bury(struct arbiter *arbiter, struct source *source)
{
    close(source->descriptor);
    source->closed = 1;
    source->next_closed = arbiter->closed;
    arbiter->closed = source;
}

void source_free_buried(struct arbiter *arbiter)
{
    while (arbiter->closed) {
        struct source *source = arbiter->closed;
        arbiter->closed = source->next_closed;
        free(source); /* the first member of the structure it belongs to */
    }
}

/* ---- GPUs ---- */

static struct shared_gpu *find_gpu(struct arbiter *arbiter, const char *uuid)
{
    struct shared_gpu *unused = NULL;
    for (int i = 0; i < MOST_GPUS; i++) {
        struct shared_gpu *shared = &arbiter->gpus[i];
        if (shared->tenants && strncmp(shared->uuid, uuid, MG_UUID_SIZE) == 0)
            return shared;
        if (!shared->tenants && !unused)
            unused = shared;
    }
    if (unused) {
        if (unused - arbiter->gpus >= arbiter->gpu_count)
            arbiter->gpu_count = (int)(unused - arbiter->gpus) + 1;
        memcpy(unused->uuid, uuid, MG_UUID_SIZE);
        lease_gpu_init(&unused->lease);
    }
    return unused;
}

void gpus_wake(struct arbiter *arbiter)
{
    for (int i = 0; i < arbiter->gpu_count; i++) {
        struct lease_gpu *gpu = &arbiter->gpus[i].lease;
        while (gpu->wake) {
            int who = __builtin_ctzll(gpu->wake);
            gpu->wake &= gpu->wake - 1;
            if (gpu->tenants[who].words)
                syscall(SYS_futex, (uint32_t *)&gpu->tenants[who].words->lease_generation, FUTEX_WAKE, INT_MAX, NULL,
                        NULL, 0);
        }
    }
}

/* ---- tenants ---- */

struct lease_gpu *tenant_gpu(struct arbiter *arbiter, const struct tenant *tenant, unsigned index)
{
    return tenant->span.gpus[index] < 0 ? NULL : &arbiter->gpus[tenant->span.gpus[index]].lease;
}

static void detach(struct arbiter *arbiter, struct tenant *tenant, unsigned index, int64_t now)
{
    int at = tenant->span.gpus[index], entry = tenant->span.entries[index];
    struct lease_gpu *gpu = tenant_gpu(arbiter, tenant, index);
    if (!gpu)
        return;
    for (struct connection *each = tenant->connections; each; each = each->next)
        lease_gpu_leave(gpu, entry, &each->processes[index], now);
    lease_gpu_remove(gpu, entry, now);
    gpu->wake &= ~(UINT64_C(1) << entry);
    syscall(SYS_futex, (uint32_t *)&tenant->page->gpus[index].lease_generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    arbiter->gpus[at].tenants--;
    tenant->span.gpus[index] = -1;
    tenant->span.holds &= ~(UINT64_C(1) << at);
    lease_gangs_group(&arbiter->gangs, now);
}

static int attach(struct arbiter *arbiter, struct tenant *tenant, unsigned index, const char *uuid)
{
    struct shared_gpu *shared = find_gpu(arbiter, uuid);
    int entry = shared ? lease_gpu_add(&shared->lease, &tenant->page->gpus[index]) : -1;
    if (entry < 0)
        return -ENOSPC;
    shared->tenants++;
    tenant->span.gpus[index] = (int)(shared - arbiter->gpus);
    tenant->span.entries[index] = entry;
    for (struct connection *each = tenant->connections; each; each = each->next)
        lease_gpu_join(&shared->lease, entry, &each->processes[index]);
    return 0;
}

int tenant_configure(struct arbiter *arbiter, struct tenant *tenant, int64_t now)
{
    struct mg_limits_page copy;
    if (mg_limits_read(tenant->page, &copy))
        return -EINVAL;
    tenant->sequence = copy.sequence;
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++) {
        const struct mg_gpu_limits *wanted = &copy.gpus[i];
        int at = tenant->span.gpus[i];
        int same = at >= 0 && i < copy.gpu_count && strncmp(arbiter->gpus[at].uuid, wanted->uuid, MG_UUID_SIZE) == 0;
        if (!same)
            detach(arbiter, tenant, i, now);
        if (i >= copy.gpu_count)
            continue;
        if (!same && attach(arbiter, tenant, i, wanted->uuid))
            return -ENOSPC;
        lease_gpu_configure(tenant_gpu(arbiter, tenant, i), tenant->span.entries[i], (int)wanted->policy, wanted->milli,
                            wanted->limit, copy.priority, now);
    }
    tenant->gpu_count = copy.gpu_count;
    return 0;
}

void connection_close(struct arbiter *arbiter, struct connection *connection, int64_t now)
{
    struct tenant *tenant = connection->tenant;
    for (unsigned i = 0; i < tenant->gpu_count; i++) {
        struct lease_gpu *gpu = tenant_gpu(arbiter, tenant, i);
        if (gpu)
            lease_gpu_leave(gpu, tenant->span.entries[i], &connection->processes[i], now);
    }
    *connection->at = connection->next;
    if (connection->next)
        connection->next->at = connection->at;
    tenant->connection_count--;
    source_bury(arbiter, &connection->source);
}

void tenant_drop(struct arbiter *arbiter, struct tenant *tenant, int64_t now)
{
    while (tenant->connections)
        connection_close(arbiter, tenant->connections, now);
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++)
        detach(arbiter, tenant, i, now);
    lease_gangs_remove(&arbiter->gangs, &tenant->span);
    munmap(tenant->page, MG_LIMITS_SIZE);
    source_bury(arbiter, &tenant->source);
}

static struct mg_limits_page *map_page(int folder)
{
    int file = openat(folder, "limits", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat status;
    if (file < 0)
        return NULL;
    void *page = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size == MG_LIMITS_SIZE)
        page = mmap(NULL, MG_LIMITS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    else
        errno = EINVAL;
    int problem = errno;
    close(file);
    errno = problem;
    return page == MAP_FAILED ? NULL : page;
}

/* The directory's path may be longer than a socket address allows, so the socket is bound through the directory's
 * descriptor. Any user may connect, because only the tenant can enter the directory. */
static int open_socket(int folder)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    unlinkat(folder, "arbiter", 0);
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/arbiter", folder);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) || listen(listener, BACKLOG)
        || fchmodat(folder, "arbiter", 0666, 0)) {
        int problem = errno;
        close(listener);
        errno = problem;
        return -1;
    }
    return listener;
}

struct tenant *tenant_open(struct arbiter *arbiter, const char *path)
{
    struct tenant *tenant = calloc(1, sizeof *tenant);
    int folder = open(path, O_DIRECTORY | O_CLOEXEC | O_PATH);
    if (tenant && folder >= 0) {
        tenant->page = map_page(folder);
        if (tenant->page && source_watch(arbiter, &tenant->source, SOURCE_LISTENER, open_socket(folder)) == 0) {
            close(folder);
            for (unsigned i = 0; i < MG_PAGE_GPUS; i++)
                tenant->span.gpus[i] = -1;
            lease_gangs_add(&arbiter->gangs, &tenant->span);
            return tenant;
        }
    }
    int problem = errno;
    if (tenant && tenant->page)
        munmap(tenant->page, MG_LIMITS_SIZE);
    if (folder >= 0)
        close(folder);
    free(tenant);
    errno = problem;
    return NULL;
}

/* ---- messages ---- */

void tenant_accept(struct arbiter *arbiter, struct tenant *tenant)
{
    for (;;) {
        int descriptor = accept4(tenant->source.descriptor, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0)
            return;
        struct connection *connection = NULL;
        if (tenant->connection_count < MOST_CONNECTIONS)
            connection = calloc(1, sizeof *connection);
        if (!connection || source_watch(arbiter, &connection->source, SOURCE_CONNECTION, descriptor)) {
            free(connection);
            close(descriptor);
            continue;
        }
        connection->tenant = tenant;
        connection->budget = MOST_MESSAGES;
        connection->next = tenant->connections;
        connection->at = &tenant->connections;
        if (connection->next)
            connection->next->at = &connection->next;
        tenant->connections = connection;
        tenant->connection_count++;
        for (unsigned i = 0; i < tenant->gpu_count; i++) {
            struct lease_gpu *gpu = tenant_gpu(arbiter, tenant, i);
            if (gpu)
                lease_gpu_join(gpu, tenant->span.entries[i], &connection->processes[i]);
        }
    }
}

int connection_hear(struct arbiter *arbiter, struct connection *connection, int64_t now)
{
    struct tenant *tenant = connection->tenant;
    struct lease_message message;
    ssize_t size = recv(connection->source.descriptor, &message, sizeof message, MSG_TRUNC);
    if (size < 0)
        return errno == EAGAIN || errno == EINTR ? 1 : -1;
    if (size != sizeof message || message.gpu >= tenant->gpu_count || tenant->span.gpus[message.gpu] < 0)
        return -1;
    arbiter->messages++;
    lease_gpu_say(tenant_gpu(arbiter, tenant, message.gpu), tenant->span.entries[message.gpu],
                  &connection->processes[message.gpu], &message, now);
    return 0;
}
