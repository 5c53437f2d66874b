/* Shared by the arbiter's loop and its tenants: the watched descriptors, the GPUs and the connections. */
#ifndef MILLIGPU_LEASE_TENANTS_H
#define MILLIGPU_LEASE_TENANTS_H

#include <pthread.h>
#include <stdint.h>

#include "arbiter.h"
#include "gangs.h"

/* A machine with 16 GPUs, each shared by LEASE_TENANTS tenants. */
enum { MOST_GPUS = GANGS_GPUS, MOST_TENANTS = 1024 };
/* One connection per process; a usage page has 512 process slots. */
enum { MOST_CONNECTIONS = 512 };
/* Messages of one process between two heartbeats: ten times what the busiest normal process sends. */
enum { MOST_MESSAGES = 2000 };

enum source_kind { SOURCE_TIMER, SOURCE_BELL, SOURCE_LISTENER, SOURCE_CONNECTION };

/* A descriptor that epoll watches. */
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
    struct lease_process processes[MG_PAGE_GPUS];
};

struct shared_gpu {
    char uuid[MG_UUID_SIZE];
    struct lease_gpu lease;
    int tenants; /* 0: a free entry */
};

struct tenant {
    struct source source; /* the socket in its directory */
    int number;
    struct mg_limits_page *page;
    uint32_t sequence; /* of the configuration in force */
    unsigned gpu_count;
    struct lease_span span; /* its GPUs, and its number on each */
    struct connection *connections;
    unsigned connection_count;
};

struct arbiter {
    pthread_t thread;
    pthread_mutex_t lock; /* protects everything below */
    int epoll;
    struct source timer, bell;
    int stopping;
    int64_t armed, heartbeat_at;
    uint64_t messages;
    int gpu_count; /* entries from here on were never used */
    struct shared_gpu gpus[MOST_GPUS];
    struct lease_gangs gangs;
    struct tenant *tenants[MOST_TENANTS];
    int next_number;
    struct source *closed;
};

int64_t arbiter_now(void);

/* Descriptors. Closed sources are freed at the end of the round, because pending events may still point at them. */
int source_watch(struct arbiter *arbiter, struct source *source, enum source_kind kind, int descriptor);
void source_listen(struct arbiter *arbiter, struct source *source, int to_it);
void source_bury(struct arbiter *arbiter, struct source *source);
void source_free_buried(struct arbiter *arbiter);

/* Open a tenant with the page and the socket of its directory; null with errno set. Configure it next. */
struct tenant *tenant_open(struct arbiter *arbiter, const char *folder);
/* Apply the tenant's page. An invalid page changes nothing. Returns 0, or a negative errno value. */
int tenant_configure(struct arbiter *arbiter, struct tenant *tenant, int64_t now);
void tenant_drop(struct arbiter *arbiter, struct tenant *tenant, int64_t now);
/* Accept all pending connections. */
void tenant_accept(struct arbiter *arbiter, struct tenant *tenant);

/* 0: one message handled. 1: no message. -1: the connection is closed or sent an invalid message. */
int connection_hear(struct arbiter *arbiter, struct connection *connection, int64_t now);
void connection_close(struct arbiter *arbiter, struct connection *connection, int64_t now);

/* A GPU of a tenant, by its index in the page; null if the tenant has no such GPU. */
struct lease_gpu *tenant_gpu(struct arbiter *arbiter, const struct tenant *tenant, unsigned index);

/* Wake the tenants whose lease words have changed. */
void gpus_wake(struct arbiter *arbiter);

#endif
