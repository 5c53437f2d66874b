/* The client's connection: messages to the worker and their answers, for any of the vendor's interfaces.
 *
 * A library that uses it defines the two statuses below. */
#pragma once
#include "remote_operations.h"
#include "wire.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

extern const int link_status_not_started, link_status_lost;

enum { CONTEXTS_MAX = 64 };

/* A thread of the program, as the worker knows it. */
struct lane {
    uint32_t number, serial;
    char *data; /* the message that is being written */
    size_t used, room;
    char *reply;
    size_t reply_at, reply_used, reply_room;
    bool replied;
    bool failed;      /* memory for a message was refused */
    uint64_t emitted; /* the count of changes when its last message went */
    void *contexts[CONTEXTS_MAX];
    int depth;
    void *told; /* the context that the worker uses for this lane */
};

struct message {
    struct lane *lane;
};

/* Connects, or finds out that there is a connection. `welcome` gets what the worker says of itself. */
int link_start(enum wire_api api, unsigned release, struct wire_welcome **welcome);
bool link_is_up(void);
bool link_is_strict(void);
struct lane *link_lane(void);

/* Counts every message that may change what is on a device. */
uint64_t link_changes(void);

/* Called before messages that wait for the device, once set. */
extern int (*link_before_waiting)(void);

/* The context is told to the worker before the next message that needs it. */
int message_begin(struct message *m, int op);
int message_send(struct message *m);
int message_send_with(struct message *m, const void *payload, size_t size);
int message_call(struct message *m);
int message_call_with(struct message *m, const void *payload, size_t size);

void put(struct message *m, const void *from, size_t size);
void put_u64(struct message *m, uint64_t value);
void put_block(struct message *m, const void *from, size_t size); /* its size, then its bytes; NULL is told apart */
void put_string(struct message *m, const char *text);
void put_handles(struct message *m, void *const *handles, size_t count);
void *put_new_handle(struct message *m);
uint64_t handle_new(void);

/* What is missing in an answer leaves `to` as it is. */
bool get(struct message *m, void *to, size_t size);
uint64_t get_u64(struct message *m);
void get_handle(struct message *m, void **to);
void get_handles(struct message *m, void **to, size_t room);
void get_block(struct message *m, void *to, size_t room);
const void *get_inside(struct message *m, size_t *size);

/* Where the data of a copy to the host go. */
struct landing;
struct landing *landing_begin(void *to, size_t size, bool later, char *shadow);
uint64_t landing_cookie(const struct landing *landing);
void landing_end(struct landing *landing);

static inline uint64_t handle_number(const void *handle)
{
    return (uint64_t)(uintptr_t)handle;
}
