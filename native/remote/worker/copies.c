/* Copies. Data to the device go through page-locked slots, which are free again when the streams that read them are
 * done. Data to the host leave the device while the piece before is on the network. */
#include "worker.h"
#include <pthread.h>
#include <stdlib.h>

enum { SLOTS = 16, SLOT_STREAMS = 8, AHEAD = 4, SMALL = 16 << 10, COPY_MAX_LATER = 1 << 30 };

static struct slot {
    char *data;
    size_t used;
    CUcontext context;
    CUstream streams[SLOT_STREAMS];
    CUevent events[SLOT_STREAMS];
    int stream_count, event_count;
} slots[SLOTS];
static int slot_now;

/* Note when the streams of a full slot will have read it. */
static void slot_close(struct slot *slot)
{
    for (int i = 0; i < slot->stream_count; i++) {
        CUresult status = real_cuda.cuEventCreate(&slot->events[i], CU_EVENT_DISABLE_TIMING);
        if (!status)
            status = real_cuda.cuEventRecord(slot->events[i], slot->streams[i]);
        if (status) { /* a stream that is gone: wait for everything instead */
            real_cuda.cuCtxSynchronize();
            return;
        }
        slot->event_count = i + 1;
    }
}

static int slot_open(struct slot *slot, CUcontext context)
{
    for (int i = 0; i < slot->event_count; i++) {
        real_cuda.cuEventSynchronize(slot->events[i]);
        real_cuda.cuEventDestroy_v2(slot->events[i]);
    }
    slot->used = 0;
    slot->stream_count = slot->event_count = 0;
    slot->context = context;
    if (slot->data)
        return 0;
    int status = (int)real_cuda.cuMemHostAlloc((void **)&slot->data, WIRE_PIECE, CU_MEMHOSTALLOC_PORTABLE);
    if (status)
        slot->data = NULL;
    return status;
}

static int stream_index(const struct slot *slot, CUstream stream)
{
    int at = 0;
    while (at < slot->stream_count && slot->streams[at] != stream)
        at++;
    return at;
}

static int slot_for(size_t size, CUstream stream, CUcontext context, struct slot **found)
{
    struct slot *slot = &slots[slot_now];
    bool fits = slot->data && slot->used + size <= WIRE_PIECE && slot->context == context
                && stream_index(slot, stream) < SLOT_STREAMS;
    if (!fits) {
        if (slot->used)
            slot_close(slot);
        slot_now = (slot_now + 1) % SLOTS;
        slot = &slots[slot_now];
        int status = slot_open(slot, context);
        if (status)
            return status;
    }
    int at = stream_index(slot, stream);
    if (at == slot->stream_count)
        slot->streams[slot->stream_count++] = stream;
    *found = slot;
    return 0;
}

/* The data are still on the network, and go straight into a slot. */
void do_copy_in(struct request *r)
{
    static char nowhere[WIRE_PIECE];
    uint64_t to = take_u64(r), size = take_u64(r);
    CUstream stream = take_stream(r);
    if (size > WIRE_PIECE || padded(size) != r->head.length - 3 * sizeof(uint64_t))
        end("a copy that is not what its frame says");
    char *data = r->status ? NULL : copies_room(r, size, stream);
    in_read(data ? data : nowhere, padded(size));
    if (data)
        r->status = (int)real_cuda.cuMemcpyHtoDAsync_v2(to, data, size, stream);
}

char *copies_room(struct request *r, size_t size, CUstream stream)
{
    struct slot *slot = NULL;
    r->status = slot_for(padded(size), stream, r->lane->context, &slot);
    if (r->status)
        return NULL;
    char *room = slot->data + slot->used;
    slot->used += padded(size);
    return room;
}

static void copy_small(struct request *r, uint64_t cookie, CUdeviceptr from, size_t size, CUstream stream)
{
    char data[SMALL];
    (void)stream; /* a copy that is waited for is ordered by the default stream, which this call is in, too */
    r->status = (int)real_cuda.cuMemcpyDtoH_v2(data, from, size);
    if (!r->status)
        out_data(cookie, 0, data, size);
}

static size_t piece_size(uint64_t size, uint64_t number)
{
    uint64_t left = size - number * WIRE_PIECE;
    return left < WIRE_PIECE ? left : WIRE_PIECE;
}

struct piece {
    char *data;
    CUevent done;
};

static int piece_begin(struct piece *piece, CUdeviceptr from, size_t size, CUstream stream)
{
    CUresult status = CUDA_SUCCESS;
    if (!piece->data) {
        status = real_cuda.cuMemHostAlloc((void **)&piece->data, WIRE_PIECE, CU_MEMHOSTALLOC_PORTABLE);
        if (status)
            piece->data = NULL;
    }
    if (!status)
        status = real_cuda.cuEventCreate(&piece->done, CU_EVENT_DISABLE_TIMING);
    if (!status)
        status = real_cuda.cuMemcpyDtoHAsync_v2(piece->data, from, size, stream);
    if (!status)
        status = real_cuda.cuEventRecord(piece->done, stream);
    return (int)status;
}

