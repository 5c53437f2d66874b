/* The strict driver's objects and rules. */
#pragma once
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "cudaapi.h"
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define API __attribute__((visibility("default"))) CUresult
#define PUBLIC __attribute__((visibility("default")))

enum { DEVICES = 8, NESTED = 16 };
enum kind { CONTEXT = 1, STREAM, EVENT, MODULE, FUNCTION, GRAPH, EXEC, CAPTURE, MEMORY, NODE, HOST, LIBRARY, KINDS };
#define FOREVER INT64_MAX

struct object {
    enum kind kind;
    bool alive;
    bool is_default; /* of a stream: the legacy stream of a context, or a thread's own */
    bool blocking;   /* of a stream: ordered with the legacy stream */
    bool recorded, captured;
    int device, users; /* of a context */
    struct object *context, *next_free, *link, *graph;
    struct object *before, *after; /* living objects of the same kind */
    struct object *legacy;         /* of a context */
    struct object *capture;
    pthread_t thread; /* of a capture, or of a thread's own stream */
    CUstreamCaptureMode mode;
    int64_t at; /* when the work of a stream or event ends; how long a function or graph takes */
    uint64_t bytes, address;
};

extern pthread_mutex_t strict_lock;
extern _Thread_local struct object *strict_stack[NESTED];
extern _Thread_local unsigned strict_depth;
extern _Thread_local CUstreamCaptureMode strict_mode;

/* Count the call, take the lock until the end of the block, and refuse the call in a child of fork. */
void strict_enter(const char *call);
void strict_leave(const char *const *call);
#define ENTER                                                                                                          \
    __attribute__((cleanup(strict_leave))) const char *entered = __func__;                                             \
    strict_enter(entered)

_Noreturn void strict_forbid(const char *call, const char *why);
struct object *strict_new(enum kind kind, struct object *context);
struct object *strict_object(const char *call, const void *handle, enum kind kind);
void strict_destroy(struct object *object);
struct object *strict_each(struct object *after, enum kind kind); /* living objects in order of creation */

/* The current context, which the call needs. */
struct object *strict_current(const char *call);
/* The stream that a handle means: the legacy stream, this thread's own, or one that the program created. */
struct object *strict_stream(const char *call, CUstream stream);
/* A call that is prohibited while this or, in global mode, another thread captures. */
void strict_unsafe(const char *call);
bool strict_is_capturing(const struct object *stream);

int64_t strict_now(void);
/* Sleep, without the lock, until the clock reaches a time. */
void strict_wait(int64_t until);
int64_t strict_stream_end(const struct object *stream);
/* Add work that takes this long; returns when it ends. */
int64_t strict_add_work(const char *call, struct object *stream, int64_t duration);

/* ---- memory.c ---- */
bool strict_take(int device, uint64_t bytes);
void strict_give(int device, uint64_t bytes);
struct object *strict_memory_at(CUdeviceptr pointer);
