#define _GNU_SOURCE
#include "arbiter.h"
#include "turns.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* A machine with 16 cards, each shared by as many as can share one. */
enum { MOST_GPUS = 64, MOST_TENANTS = 1024 };
/* One connection per process; a usage page has room for 512. */
enum { MOST_CONNECTIONS = 512 };
/* What one process may say between two heartbeats: ten times what the busiest honest one does. */
enum { MOST_MESSAGES = 2000 };
enum { EVENTS = 64, BACKLOG = 512 };

enum source_kind { SOURCE_TIMER, SOURCE_BELL, SOURCE_LISTENER, SOURCE_CONNECTION };

/* What epoll tells about. */
struct source {
    enum source_kind kind;
    int descriptor;
    int closed; /* freed at the end of the round */
    struct source *next_closed;
};

struct connection {
    struct source source;
    struct tenant *tenant;
    struct connection *next, **at;
    unsigned budget;
    struct lease_member members[MG_PAGE_GPUS];
};

struct card {
    char uuid[MG_UUID_SIZE];
    struct lease_gpu gpu;
    int tenants; /* 0: a free entry */
};

struct tenant {
    struct source source; /* the socket in its folder */
    int number;
    struct mg_limits_page *page;
    uint32_t sequence; /* of the configuration that is in force */
    unsigned gpus;
    struct card *cards[MG_PAGE_GPUS];
    int entries[MG_PAGE_GPUS]; /* its number at the card */
    struct connection *connections;
    unsigned connection_count;
};

struct arbiter {
    pthread_t thread;
    pthread_mutex_t lock; /* everything below */
    int epoll;
    struct source timer, bell;
    int stopping;
    int64_t armed, heartbeat_at;
    uint64_t messages;
    struct card cards[MOST_GPUS];
    struct tenant *tenants[MOST_TENANTS];
    int next_number;
    struct source *closed;
};

static int64_t clock_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* ---- descriptors ---- */

static int watch(struct arbiter *arbiter, struct source *source, enum source_kind kind, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    source->kind = kind;
    source->descriptor = descriptor;
    if (descriptor < 0) return -1;
    return epoll_ctl(arbiter->epoll, EPOLL_CTL_ADD, descriptor, &event);
}

static void listen_again(struct arbiter *arbiter, struct source *source, int to_it) {
    struct epoll_event event = {.events = to_it ? EPOLLIN : 0, .data.ptr = source};
    epoll_ctl(arbiter->epoll, EPOLL_CTL_MOD, source->descriptor, &event);
}

/* The round's remaining events may still point at it. */
static void bury(struct arbiter *arbiter, struct source *source) {
    close(source->descriptor);
    source->closed = 1;
    source->next_closed = arbiter->closed;
    arbiter->closed = source;
}

static void free_closed(struct arbiter *arbiter) {
    while (arbiter->closed) {
        struct source *source = arbiter->closed;
        arbiter->closed = source->next_closed;
        free(source); /* the first member of what it belongs to */
    }
}

/* ---- cards ---- */

static struct card *find_card(struct arbiter *arbiter, const char *uuid) {
    struct card *unused = NULL;
    for (int i = 0; i < MOST_GPUS; i++) {
        struct card *card = &arbiter->cards[i];
        if (card->tenants && strncmp(card->uuid, uuid, MG_UUID_SIZE) == 0) return card;
        if (!card->tenants && !unused) unused = card;
    }
    if (unused) {
        memcpy(unused->uuid, uuid, MG_UUID_SIZE);
        lease_gpu_init(&unused->gpu);
    }
    return unused;
}

