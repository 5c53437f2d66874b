#define _GNU_SOURCE
#include "tenants.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64 };

/* ---- messages ---- */

static void hear_all(struct arbiter *arbiter, struct connection *connection, uint32_t events)
{
    while (connection->budget) {
        int64_t now = arbiter_now();
        int heard = connection_hear(arbiter, connection, now);
        if (heard < 0)
            connection_close(arbiter, connection, now);
        if (heard)
            return;
        connection->budget--;
        if (!(events & (EPOLLHUP | EPOLLERR)))
            return; /* one message per round: epoll reports the others again */
    }
    if (events & (EPOLLHUP | EPOLLERR))
        connection_close(arbiter, connection, arbiter_now());
    else
        source_listen(arbiter, &connection->source, 0); /* until the next heartbeat */
}

static void handle(struct arbiter *arbiter, struct source *source, uint32_t events)
{
    uint64_t count;
    if (source->closed)
        return;
    switch (source->kind) {
    case SOURCE_TIMER:
    case SOURCE_BELL:
        if (read(source->descriptor, &count, sizeof count) < 0)
            return;
        if (source->kind == SOURCE_TIMER)
            arbiter->armed = LEASE_NEVER;
        return;
    case SOURCE_LISTENER: tenant_accept(arbiter, (struct tenant *)source); return;
    case SOURCE_CONNECTION: hear_all(arbiter, (struct connection *)source, events); return;
    }
}

/* ---- time ---- */

static void beat(struct arbiter *arbiter, int64_t now)
{
    for (int i = 0; i < MOST_TENANTS; i++) {
        struct tenant *tenant = arbiter->tenants[i];
        if (!tenant)
            continue;
        __atomic_store_n(&tenant->page->heartbeat_ns, (uint64_t)now, __ATOMIC_RELEASE);
        uint32_t sequence = __atomic_load_n(&tenant->page->sequence, __ATOMIC_ACQUIRE);
        /* An odd sequence means a write is in progress or its writer died; the arbiter waits for neither. */
        if (sequence != tenant->sequence && sequence % 2 == 0)
            tenant_configure(arbiter, tenant, now);
        for (struct connection *each = tenant->connections; each; each = each->next) {
            if (!each->budget)
                source_listen(arbiter, &each->source, 1);
            each->budget = MOST_MESSAGES;
        }
    }
}

static void keep_time(struct arbiter *arbiter)
{
    int64_t now = arbiter_now(), due = LEASE_NEVER;
    if (arbiter->heartbeat_at <= now) {
        beat(arbiter, now);
        lease_gangs_group(&arbiter->gangs, now);
        arbiter->heartbeat_at = now + LEASE_HEARTBEAT_NS;
    }
    for (int i = 0; i < arbiter->gpu_count; i++) {
        struct shared_gpu *shared = &arbiter->gpus[i];
        if (!shared->tenants)
            continue;
        if (lease_gpu_due(&shared->lease) <= now)
            lease_gpu_timer(&shared->lease, now);
        if (lease_gpu_due(&shared->lease) < due)
            due = lease_gpu_due(&shared->lease);
    }
    lease_gangs_step(&arbiter->gangs, now);
    int64_t turn = lease_gangs_due(&arbiter->gangs, now);
    if (turn < due)
        due = turn;
    if (arbiter->heartbeat_at < due)
        due = arbiter->heartbeat_at;
    if (due >= arbiter->armed)
        return; /* the timer rings too early and is set again then */
    struct itimerspec when = {.it_value = {due / 1000000000, due % 1000000000}};
    timerfd_settime(arbiter->timer.descriptor, TFD_TIMER_ABSTIME, &when, NULL);
    arbiter->armed = due;
}

static void *run(void *argument)
{
    struct arbiter *arbiter = argument;
    struct epoll_event events[EVENTS];
    /* Run with real-time priority where allowed: this thread runs for microseconds, and the GPU waits for it. */
    struct sched_param first = {.sched_priority = 1};
    pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
    pthread_setname_np(pthread_self(), "mg-arbiter");
    pthread_mutex_lock(&arbiter->lock);
    while (!arbiter->stopping) {
        keep_time(arbiter);
        gpus_wake(arbiter);
        source_free_buried(arbiter);
        pthread_mutex_unlock(&arbiter->lock);
        int count = epoll_wait(arbiter->epoll, events, EVENTS, -1);
        pthread_mutex_lock(&arbiter->lock);
        for (int i = 0; i < count; i++)
            handle(arbiter, events[i].data.ptr, events[i].events);
    }
    pthread_mutex_unlock(&arbiter->lock);
    return NULL;
}

/* ---- the API ---- */

static void ring(struct arbiter *arbiter)
{
    uint64_t one = 1;
    /* The counter is full, so the loop wakes up anyway. */
    if (write(arbiter->bell.descriptor, &one, sizeof one) < 0)
        return;
}

static void close_all(struct arbiter *arbiter)
{
    source_free_buried(arbiter);
    if (arbiter->epoll >= 0)
        close(arbiter->epoll);
    if (arbiter->timer.descriptor >= 0)
        close(arbiter->timer.descriptor);
    if (arbiter->bell.descriptor >= 0)
        close(arbiter->bell.descriptor);
    pthread_mutex_destroy(&arbiter->lock);
    free(arbiter);
}

