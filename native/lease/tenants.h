/* What the arbiter's loop and its tenants share: the descriptors it watches, the cards, who is connected. */
#ifndef MILLIGPU_LEASE_TENANTS_H
#define MILLIGPU_LEASE_TENANTS_H

#include <pthread.h>
#include <stdint.h>

#include "arbiter.h"
#include "turns.h"

/* A machine with 16 cards, each shared by as many as can share one. */
enum { MOST_GPUS = 64, MOST_TENANTS = 1024 };
/* One connection per process; a usage page has room for 512. */
enum { MOST_CONNECTIONS = 512 };
/* What one process may say between two heartbeats: ten times what the busiest honest one does. */
enum { MOST_MESSAGES = 2000 };

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
    int card_count; /* no entry from here on was ever used */
    struct card cards[MOST_GPUS];
    struct tenant *tenants[MOST_TENANTS];
    int next_number;
    struct source *closed;
};

int64_t arbiter_now(void);

/* Descriptors. What is buried is freed at the end of the round, because its remaining events may still point at it. */
int source_watch(struct arbiter *arbiter, struct source *source, enum source_kind kind, int descriptor);
void source_listen(struct arbiter *arbiter, struct source *source, int to_it);
void source_bury(struct arbiter *arbiter, struct source *source);
void source_free_buried(struct arbiter *arbiter);

/* A tenant with the page and the socket of its folder; null with errno set. Configure it next. */
struct tenant *tenant_open(struct arbiter *arbiter, const char *folder);
/* Brings it in line with its page. What is not a valid page changes nothing. 0, or a negative errno value. */
int tenant_configure(struct arbiter *arbiter, struct tenant *tenant, int64_t now);
void tenant_drop(struct arbiter *arbiter, struct tenant *tenant, int64_t now);
/* All who wait for a connection. */
void tenant_accept(struct arbiter *arbiter, struct tenant *tenant);

/* 0: heard and understood. 1: nothing there. -1: gone, or not speaking our language. */
int connection_hear(struct arbiter *arbiter, struct connection *connection, int64_t now);
void connection_close(struct arbiter *arbiter, struct connection *connection, int64_t now);

/* Between two decisions only pages and sets change; here the tenants learn of it. */
void cards_wake(struct arbiter *arbiter);

#endif