/* Between two decisions only pages and sets change; here the tenants learn of it. */
static void wake_tenants(struct arbiter *arbiter) {
    for (int i = 0; i < MOST_GPUS; i++) {
        struct lease_gpu *gpu = &arbiter->cards[i].gpu;
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

static void detach(struct tenant *tenant, unsigned index, int64_t now) {
    struct card *card = tenant->cards[index];
    if (!card) return;
    for (struct connection *each = tenant->connections; each; each = each->next)
        lease_gpu_leave(&card->gpu, tenant->entries[index], &each->members[index], now);
    lease_gpu_remove(&card->gpu, tenant->entries[index], now);
    card->gpu.wake &= ~(UINT64_C(1) << tenant->entries[index]);
    syscall(SYS_futex, (uint32_t *)&tenant->page->gpus[index].lease_generation, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    card->tenants--;
    tenant->cards[index] = NULL;
}

static int attach(struct arbiter *arbiter, struct tenant *tenant, unsigned index, const char *uuid) {
    struct card *card = find_card(arbiter, uuid);
    int entry = card ? lease_gpu_add(&card->gpu, &tenant->page->gpus[index]) : -1;
    if (entry < 0) return -ENOSPC;
    card->tenants++;
    tenant->cards[index] = card;
    tenant->entries[index] = entry;
    for (struct connection *each = tenant->connections; each; each = each->next)
        lease_gpu_join(&card->gpu, entry, &each->members[index]);
    return 0;
}

/* Brings a tenant in line with its page. What is not a valid page changes nothing. */
static int configure(struct arbiter *arbiter, struct tenant *tenant, int64_t now) {
    struct mg_limits_page copy;
    if (mg_limits_read(tenant->page, &copy)) return -EINVAL;
    tenant->sequence = copy.sequence;
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++) {
        const struct mg_gpu_limits *wanted = &copy.gpus[i];
        struct card *card = tenant->cards[i];
        int same = card && i < copy.gpu_count && strncmp(card->uuid, wanted->uuid, MG_UUID_SIZE) == 0;
        if (!same) detach(tenant, i, now);
        if (i >= copy.gpu_count) continue;
        if (!same && attach(arbiter, tenant, i, wanted->uuid)) return -ENOSPC;
        lease_gpu_configure(&tenant->cards[i]->gpu, tenant->entries[i], (int)wanted->policy, wanted->milli,
                            wanted->limit, copy.priority, now);
    }
    tenant->gpus = copy.gpu_count;
    return 0;
}

static void close_connection(struct arbiter *arbiter, struct connection *connection, int64_t now) {
    struct tenant *tenant = connection->tenant;
    for (unsigned i = 0; i < tenant->gpus; i++)
        if (tenant->cards[i])
            lease_gpu_leave(&tenant->cards[i]->gpu, tenant->entries[i], &connection->members[i], now);
    *connection->at = connection->next;
    if (connection->next) connection->next->at = connection->at;
    tenant->connection_count--;
    bury(arbiter, &connection->source);
}

static void drop_tenant(struct arbiter *arbiter, struct tenant *tenant, int64_t now) {
    while (tenant->connections) close_connection(arbiter, tenant->connections, now);
    for (unsigned i = 0; i < MG_PAGE_GPUS; i++) detach(tenant, i, now);
    munmap(tenant->page, MG_LIMITS_SIZE);
    bury(arbiter, &tenant->source);
}

static struct mg_limits_page *map_page(int folder) {
    int file = openat(folder, "limits", O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    struct stat status;
    if (file < 0) return NULL;
    void *page = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size == MG_LIMITS_SIZE)
        page = mmap(NULL, MG_LIMITS_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    else errno = EINVAL;
    int problem = errno;
    close(file);
    errno = problem;
    return page == MAP_FAILED ? NULL : page;
}

/* The folder's path may be longer than a socket's name can be, so it is reached through its descriptor. Any user may
 * connect: the folder is what only the tenant can enter. */
static int open_socket(int folder) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0) return -1;
    unlinkat(folder, "arbiter", 0);
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/arbiter", folder);
    if (bind(listener, (struct sockaddr *)&name, sizeof name) || listen(listener, BACKLOG) ||
        fchmodat(folder, "arbiter", 0666, 0)) {
        int problem = errno;
        close(listener);
        errno = problem;
        return -1;
    }
    return listener;
}

static struct tenant *new_tenant(struct arbiter *arbiter, const char *path) {
    struct tenant *tenant = calloc(1, sizeof *tenant);
    int folder = open(path, O_DIRECTORY | O_CLOEXEC | O_PATH);
    if (tenant && folder >= 0) {
        tenant->page = map_page(folder);
        if (tenant->page && watch(arbiter, &tenant->source, SOURCE_LISTENER, open_socket(folder)) == 0) {
            close(folder);
            return tenant;
        }
    }
    int problem = errno;
    if (tenant && tenant->page) munmap(tenant->page, MG_LIMITS_SIZE);
    if (folder >= 0) close(folder);
    free(tenant);
    errno = problem;
    return NULL;
}

/* ---- what arrives ---- */

static void accept_all(struct arbiter *arbiter, struct tenant *tenant) {
    for (;;) {
        int descriptor = accept4(tenant->source.descriptor, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor < 0) return;
        struct connection *connection = NULL;
        if (tenant->connection_count < MOST_CONNECTIONS) connection = calloc(1, sizeof *connection);
        if (!connection || watch(arbiter, &connection->source, SOURCE_CONNECTION, descriptor)) {
            free(connection);
            close(descriptor);
            continue;
        }
        connection->tenant = tenant;
        connection->budget = MOST_MESSAGES;
        connection->next = tenant->connections;
        connection->at = &tenant->connections;
        if (connection->next) connection->next->at = &connection->next;
        tenant->connections = connection;
        tenant->connection_count++;
        for (unsigned i = 0; i < tenant->gpus; i++)
            if (tenant->cards[i]) lease_gpu_join(&tenant->cards[i]->gpu, tenant->entries[i], &connection->members[i]);
    }
}

/* 0: heard and understood. 1: nothing there. -1: gone, or not speaking our language. */
static int hear(struct arbiter *arbiter, struct connection *connection, int64_t now) {
    struct tenant *tenant = connection->tenant;
    struct lease_message message;
    ssize_t size = recv(connection->source.descriptor, &message, sizeof message, MSG_TRUNC);
    if (size < 0) return errno == EAGAIN || errno == EINTR ? 1 : -1;
    if (size != sizeof message || message.gpu >= tenant->gpus || !tenant->cards[message.gpu]) return -1;
    arbiter->messages++;
    lease_gpu_say(&tenant->cards[message.gpu]->gpu, tenant->entries[message.gpu],
                  &connection->members[message.gpu], &message, now);
    return 0;
}

static void hear_all(struct arbiter *arbiter, struct connection *connection, uint32_t events) {
    while (connection->budget) {
        int64_t now = clock_now();
        int heard = hear(arbiter, connection, now);
        if (heard < 0) close_connection(arbiter, connection, now);
        if (heard) return;
        connection->budget--;
        if (!(events & (EPOLLHUP | EPOLLERR))) return; /* one per round: epoll tells of the others */
    }
    if (events & (EPOLLHUP | EPOLLERR)) close_connection(arbiter, connection, clock_now());
    else listen_again(arbiter, &connection->source, 0); /* until the next heartbeat */
}

static void handle(struct arbiter *arbiter, struct source *source, uint32_t events) {
    uint64_t count;
    if (source->closed) return;
    switch (source->kind) {
    case SOURCE_TIMER:
    case SOURCE_BELL:
        if (read(source->descriptor, &count, sizeof count) < 0) return;
        if (source->kind == SOURCE_TIMER) arbiter->armed = LEASE_NEVER;
        return;
    case SOURCE_LISTENER:
        accept_all(arbiter, (struct tenant *)source);
        return;
    case SOURCE_CONNECTION:
        hear_all(arbiter, (struct connection *)source, events);
        return;
    }
}

/* ---- time ---- */

static void beat(struct arbiter *arbiter, int64_t now) {
    for (int i = 0; i < MOST_TENANTS; i++) {
        struct tenant *tenant = arbiter->tenants[i];
        if (!tenant) continue;
        __atomic_store_n(&tenant->page->heartbeat_ns, (uint64_t)now, __ATOMIC_RELEASE);
        if (__atomic_load_n(&tenant->page->sequence, __ATOMIC_ACQUIRE) != tenant->sequence)
            configure(arbiter, tenant, now);
        for (struct connection *each = tenant->connections; each; each = each->next) {
            if (!each->budget) listen_again(arbiter, &each->source, 1);
            each->budget = MOST_MESSAGES;
        }
    }
}

static void keep_time(struct arbiter *arbiter) {
    int64_t now = clock_now(), due = LEASE_NEVER;
    if (arbiter->heartbeat_at <= now) {
        beat(arbiter, now);
        arbiter->heartbeat_at = now + LEASE_HEARTBEAT_NS;
    }
    for (int i = 0; i < MOST_GPUS; i++) {
        struct card *card = &arbiter->cards[i];
        if (!card->tenants) continue;
        if (lease_gpu_due(&card->gpu) <= now) lease_gpu_timer(&card->gpu, now);
        if (lease_gpu_due(&card->gpu) < due) due = lease_gpu_due(&card->gpu);
    }
    if (arbiter->heartbeat_at < due) due = arbiter->heartbeat_at;
    if (due == arbiter->armed) return;
    struct itimerspec when = {.it_value = {due / 1000000000, due % 1000000000}};
    timerfd_settime(arbiter->timer.descriptor, TFD_TIMER_ABSTIME, &when, NULL);
    arbiter->armed = due;
}

static void *run(void *argument) {
    struct arbiter *arbiter = argument;
    struct epoll_event events[EVENTS];
    /* Where we may, we come first: we run for microseconds, and the GPU waits for us. */
    struct sched_param first = {.sched_priority = 1};
    pthread_setschedparam(pthread_self(), SCHED_FIFO, &first);
    pthread_setname_np(pthread_self(), "mg-arbiter");
    pthread_mutex_lock(&arbiter->lock);
    while (!arbiter->stopping) {
        keep_time(arbiter);
        wake_tenants(arbiter);
        free_closed(arbiter);
        pthread_mutex_unlock(&arbiter->lock);
        int count = epoll_wait(arbiter->epoll, events, EVENTS, -1);
        pthread_mutex_lock(&arbiter->lock);
        for (int i = 0; i < count; i++) handle(arbiter, events[i].data.ptr, events[i].events);
    }
    pthread_mutex_unlock(&arbiter->lock);
    return NULL;
}

/* ---- the calls ---- */

static void ring(struct arbiter *arbiter) {
    uint64_t one = 1;
    if (write(arbiter->bell.descriptor, &one, sizeof one) < 0) return; /* full: it rings already */
}

static void close_all(struct arbiter *arbiter) {
    free_closed(arbiter);
    if (arbiter->epoll >= 0) close(arbiter->epoll);
    if (arbiter->timer.descriptor >= 0) close(arbiter->timer.descriptor);
    if (arbiter->bell.descriptor >= 0) close(arbiter->bell.descriptor);
    pthread_mutex_destroy(&arbiter->lock);
    free(arbiter);
}

struct arbiter *arbiter_start(void) {
    struct arbiter *arbiter = calloc(1, sizeof *arbiter);
    if (!arbiter) return NULL;
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&arbiter->lock, &kind);
    arbiter->armed = LEASE_NEVER;
    arbiter->timer.descriptor = arbiter->bell.descriptor = -1;
    arbiter->epoll = epoll_create1(EPOLL_CLOEXEC);
    int problem = 0;
    if (arbiter->epoll < 0 ||
        watch(arbiter, &arbiter->timer, SOURCE_TIMER, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) ||
        watch(arbiter, &arbiter->bell, SOURCE_BELL, eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)))
        problem = errno;
    if (!problem) problem = pthread_create(&arbiter->thread, NULL, run, arbiter);
    if (!problem) return arbiter;
    close_all(arbiter);
    errno = problem;
    return NULL;
}