struct arbiter *arbiter_start(void)
{
    struct arbiter *arbiter = calloc(1, sizeof *arbiter);
    if (!arbiter)
        return NULL;
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&arbiter->lock, &kind);
    arbiter->armed = LEASE_NEVER;
    for (int i = 0; i < MOST_GPUS; i++)
        arbiter->gangs.gpus[i] = &arbiter->gpus[i].lease;
    arbiter->timer.descriptor = arbiter->bell.descriptor = -1;
    arbiter->epoll = epoll_create1(EPOLL_CLOEXEC);
    int problem = 0;
    if (arbiter->epoll < 0
        || source_watch(arbiter, &arbiter->timer, SOURCE_TIMER,
                        timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK))
        || source_watch(arbiter, &arbiter->bell, SOURCE_BELL, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)))
        problem = errno;
    if (!problem)
        problem = pthread_create(&arbiter->thread, NULL, run, arbiter);
    if (!problem)
        return arbiter;
    close_all(arbiter);
    errno = problem;
    return NULL;
}

void arbiter_stop(struct arbiter *arbiter)
{
    pthread_mutex_lock(&arbiter->lock);
    arbiter->stopping = 1;
    pthread_mutex_unlock(&arbiter->lock);
    ring(arbiter);
    pthread_join(arbiter->thread, NULL);
    for (int i = 0; i < MOST_TENANTS; i++) {
        struct tenant *tenant = arbiter->tenants[i];
        if (!tenant)
            continue;
        while (tenant->connections) {
            struct connection *each = tenant->connections;
            tenant->connections = each->next;
            source_bury(arbiter, &each->source);
        }
        munmap(tenant->page, MG_LIMITS_SIZE);
        source_bury(arbiter, &tenant->source);
    }
    close_all(arbiter);
}

static struct tenant *find(struct arbiter *arbiter, int number)
{
    for (int i = 0; i < MOST_TENANTS; i++)
        if (arbiter->tenants[i] && arbiter->tenants[i]->number == number)
            return arbiter->tenants[i];
    return NULL;
}

static int add(struct arbiter *arbiter, const char *folder)
{
    int place = 0;
    while (place < MOST_TENANTS && arbiter->tenants[place])
        place++;
    if (place == MOST_TENANTS)
        return -ENOSPC;
    struct tenant *tenant = tenant_open(arbiter, folder);
    if (!tenant)
        return -errno;
    int problem = tenant_configure(arbiter, tenant, arbiter_now());
    if (problem) {
        tenant_drop(arbiter, tenant, arbiter_now());
        return problem;
    }
    tenant->number = ++arbiter->next_number;
    arbiter->tenants[place] = tenant;
    arbiter->heartbeat_at = 0;
    return tenant->number;
}

int arbiter_add(struct arbiter *arbiter, const char *folder)
{
    pthread_mutex_lock(&arbiter->lock);
    int number = add(arbiter, folder);
    pthread_mutex_unlock(&arbiter->lock);
    ring(arbiter);
    return number;
}

int arbiter_remove(struct arbiter *arbiter, int number)
{
    pthread_mutex_lock(&arbiter->lock);
    struct tenant *tenant = find(arbiter, number);
    for (int i = 0; tenant && i < MOST_TENANTS; i++)
        if (arbiter->tenants[i] == tenant)
            arbiter->tenants[i] = NULL;
    if (tenant)
        tenant_drop(arbiter, tenant, arbiter_now());
    pthread_mutex_unlock(&arbiter->lock);
    ring(arbiter);
    return tenant ? 0 : -ENOENT;
}

int arbiter_read(struct arbiter *arbiter, int number, struct arbiter_account accounts[MG_PAGE_GPUS])
{
    pthread_mutex_lock(&arbiter->lock);
    struct tenant *tenant = find(arbiter, number);
    for (unsigned i = 0; tenant && i < tenant->gpu_count; i++) {
        struct lease_gpu *gpu = tenant_gpu(arbiter, tenant, i);
        int who = tenant->span.entries[i];
        struct lease_account *account = &gpu->accounts.of[who];
        lease_gpu_settle(gpu, arbiter_now());
        accounts[i] = (struct arbiter_account){.charged = account->charged,
                                               .waited = account->waited,
                                               .throttled = account->throttled,
                                               .wanting = gpu->tenants[who].active,
                                               .holding = gpu->holder == who && !gpu->parked,
                                               .suspect = account->suspect};
    }
    int count = tenant ? (int)tenant->gpu_count : -ENOENT;
    pthread_mutex_unlock(&arbiter->lock);
    return count;
}

void arbiter_read_totals(struct arbiter *arbiter, struct arbiter_totals *totals)
{
    clockid_t clock;
    struct timespec used = {0, 0};
    pthread_mutex_lock(&arbiter->lock);
    if (pthread_getcpuclockid(arbiter->thread, &clock) == 0)
        clock_gettime(clock, &used);
    totals->cpu_ns = used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
    totals->messages = arbiter->messages;
    totals->turns = 0;
    for (int i = 0; i < arbiter->gpu_count; i++)
        totals->turns += arbiter->gpus[i].lease.turns;
    pthread_mutex_unlock(&arbiter->lock);
}
