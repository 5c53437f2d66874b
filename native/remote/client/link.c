/* The connection: sends coalesced messages, and lets one of the waiting threads receive for all. */
#define _GNU_SOURCE
#include "link_parts.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    OUT_ROOM = 256 << 10,
    OUT_SMALL = 32 << 10, /* larger messages go from where they are */
    IN_ROOM = 64 << 10,
    LINGER_US = 50, /* how long a message without an answer may wait for company */
    REPLY_MAX = 64 << 20,
    IDLE_NAPS = 20
};

static struct line *line;
static bool is_lost, is_strict;
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    char data[OUT_ROOM];
    size_t used;
    int64_t flushed;
    bool asleep;
} out = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool reading;
    char data[IN_ROOM];
    size_t at, end;
} in = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
static uint64_t changes;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int link_lose(const char *why)
{
    if (!__atomic_exchange_n(&is_lost, true, __ATOMIC_SEQ_CST))
        fprintf(stderr, "milligpu: the GPU server is lost: %s\n", why);
    return link_status_lost;
}

bool link_is_lost(void)
{
    return __atomic_load_n(&is_lost, __ATOMIC_SEQ_CST);
}

bool link_is_up(void)
{
    return line != NULL;
}

bool link_is_strict(void)
{
    return is_strict;
}

uint64_t link_changes(void)
{
    return __atomic_load_n(&changes, __ATOMIC_ACQUIRE);
}

/* ---- sending ---- */

static int flush_locked(void)
{
    struct iovec part = {out.data, out.used};
    if (!out.used)
        return 0;
    int bad = line_send(line, &part, 1);
    out.used = 0;
    out.flushed = now_ns();
    return bad ? link_lose("it does not take what is sent") : 0;
}

static void sleep_until_woken(void)
{
    out.asleep = true;
    pthread_cond_wait(&out.wake, &out.lock);
    out.asleep = false;
}

/* What waits in the buffer goes after LINGER_US at the latest. */
static void *flusher(void *unused)
{
    const struct timespec nap = {0, LINGER_US * 1000};
    int idle = 0;
    (void)unused;
    pthread_mutex_lock(&out.lock);
    while (!is_lost) {
        idle = out.used ? 0 : idle + 1;
        flush_locked();
        if (idle > IDLE_NAPS) {
            sleep_until_woken();
            idle = 0;
        }
        pthread_mutex_unlock(&out.lock);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&out.lock);
    }
    pthread_mutex_unlock(&out.lock);
    return NULL;
}

static int send_small(const struct lane *lane, const void *payload, size_t size, bool at_once)
{
    int status = out.used + lane->used + padded(size) > OUT_ROOM ? flush_locked() : 0;
    char *end = out.data + out.used;
    memcpy(end, lane->data, lane->used);
    if (size) {
        memcpy(end + lane->used, payload, size);
        memset(end + lane->used + size, 0, padded(size) - size);
    }
    out.used += lane->used + padded(size);
    if (status)
        return status;
    if (at_once || out.used > OUT_SMALL || now_ns() - out.flushed > LINGER_US * 1000)
        return flush_locked();
    if (out.asleep)
        pthread_cond_signal(&out.wake);
    return 0;
}

static int send_large(const struct lane *lane, const void *payload, size_t size)
{
    static const char zeros[WIRE_ALIGN];
    struct iovec parts[] = {{lane->data, lane->used}, {(void *)payload, size}, {(void *)zeros, padded(size) - size}};
    int status = flush_locked();
    if (!status && line_send(line, parts, !size ? 1 : parts[2].iov_len ? 3 : 2))
        status = link_lose("it does not take what is sent");
    out.flushed = now_ns();
    return status;
}

static bool changes_a_device(int op)
{
    return op != OP_copy_out && op != OP_synchronize;
}

