#include "../line.h"
#include "worker.h"
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { OUT_ROOM = 64 << 10 };

static struct line *line;
static struct {
    pthread_mutex_t lock;
    char data[OUT_ROOM];
    size_t used;
} out = {.lock = PTHREAD_MUTEX_INITIALIZER};

void end(const char *why)
{
    fprintf(stderr, "worker %d: ended: %s\n", getpid(), why);
    _exit(0);
}

void out_start(struct line *to)
{
    line = to;
}

static void flush(void)
{
    struct iovec part = {out.data, out.used};
    if (out.used && line_send(line, &part, 1))
        end("the client is gone");
    out.used = 0;
}

static void add(const void *from, size_t size)
{
    if (size)
        memcpy(out.data + out.used, from, size);
    out.used += size;
}

static void send_frame(const struct wire_head *head, const void *fixed, size_t fixed_size, const void *data,
                       size_t size, bool at_once)
{
    static const char zeros[WIRE_ALIGN];
    size_t padding = padded(size) - size, whole = sizeof *head + fixed_size + size + padding;
    pthread_mutex_lock(&out.lock);
    if (whole > OUT_ROOM - out.used)
        flush();
    if (whole <= OUT_ROOM) {
        add(head, sizeof *head);
        add(fixed, fixed_size);
        add(data, size);
        add(zeros, padding);
    } else {
        struct iovec parts[] = {
            {(void *)head, sizeof *head}, {(void *)fixed, fixed_size}, {(void *)data, size}, {(void *)zeros, padding}};
        if (line_send(line, parts, padding ? 4 : 3))
            end("the client is gone");
    }
    if (at_once)
        flush();
    pthread_mutex_unlock(&out.lock);
}

void out_reply(struct request *r)
{
    const uint32_t statuses[2] = {(uint32_t)r->status, (uint32_t)r->lane->kept};
    const struct wire_head head = {(uint32_t)(sizeof statuses + r->used), ANSWER_REPLY, 0, r->head.lane,
                                   r->head.serial};
    r->lane->kept = 0;
    send_frame(&head, statuses, sizeof statuses, r->reply, r->used, true);
}

void out_data(uint64_t cookie, uint64_t offset, const void *data, size_t size)
{
    const uint64_t where[3] = {cookie, offset, size};
    const struct wire_head head = {(uint32_t)(sizeof where + padded(size)), ANSWER_DATA, 0, 0, 0};
    send_frame(&head, where, sizeof where, data, size, false);
}

void out_beat(void)
{
    const struct wire_head head = {0, ANSWER_BEAT, 0, 0, 0};
    const struct iovec part = {(void *)&head, sizeof head};
    if (pthread_mutex_trylock(&out.lock))
        return; /* somebody is sending, so the client hears from us */
    flush();
    if (line_send(line, &part, 1))
        end("the client is gone");
    pthread_mutex_unlock(&out.lock);
}
