/* Messages: each thread of the program is a lane, which writes one message at a time and reads its answer. */
#include "link_parts.h"
#include <pthread.h>
#include <stdlib.h>

enum { LANES = 1024 };

int (*link_before_waiting)(void);

static struct lane *lanes[LANES];
static uint32_t lane_count;
static _Thread_local struct lane *own_lane;
static pthread_key_t lane_key;

static void lane_end(void *ended)
{
    struct lane *lane = ended;
    const struct wire_head head = {.op = OP_lane_end};
    memcpy(lane->data, &head, sizeof head);
    lane->used = sizeof head;
    if (link_is_up() && !link_is_lost())
        link_emit(lane, 0, NULL, 0); /* its number is not used again, so its memory stays, too */
}

static struct lane *lane_new(void)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return NULL;
    lane->room = lane->reply_room = 4096;
    lane->data = malloc(lane->room);
    lane->reply = malloc(lane->reply_room);
    lane->number = __atomic_fetch_add(&lane_count, 1, __ATOMIC_SEQ_CST);
    if (!lane->data || !lane->reply || lane->number >= LANES)
        return NULL;
    lanes[lane->number] = lane;
    pthread_setspecific(lane_key, lane);
    return lane;
}

struct lane *link_lane(void)
{
    if (!own_lane)
        own_lane = lane_new();
    return own_lane;
}

struct lane *lane_find(uint32_t number)
{
    return number < LANES ? lanes[number] : NULL;
}

void lanes_begin(void)
{
    pthread_key_create(&lane_key, lane_end);
}

void lanes_forget(void)
{
    own_lane = NULL;
}

static void message_head(struct lane *lane, int op)
{
    const struct wire_head head = {.op = (uint16_t)op};
    memcpy(lane->data, &head, sizeof head);
    lane->used = sizeof head;
    lane->failed = false;
}

static bool waits_for_the_device(int op)
{
    return op == OP_synchronize || op == OP_copy_out || op == OP_cuStreamSynchronize || op == OP_cuEventSynchronize
           || op == OP_cuStreamQuery || op == OP_cuEventQuery || op == OP_cuCtxSynchronize_v2;
}

static int tell_context(struct message *m)
{
    struct lane *lane = m->lane;
    void *current = lane->depth ? lane->contexts[lane->depth - 1] : NULL;
    if (current == lane->told)
        return 0;
    message_head(lane, OP_cuCtxSetCurrent);
    put_u64(m, handle_number(current));
    int status = message_send(m);
    if (!status)
        lane->told = current;
    return status;
}

int message_begin(struct message *m, int op)
{
    if (!link_is_up())
        return link_status_not_started;
    if (link_is_lost())
        return link_status_lost;
    int status = link_before_waiting && waits_for_the_device(op) ? link_before_waiting() : 0;
    if (status)
        return status;
    m->lane = link_lane();
    if (!m->lane)
        return link_status_lost;
    if (op != OP_hello && (status = tell_context(m)))
        return status;
    message_head(m->lane, op);
    return 0;
}

int message_send_with(struct message *m, const void *payload, size_t size)
{
    return link_is_strict() ? message_call_with(m, payload, size) : link_emit(m->lane, 0, payload, size);
}

int message_send(struct message *m)
{
    return message_send_with(m, NULL, 0);
}

int message_call_with(struct message *m, const void *payload, size_t size)
{
    m->lane->reply_at = m->lane->reply_used = 0;
    int status = link_emit(m->lane, WIRE_WANTS_REPLY, payload, size);
    return status ? status : link_await(m->lane);
}

int message_call(struct message *m)
{
    return message_call_with(m, NULL, 0);
}

void put(struct message *m, const void *from, size_t size)
{
    struct lane *lane = m->lane;
    if (padded(size) > lane->room - lane->used) {
        size_t room = (lane->used + padded(size)) * 2;
        char *larger = realloc(lane->data, room);
        if (!larger) {
            lane->failed = true;
            return;
        }
        lane->data = larger;
        lane->room = room;
    }
    memcpy(lane->data + lane->used, from, size);
    memset(lane->data + lane->used + size, 0, padded(size) - size);
    lane->used += padded(size);
}

void put_u64(struct message *m, uint64_t value)
{
    put(m, &value, sizeof value);
}

void put_block(struct message *m, const void *from, size_t size)
{
    put_u64(m, from ? size : UINT64_MAX);
    if (from)
        put(m, from, size);
}

void put_string(struct message *m, const char *text)
{
    put_block(m, text, text ? strlen(text) + 1 : 0);
}

void put_handles(struct message *m, void *const *handles, size_t count)
{
    put_u64(m, handles ? count : 0);
    for (size_t i = 0; handles && i < count; i++)
        put_u64(m, handle_number(handles[i]));
}

uint64_t handle_new(void)
{
    static uint64_t next;
    return HANDLE_CLIENT + HANDLE_STEP * __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
}

void *put_new_handle(struct message *m)
{
    uint64_t number = handle_new();
    put_u64(m, number);
    return (void *)(uintptr_t)number;
}

bool get(struct message *m, void *to, size_t size)
{
    struct lane *lane = m->lane;
    if (padded(size) > lane->reply_used - lane->reply_at)
        return false;
    if (to)
        memcpy(to, lane->reply + lane->reply_at, size);
    lane->reply_at += padded(size);
    return true;
}

uint64_t get_u64(struct message *m)
{
    uint64_t value = 0;
    get(m, &value, sizeof value);
    return value;
}

void get_handle(struct message *m, void **to)
{
    uint64_t number;
    if (get(m, &number, sizeof number) && to)
        *to = (void *)(uintptr_t)number;
}

void get_handles(struct message *m, void **to, size_t room)
{
    uint64_t count = get_u64(m);
    for (uint64_t i = 0, number; i < count && get(m, &number, sizeof number); i++)
        if (to && i < room)
            to[i] = (void *)(uintptr_t)number;
}

const void *get_inside(struct message *m, size_t *size)
{
    struct lane *lane = m->lane;
    uint64_t length = get_u64(m);
    *size = 0;
    size_t left = lane->reply_used - lane->reply_at;
    if (length > left || padded(length) > left)
        return NULL;
    const void *inside = lane->reply + lane->reply_at;
    *size = length;
    lane->reply_at += padded(length);
    return inside;
}

void get_block(struct message *m, void *to, size_t room)
{
    size_t size;
    const void *from = get_inside(m, &size);
    if (to && from)
        memcpy(to, from, size < room ? size : room);
}