int link_emit(struct lane *lane, int flags, const void *payload, size_t size)
{
    struct wire_head *head = (struct wire_head *)lane->data;
    size_t length = lane->used - sizeof *head + padded(size);
    if (lane->failed || length > WIRE_FRAME_MAX) {
        lane->failed = false;
        return link_status_lost;
    }
    head->length = (uint32_t)length;
    head->flags = (uint16_t)flags;
    head->lane = lane->number;
    head->serial = ++lane->serial;
    pthread_mutex_lock(&out.lock);
    if (changes_a_device(head->op))
        __atomic_fetch_add(&changes, 1, __ATOMIC_RELEASE);
    lane->emitted = changes;
    count_sent(head->op, lane->used + padded(size));
    int status = lane->used + padded(size) <= OUT_SMALL ? send_small(lane, payload, size, flags)
                                                        : send_large(lane, payload, size);
    pthread_mutex_unlock(&out.lock);
    return status;
}

/* ---- receiving ---- */

int link_receive(void *to, size_t size)
{
    char *end = to;
    while (size) {
        if (in.at == in.end) {
            bool direct = size >= IN_ROOM / 2;
            long got = line_receive(line, direct ? end : in.data, direct ? size : IN_ROOM);
            if (got <= 0)
                return link_lose(got == LINE_TIMEOUT  ? "nothing came for too long"
                                 : got == LINE_CLOSED ? "it closed the connection"
                                                      : "the connection failed");
            count_received((size_t)got);
            if (direct) {
                end += got;
                size -= (size_t)got;
                continue;
            }
            in.at = 0;
            in.end = (size_t)got;
        }
        size_t part = in.end - in.at < size ? in.end - in.at : size;
        memcpy(end, in.data + in.at, part);
        in.at += part;
        end += part;
        size -= part;
    }
    return 0;
}

static int receive_reply(const struct wire_head *head)
{
    struct lane *lane = lane_find(head->lane);
    if (!lane || lane->replied || head->serial != lane->serial || head->length < 8 || head->length > REPLY_MAX)
        return link_lose("it answered what nobody asked");
    if (head->length > lane->reply_room) {
        char *larger = realloc(lane->reply, head->length);
        if (!larger)
            return link_lose("no memory for its answer");
        lane->reply = larger;
        lane->reply_room = head->length;
    }
    if (link_receive(lane->reply, head->length))
        return link_status_lost;
    lane->reply_used = head->length;
    pthread_mutex_lock(&in.lock);
    lane->replied = true;
    pthread_mutex_unlock(&in.lock);
    return 0;
}

static int receive_frame(void)
{
    struct wire_head head;
    if (link_receive(&head, sizeof head))
        return link_status_lost;
    switch (head.op) {
    case ANSWER_BEAT: return head.length ? link_lose("it sent a beat with contents") : 0;
    case ANSWER_DATA: return landing_receive(head.length);
    case ANSWER_REPLY: return receive_reply(&head);
    default: return link_lose("it sent a frame of an unknown kind");
    }
}

int link_await(struct lane *lane)
{
    count_waited(((struct wire_head *)lane->data)->op);
    pthread_mutex_lock(&in.lock);
    while (!lane->replied && !is_lost) {
        if (in.reading) {
            pthread_cond_wait(&in.changed, &in.lock);
            continue;
        }
        in.reading = true;
        while (!lane->replied && !is_lost) {
            pthread_mutex_unlock(&in.lock);
            int bad = receive_frame();
            pthread_mutex_lock(&in.lock);
            if (bad)
                break;
            pthread_cond_broadcast(&in.changed);
        }
        in.reading = false;
        pthread_cond_broadcast(&in.changed);
    }
    bool good = lane->replied;
    lane->replied = false;
    pthread_mutex_unlock(&in.lock);
    if (!good)
        return link_status_lost;
    uint32_t statuses[2];
    memcpy(statuses, lane->reply, sizeof statuses);
    lane->reply_at = sizeof statuses;
    return (int)(statuses[1] ? statuses[1] : statuses[0]); /* first the error of an earlier call without an answer */
}

/* ---- the beginning and the end ---- */

void link_open(struct line *opened, bool strict)
{
    line = opened;
    is_strict = strict;
}

void link_forget(void)
{
    line = NULL;
    is_lost = true;
}

void link_run(int patience_ms)
{
    pthread_t thread;
    line_set_timeout(line_descriptor(line), patience_ms);
    if (!pthread_create(&thread, NULL, flusher, NULL))
        pthread_detach(thread);
}