static int piece_end(struct piece *piece)
{
    CUresult status = real_cuda.cuEventSynchronize(piece->done);
    real_cuda.cuEventDestroy_v2(piece->done);
    return (int)status;
}

static void copy_large(struct request *r, uint64_t cookie, CUdeviceptr from, uint64_t size, CUstream stream)
{
    static struct piece pieces[AHEAD];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* one such copy at a time */
    uint64_t count = (size + WIRE_PIECE - 1) / WIRE_PIECE;
    pthread_mutex_lock(&lock);
    for (uint64_t i = 0; i < count + AHEAD && !r->status; i++) {
        if (i >= AHEAD) {
            uint64_t ready = i - AHEAD;
            r->status = ready < count ? piece_end(&pieces[ready % AHEAD]) : 0;
            if (!r->status && ready < count)
                out_data(cookie, ready * WIRE_PIECE, pieces[ready % AHEAD].data, piece_size(size, ready));
        }
        if (i < count && !r->status)
            r->status = piece_begin(&pieces[i % AHEAD], from + i * WIRE_PIECE, piece_size(size, i), stream);
    }
    if (r->status)
        real_cuda.cuCtxSynchronize(); /* nothing may write the pieces later */
    pthread_mutex_unlock(&lock);
}

void do_copy_out(struct request *r)
{
    uint64_t cookie = take_u64(r), from = take_u64(r), size = take_u64(r);
    CUstream stream = take_stream(r);
    if (r->status)
        return;
    if (size <= SMALL)
        copy_small(r, cookie, from, size, stream);
    else
        copy_large(r, cookie, from, size, stream);
}

/* Copies to the host that nobody waits for: they go before the next answer after they are done. */
struct later {
    struct later *next;
    uint64_t cookie;
    size_t size, room;
    char *data;
    CUevent done;
    CUcontext context; /* in which the event was made */
};
static struct later *pending, **pending_end = &pending, *spare;
static pthread_mutex_t later_lock = PTHREAD_MUTEX_INITIALIZER;

static struct later *later_spare(CUcontext context, size_t size)
{
    pthread_mutex_lock(&later_lock);
    struct later **at = &spare;
    while (*at && ((*at)->context != context || (*at)->room < size || (*at)->room / 4 > size + SMALL))
        at = &(*at)->next;
    struct later *found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&later_lock);
    return found;
}

static struct later *later_new(struct request *r, size_t size)
{
    struct later *copy = calloc(1, sizeof *copy);
    if (!copy)
        end("no memory for a copy");
    copy->room = size;
    copy->context = r->lane->context;
    r->status = (int)real_cuda.cuMemHostAlloc((void **)&copy->data, size, CU_MEMHOSTALLOC_PORTABLE);
    if (!r->status)
        r->status = (int)real_cuda.cuEventCreate(&copy->done, CU_EVENT_DISABLE_TIMING);
    return copy;
}

void do_copy_out_later(struct request *r)
{
    uint64_t cookie = take_u64(r), from = take_u64(r), size = take_u64(r);
    CUstream stream = take_stream(r);
    require(r, size && size <= COPY_MAX_LATER);
    if (r->status)
        return;
    struct later *copy = later_spare(r->lane->context, size);
    if (!copy)
        copy = later_new(r, size);
    if (!r->status)
        r->status = (int)real_cuda.cuMemcpyDtoHAsync_v2(copy->data, from, size, stream);
    if (!r->status)
        r->status = (int)real_cuda.cuEventRecord(copy->done, stream);
    if (r->status)
        return;
    copy->cookie = cookie;
    copy->size = size;
    copy->next = NULL;
    pthread_mutex_lock(&later_lock);
    *pending_end = copy;
    pending_end = &copy->next;
    pthread_mutex_unlock(&later_lock);
}

static void send_later(const struct later *copy)
{
    for (size_t at = 0; at < copy->size; at += WIRE_PIECE)
        out_data(copy->cookie, at, copy->data + at, copy->size - at < WIRE_PIECE ? copy->size - at : WIRE_PIECE);
}

void copies_deliver(void)
{
    pthread_mutex_lock(&later_lock);
    for (struct later **at = &pending; *at;) {
        struct later *copy = *at;
        CUresult status = real_cuda.cuEventQuery(copy->done);
        if (status == CUDA_ERROR_NOT_READY) {
            at = &copy->next;
            continue;
        }
        if (!status)
            send_later(copy);
        *at = copy->next;
        copy->next = spare;
        spare = copy;
    }
    for (pending_end = &pending; *pending_end; pending_end = &(*pending_end)->next)
        continue;
    pthread_mutex_unlock(&later_lock);
}
