/* Objects that are never used after their end, contexts of threads, captures, and time. */
#include "objects.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OBJECTS = 1 << 20 };

pthread_mutex_t strict_lock = PTHREAD_MUTEX_INITIALIZER;
_Thread_local struct object *strict_stack[NESTED];
_Thread_local unsigned strict_depth;
_Thread_local CUstreamCaptureMode strict_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

PUBLIC uint64_t strict_calls; /* all calls of the driver, for tests that count them */
static struct object objects[OBJECTS];
static unsigned used;
static struct {
    struct object *first, *last;
} living[KINDS];
static struct object *free_contexts; /* a new context may get the address of one that ended */
static pid_t owner;

int64_t strict_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

_Noreturn void strict_forbid(const char *call, const char *why)
{
    fprintf(stderr, "strict driver: %s: %s\n", call, why);
    fflush(stderr);
    abort();
}

void strict_enter(const char *call)
{
    if (!owner)
        owner = getpid();
    if (owner != getpid())
        strict_forbid(call, "the process is a child of fork of the one that started the driver");
    pthread_mutex_lock(&strict_lock);
    strict_calls++;
}

void strict_leave(const char *const *call)
{
    (void)call;
    pthread_mutex_unlock(&strict_lock);
}

void strict_wait(int64_t until)
{
    while (strict_now() < until) {
        pthread_mutex_unlock(&strict_lock);
        int64_t step = until - strict_now() > 50000000 ? strict_now() + 50000000 : until;
        struct timespec time = {step / 1000000000, step % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
        pthread_mutex_lock(&strict_lock);
    }
}

/* ---- objects ---- */

static const char *name_of(enum kind kind)
{
    static const char *const names[] = {[CONTEXT] = "context",   [STREAM] = "stream",     [EVENT] = "event",
                                        [MODULE] = "module",     [FUNCTION] = "function", [GRAPH] = "graph",
                                        [EXEC] = "graph to run", [CAPTURE] = "capture",   [MEMORY] = "memory",
                                        [NODE] = "graph node",   [HOST] = "host memory",  [LIBRARY] = "library"};
    return names[kind];
}

struct object *strict_new(enum kind kind, struct object *context)
{
    struct object *made = kind == CONTEXT ? free_contexts : NULL;
    if (made)
        free_contexts = made->next_free;
    else if (used == OBJECTS)
        strict_forbid("strict_new", "the stand-in has no more objects");
    else
        made = &objects[used++];
    *made = (struct object){.kind = kind, .alive = true, .context = context, .before = living[kind].last};
    *(made->before ? &made->before->after : &living[kind].first) = made;
    living[kind].last = made;
    return made;
}

static void unlink_object(struct object *object)
{
    *(object->before ? &object->before->after : &living[object->kind].first) = object->after;
    *(object->after ? &object->after->before : &living[object->kind].last) = object->before;
}

struct object *strict_object(const char *call, const void *handle, enum kind kind)
{
    char why[96];
    struct object *found = (struct object *)handle;
    if (found < objects || found >= objects + used || ((char *)found - (char *)objects) % sizeof *found
        || found->kind != kind) {
        snprintf(why, sizeof why, "not a %s: %p", name_of(kind), handle);
        strict_forbid(call, why);
    }
    if (!found->alive) {
        snprintf(why, sizeof why, "the %s was destroyed", name_of(kind));
        strict_forbid(call, why);
    }
    return found;
}

void strict_destroy(struct object *object)
{
    object->alive = false;
    unlink_object(object);
    if (object->kind == MEMORY)
        strict_give(object->device, object->bytes);
    if (object->kind != CONTEXT)
        return;
    for (enum kind kind = STREAM; kind < KINDS; kind++)
        for (struct object *each = NULL, *next = strict_each(NULL, kind); (each = next);) {
            next = strict_each(each, kind);
            if (each->context == object)
                strict_destroy(each);
        }
    object->next_free = free_contexts;
    free_contexts = object;
}

struct object *strict_each(struct object *after, enum kind kind)
{
    return after ? after->after : living[kind].first;
}

/* ---- contexts and streams of a thread ---- */

struct object *strict_current(const char *call)
{
    if (!strict_depth || !strict_stack[strict_depth - 1])
        strict_forbid(call, "no current context");
    return strict_object(call, strict_stack[strict_depth - 1], CONTEXT);
}

static struct object *own_stream(struct object *context)
{
    for (struct object *each = NULL; (each = strict_each(each, STREAM));)
        if (each->context == context && each->is_default && each != context->legacy
            && pthread_equal(each->thread, pthread_self()))
            return each;
    struct object *made = strict_new(STREAM, context);
    made->is_default = made->blocking = true;
    made->thread = pthread_self();
    return made;
}

struct object *strict_stream(const char *call, CUstream stream)
{
    if (!stream)
        stream = cudaapi_null_stream;
    if (stream == CU_STREAM_LEGACY)
        return strict_current(call)->legacy;
    if (stream == CU_STREAM_PER_THREAD)
        return own_stream(strict_current(call));
    return strict_object(call, stream, STREAM);
}

/* ---- captures ---- */

void strict_unsafe(const char *call)
{
    if (strict_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return;
    for (struct object *each = NULL; (each = strict_each(each, CAPTURE));) {
        bool mine = pthread_equal(each->thread, pthread_self());
        if (mine && each->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
            strict_forbid(call, "unsafe while this thread captures a stream");
        if (!mine && strict_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && each->mode == CU_STREAM_CAPTURE_MODE_GLOBAL)
            strict_forbid(call, "unsafe while another thread captures a stream in global mode");
    }
}

bool strict_is_capturing(const struct object *stream)
{
    return stream->capture && stream->capture->alive;
}

/* ---- time: streams run side by side; the legacy stream waits for all blocking ones, and they for it ---- */

static bool is_legacy(const struct object *stream)
{
    return stream == stream->context->legacy;
}

int64_t strict_stream_end(const struct object *stream)
{
    int64_t end = stream->at;
    if (is_legacy(stream)) {
        for (struct object *each = NULL; (each = strict_each(each, STREAM));)
            if (each->context == stream->context && each->blocking && each->at > end)
                end = each->at;
    } else if (stream->blocking && stream->context->legacy->at > end) {
        end = stream->context->legacy->at;
    }
    return end;
}

int64_t strict_add_work(const char *call, struct object *stream, int64_t duration)
{
    if (strict_is_capturing(stream)) {
        stream->capture->graph->at += duration;
        return 0;
    }
    if (is_legacy(stream))
        for (struct object *each = NULL; (each = strict_each(each, STREAM));)
            if (each->context == stream->context && each->blocking && strict_is_capturing(each))
                strict_forbid(call, "the legacy stream is used while a blocking stream of its context is captured");
    int64_t start = strict_stream_end(stream), now = strict_now();
    if (start < now)
        start = now;
    stream->at = start == FOREVER || duration == FOREVER ? FOREVER : start + duration;
    return stream->at;
}