void arbiter_stop(struct arbiter *arbiter) {
    pthread_mutex_lock(&arbiter->lock);
    arbiter->stopping = 1;
    pthread_mutex_unlock(&arbiter->lock);
    ring(arbiter);
    pthread_join(arbiter->thread, NULL);
    for (int i = 0; i < MOST_TENANTS; i++) {
        struct tenant *tenant = arbiter->tenants[i];
        if (!tenant) continue;
        while (tenant->connections) {
            struct connection *each = tenant->connections;
            tenant->connections = each->next;
            bury(arbiter, &each->source);
        }
        munmap(tenant->page, MG_LIMITS_SIZE);
        bury(arbiter, &tenant->source);
    }
    close_all(arbiter);
}

static struct tenant *find(struct arbiter *arbiter, int number) {
    for (int i = 0; i < MOST_TENANTS; i++)
        if (arbiter->tenants[i] && arbiter->tenants[i]->number == number) return arbiter->tenants[i];
    return NULL;
}

static int add(struct arbiter *arbiter, const char *folder) {
    int place = 0;
    while (place < MOST_TENANTS && arbiter->tenants[place]) place++;
    if (place == MOST_TENANTS) return -ENOSPC;
    struct tenant *tenant = new_tenant(arbiter, folder);
    if (!tenant) return -errno;
    int problem = configure(arbiter, tenant, clock_now());
    if (problem) {
        drop_tenant(arbiter, tenant, clock_now());
        return problem;
    }
    tenant->number = ++arbiter->next_number;
    arbiter->tenants[place] = tenant;
    arbiter->heartbeat_at = 0;
    return tenant->number;
}

