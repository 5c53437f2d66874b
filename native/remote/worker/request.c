#include "worker.h"
#include <stdlib.h>

enum { ROOM_MAX = 64 << 20 };

void require(struct request *r, bool holds)
{
    if (!holds && !r->status)
        r->status = CUDA_ERROR_INVALID_VALUE;
}

void take(struct request *r, void *to, size_t size)
{
    if (r->end - r->at < padded(size)) {
        memset(to, 0, size);
        require(r, false);
        return;
    }
    memcpy(to, r->data + r->at, size);
    r->at += padded(size);
}

uint64_t take_u64(struct request *r)
{
    uint64_t value;
    take(r, &value, sizeof value);
    return value;
}

void *take_block(struct request *r, size_t *size)
{
    uint64_t length = take_u64(r);
    *size = 0;
    if (length == UINT64_MAX)
        return NULL;
    if (length > r->end - r->at || padded(length) > r->end - r->at) {
        require(r, false);
        return NULL;
    }
    void *inside = (void *)(r->data + r->at);
    r->at += padded(length);
    *size = length;
    return inside;
}

void *take_copy(struct request *r, size_t size)
{
    size_t got;
    const void *inside = take_block(r, &got);
    if (!inside)
        return NULL;
    require(r, got == size);
    void *copy = r->status ? NULL : request_room(r, size, 1);
    if (copy)
        memcpy(copy, inside, size);
    return copy;
}

void take_values(struct request *r, void *to, size_t size)
{
    size_t got;
    const void *inside = take_block(r, &got);
    if (!to)
        return;
    require(r, inside && got == size);
    if (!r->status)
        memcpy(to, inside, size);
}

const char *take_string(struct request *r)
{
    size_t size;
    const char *text = take_block(r, &size);
    if (text && (!size || text[size - 1])) {
        require(r, false);
        return "";
    }
    return text;
}

void *request_room(struct request *r, uint64_t count, size_t each)
{
    if (!count)
        return NULL;
    void *room = r->room_count < ROOMS_MAX && count <= ROOM_MAX / each ? calloc(count, each) : NULL;
    if (!room) {
        require(r, false);
        return NULL;
    }
    return r->rooms[r->room_count++] = room;
}

void request_free_rooms(struct request *r)
{
    while (r->room_count)
        free(r->rooms[--r->room_count]);
}

void answer_put(struct request *r, const void *from, size_t size)
{
    if (!from || !size)
        return;
    if (padded(size) > r->room - r->used) {
        size_t room = (r->used + padded(size)) * 2;
        r->reply = realloc(r->reply, room);
        if (!r->reply)
            end("no memory for an answer");
        r->room = room;
    }
    memcpy(r->reply + r->used, from, size);
    memset(r->reply + r->used + size, 0, padded(size) - size);
    r->used += padded(size);
}

void answer_u64(struct request *r, uint64_t value)
{
    answer_put(r, &value, sizeof value);
}

void answer_block(struct request *r, const void *from, size_t size)
{
    answer_u64(r, from ? size : 0);
    answer_put(r, from, size);
}

void answer_handles(struct request *r, void *const *handles, size_t count)
{
    answer_u64(r, handles ? count : 0);
    for (size_t i = 0; handles && i < count; i++)
        answer_u64(r, handles[i] ? handle_find(handles[i]) : 0);
}