int arbiter_add(struct arbiter *arbiter, const char *folder) {
    pthread_mutex_lock(&arbiter->lock);
    int number = add(arbiter, folder);
    pthread_mutex_unlock(&arbiter->lock);
    ring(arbiter);
    return number;
}

int arbiter_remove(struct arbiter *arbiter, int number) {
    pthread_mutex_lock(&arbiter->lock);
    struct tenant *tenant = find(arbiter, number);
    for (int i = 0; tenant && i < MOST_TENANTS; i++)
        if (arbiter->tenants[i] == tenant) arbiter->tenants[i] = NULL;
    if (tenant) drop_tenant(arbiter, tenant, clock_now());
    pthread_mutex_unlock(&arbiter->lock);
    ring(arbiter);
    return tenant ? 0 : -ENOENT;
}

int arbiter_read(struct arbiter *arbiter, int number, struct arbiter_account accounts[MG_PAGE_GPUS]) {
    pthread_mutex_lock(&arbiter->lock);
    struct tenant *tenant = find(arbiter, number);
    for (unsigned i = 0; tenant && i < tenant->gpus; i++) {
        struct lease_gpu *gpu = &tenant->cards[i]->gpu;
        int who = tenant->entries[i];
        struct lease_account *account = &gpu->accounts.of[who];
        lease_gpu_settle(gpu, clock_now());
        accounts[i] = (struct arbiter_account){
            .charged = account->charged, .waited = account->waited, .throttled = account->throttled,
            .wanting = gpu->tenants[who].active, .holding = gpu->holder == who && !gpu->parked,
            .suspect = account->suspect};
    }
    int count = tenant ? (int)tenant->gpus : -ENOENT;
    pthread_mutex_unlock(&arbiter->lock);
    return count;
}

void arbiter_read_totals(struct arbiter *arbiter, struct arbiter_totals *totals) {
    clockid_t clock;
    struct timespec used = {0, 0};
    pthread_mutex_lock(&arbiter->lock);
    if (pthread_getcpuclockid(arbiter->thread, &clock) == 0) clock_gettime(clock, &used);
    totals->cpu_ns = used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
    totals->messages = arbiter->messages;
    totals->turns = 0;
    for (int i = 0; i < MOST_GPUS; i++) totals->turns += arbiter->cards[i].gpu.turns;
    pthread_mutex_unlock(&arbiter->lock);
}
