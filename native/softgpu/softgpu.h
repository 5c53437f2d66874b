/* The software GPU's driver library: the interfaces between its parts. */
#pragma once
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "abi.h"
#include "activity.h"
#include "cudaapi.h"
#include "wire.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define API __attribute__((visibility("default"))) CUresult

/* How a query ends: with an error, or with the value stored where the caller asked. */
#define ANSWER(STATUS, PLACE, VALUE)                                                                                   \
    CUresult status = (STATUS);                                                                                        \
    if (status)                                                                                                        \
        return status;                                                                                                 \
    if (!(PLACE))                                                                                                      \
        return CUDA_ERROR_INVALID_VALUE;                                                                               \
    *(PLACE) = (VALUE);                                                                                                \
    return CUDA_SUCCESS

/* ---- handles: numbers that can be checked, instead of pointers that cannot ---- */
enum handle_kind {
    HANDLE_CONTEXT = 1,
    HANDLE_STREAM,
    HANDLE_EVENT,
    HANDLE_MODULE,
    HANDLE_FUNCTION,
    HANDLE_GRAPH,
    HANDLE_NODE,
    HANDLE_EXEC,
    HANDLE_LIBRARY,
    HANDLE_KERNEL,
    HANDLE_POOL,
    HANDLE_LINKER,
    HANDLE_OWNED,
    HANDLE_PHYSICAL,
    HANDLE_ARRAY,
    HANDLE_KINDS
};
void *handle_new(enum handle_kind kind, void *object); /* null if there are too many */
void *handle_get(enum handle_kind kind, const void *handle);
void *handle_drop(enum handle_kind kind, const void *handle); /* the object, which its owner frees */

/* ---- GPUs: connections to the daemon ---- */
enum { MOST_CARDS = 16 };
struct card {
    int socket;
    int ordinal;
    pthread_mutex_t lock;
    struct wire_device device;
    struct activity_page *activity;
    atomic_bool lost; /* its daemon is gone */
};
int cards_open(struct card *cards); /* returns how many there are */
CUresult card_call(struct card *card, enum wire_kind kind, const void *body, size_t size, void *reply, size_t *room,
                   int *descriptor);
int card_connect_any(void); /* a connection to any GPU's daemon, without a greeting; -1 if there is none */
bool card_open_uuid(struct card *card, const CUuuid *uuid);
bool wire_send(int fd, const void *data, size_t size);
bool wire_receive(int fd, void *data, size_t size);
CUresult card_reserve(struct card *card, size_t bytes);
void card_release(struct card *card, size_t bytes);

/* ---- the process ---- */
extern struct card sg_cards[MOST_CARDS];
bool sg_alive(void);                 /* after cuInit, but not in a child of fork */
CUresult sg_ready(void);             /* CUDA_SUCCESS if calls are allowed */
extern _Thread_local bool sg_worker; /* this thread is a stream's worker */
CUresult sg_card(CUdevice device, struct card **card);

/* ---- checkpoints ---- */
void checkpoint_start(void);  /* after the GPUs are opened */
void checkpoint_forget(void); /* in a child of fork */
void checkpoint_pass(void);   /* waits while this process is locked */

/* ---- contexts ---- */
struct stream;
struct context {
    struct card *card;
    CUcontext handle;
    unsigned flags;
    bool primary;
    unsigned references; /* of a primary context */
    unsigned long long id;
    _Atomic int failure; /* the sticky error */
    uint32_t slot;       /* in the GPU's activity page */
    uint32_t faults;     /* the GPU's count of failures when the context was created */
    pthread_mutex_t account;
    unsigned running; /* pieces of work on the CPU now */
    uint64_t worked;  /* CPU time of their threads since the first of them began */
    /* The streams and their queues. */
    pthread_mutex_t lock;
    pthread_cond_t done;
    atomic_uint waiters;
    struct context *next; /* in the list of all contexts of the process */
    struct stream *streams;
    struct stream *legacy;
    atomic_uint captures;         /* captures of streams that the legacy stream would wait for */
    uint64_t ends[ACTIVITY_JOBS]; /* of jobs that were seen to end; under the lock */
    uint64_t ended;               /* number of jobs that have ended */
};
CUresult context_new(struct card *card, unsigned flags, struct context **made);
void context_end(struct context *context);
CUresult context_current(struct context **context);
void contexts_drain(void);              /* waits for all contexts */
bool contexts_idle(void);               /* all submitted work is done */
void contexts_close(struct card *card); /* at its daemon; in this process they stay alive */
CUresult contexts_open(struct card *card, struct card *target);
CUresult stream_find(CUstream handle, struct stream **stream);
void context_fail(struct context *context, CUresult failure); /* its own kernel caused a fault */
CUresult context_status(struct context *context);             /* the sticky error, including one of a failed GPU */
unsigned long long next_id(void);

/* ---- the account of engine time, in real time ---- */
/* Both are called by the thread that runs the work; account_end takes what account_begin returned. */
uint64_t account_begin(struct context *context);
void account_end(struct context *context, uint64_t began);
void account_copy(struct context *context, size_t in, size_t out, uint64_t nanoseconds);
/* Count a copy: between GPUs on both of them, else between the host and the context's GPU. */
void account_transfer(struct context *context, const void *to, const void *from, size_t bytes, uint64_t nanoseconds);

/* ---- streams: ordered queues, each with a worker thread ---- */
enum work_kind { WORK_GRID, WORK_COPY, WORK_FILL, WORK_HOST, WORK_CALLBACK, WORK_MARK, WORK_WAIT, WORK_FREE };
struct tips { /* the nodes of a graph under capture that the next node depends on */
    CUgraphNode *nodes;
    size_t count;
};
struct mark { /* a position in a stream, shared by an event and its waiters */
    atomic_uint references;
    struct stream *stream;
    uint64_t sequence;
    _Atomic uint64_t nanoseconds; /* when it was reached */
    unsigned long long capture;   /* the number of the capture that recorded it into a graph, or 0 */
    struct tips tips;             /* the nodes that it comes after */
};
struct grid {
    const struct sg_kernel *kernel;
    uint32_t blocks[3], threads[3], dynamic_shared;
    /* In modeled time: when it begins and how fast the GPU's clock is, for the clocks that kernels read. */
    uint32_t clock_khz;
    uint64_t start;
    CUfunction function; /* for graphs, whose module may be unloaded when they run */
};
struct tally { /* what threads did: instructions of all, of the busiest, and nanoseconds of the longest sleep */
    uint64_t total, longest, sleep;
};
struct work {
    struct work *next;
    enum work_kind kind;
    uint64_t sequence;
    uint64_t submitted; /* time of submission, in modeled time */
    uint64_t job;       /* number on the GPU's timeline; 0: it takes no time there */
    union {
        struct grid grid;
        struct {
            char *to;
            const char *from;
            size_t width, rows, to_pitch, from_pitch;
        } copy;
        struct {
            char *to;
            uint32_t value;
            uint32_t unit;
            size_t count, rows, pitch;
        } fill;
        struct {
            CUhostFn function;
            void *argument;
        } host;
        struct {
            CUstreamCallback function;
            void *argument;
            CUstream stream;
        } callback;
        struct mark *mark;
        CUdeviceptr pointer;
    };
    _Alignas(16) unsigned char parameters[];
};
struct stream {
    struct stream *next;
    struct context *context;
    CUstream handle;
    unsigned flags;
    int priority;
    unsigned long long id;
    atomic_uint references;
    bool closing, started;
    pthread_t worker;
    pthread_cond_t more;
    struct work *first, **last;
    _Atomic uint64_t submitted; /* written under the context's lock */
    _Atomic uint64_t completed;
    _Atomic bool idle;
    /* In modeled time: work that the CPU has finished and the GPU has not. Under the context's lock. */
    struct work *trail, **trail_end;
    uint64_t executed;       /* the CPU has finished everything up to here */
    _Atomic uint64_t floor;  /* when the last completed work ended on the GPU */
    struct capture *capture; /* set while submissions become part of a graph */
    struct tips tips;        /* the nodes that the next one comes after */
    bool unjoined;           /* the capturing stream has not waited for it yet */
};
struct stream *stream_new(struct context *context, unsigned flags, int priority);
void stream_keep(struct stream *stream);
void stream_release(struct stream *stream);
void stream_close(struct stream *stream);
void streams_close(struct context *context);
struct work *work_new(enum work_kind kind, size_t parameter_bytes);
CUresult stream_submit(struct stream *stream, struct work *work);
CUresult stream_submit_mark(struct stream *stream, struct mark **mark);
/* How often a waiter checks before it sleeps: waking a thread costs microseconds. */
enum { LOOKS = 2000 };
bool stream_start(struct stream *stream); /* starts its worker; under the lock */
void stream_leave(struct stream *stream); /* removes it from its context; under the lock */
void stream_reach(struct stream *stream, uint64_t sequence);
CUresult stream_wait(struct stream *stream, uint64_t sequence); /* the same, and returns the context's status */
CUresult stream_settle(struct stream *stream);                  /* waits as its next work would */
CUresult context_drain(struct context *context, bool blocking_only);
bool context_busy(struct context *context, bool blocking_only);
bool stream_busy(const struct stream *stream);
uint64_t stream_submitted(const struct stream *stream);
uint64_t stream_completed(struct stream *stream);                           /* as of now */
CUresult stream_of_thread(struct context *context, struct stream **stream); /* the thread's own default stream */
bool work_on_engine(const struct stream *stream, const struct work *work);
void work_run(struct stream *stream, struct work *work, struct tally *tally); /* grids, copies, fills */
CUresult event_record(CUevent event, struct stream *stream);
CUresult event_wait(CUevent event, struct stream *stream);
void mark_drop(struct mark *mark);
void mark_keep(struct mark *mark);
bool mark_reached(struct mark *mark);

/* ---- user objects, and the references that a graph or an instance holds ---- */
struct keep {
    struct kept {
        CUuserObject handle;
        unsigned count;
    } *items;
    size_t count;
};
CUresult owned_keep(CUuserObject handle, unsigned count);
CUresult owned_drop(CUuserObject handle, unsigned count);
bool keep_add(struct keep *keep, CUuserObject handle, unsigned count); /* takes over existing references */
bool keep_copy(struct keep *to, const struct keep *from);
void keep_clear(struct keep *keep);

/* ---- capture: submissions to a stream become a graph ---- */
CUresult capture_work(struct stream *stream, struct work *work);
CUresult capture_mark(struct stream *stream, struct mark *mark);
CUresult capture_wait(struct stream *stream, struct mark *mark); /* CUDA_SUCCESS: it joined, or there is no capture */
CUresult capture_forbids(struct stream *stream);                 /* for calls that a graph cannot contain */
CUresult graph_add_work(CUgraph graph, const CUgraphNode *dependencies, size_t count, const struct work *work,
                        CUgraphNode *made);

/* ---- modeled time (modelled.c), and the page's timeline behind it ---- */
enum { PACE_LATENCY = 4 }; /* cycles from one instruction of a thread to its next */
bool modelled(const struct context *context);
void modelled_perform(struct stream *stream, struct work *work); /* also frees it, now or when it completes */
void modelled_wait(struct stream *stream, uint64_t sequence);
void modelled_progress(struct context *context); /* under its lock: completes everything that has ended */
void modelled_sleep(struct stream *stream, pthread_cond_t *condition); /* under the lock, until something may end */
uint64_t pace_grid(const struct wire_device *device, const struct tally *tally);
uint64_t pace_device(const struct wire_device *device, size_t bytes);
uint64_t pace_host(const struct wire_device *device, size_t bytes);

/* ---- memory ---- */
enum memory_kind { MEMORY_DEVICE = 1, MEMORY_HOST, MEMORY_MANAGED, MEMORY_MODULE, MEMORY_REGISTERED };
struct allocation {
    uintptr_t start;
    size_t size;   /* as requested */
    size_t mapped; /* as charged */
    enum memory_kind kind;
    struct context *context;
    struct pool *pool; /* the pool it came from */
    unsigned flags;    /* of host memory */
    bool leaves;       /* it is queued in a stream to be freed */
};
CUresult memory_new(struct context *context, size_t size, enum memory_kind kind, void **pointer);
CUresult memory_free(uintptr_t start, bool host);
void memory_free_later(uintptr_t start);
void memory_free_context(struct context *context);
size_t memory_charged(const struct card *card);  /* bytes of it that this process holds, without contexts */
size_t virtual_charged(const struct card *card); /* the part of them that was created without an address */
void *memory_fresh_address(size_t size);
bool memory_find(uintptr_t address, struct allocation *found);
bool memory_on_host(const struct allocation *allocation);
bool memory_overlaps(uintptr_t start, size_t size);
void memory_flags(uintptr_t start, unsigned flags);
bool memory_leave(uintptr_t start);                                /* false if it is already queued to be freed */
bool memory_on_card(const void *address, const struct card *card); /* device memory of this GPU */
struct card *memory_card(const void *address);                     /* null for host memory */
bool memory_holds(uintptr_t address, size_t size);
CUresult memory_adopt(struct context *context, void *start, size_t size, enum memory_kind kind);
void memory_forget(void *start);
void memory_of_pool(uintptr_t start, struct pool *pool);
CUmemoryPool pool_handle(const struct pool *pool);
void pool_count(struct pool *pool, size_t bytes, bool taken);

/* ---- modules ---- */
struct function {
    const struct sg_kernel *kernel;
    struct module *module;
    CUfunction handle;
    int dynamic_shared; /* the largest amount that a launch may request */
};
struct module {
    struct context *context;
    CUmodule handle;
    const struct sg_image *image;
    char *memory;
    size_t size;
    struct function *functions;
};
CUresult module_compile(struct card *card, const void *image, unsigned options, const CUjit_option *names,
                        void **values, int *descriptor);
struct module *module_new(struct context *context, int descriptor);
void module_free(struct module *module);
CUresult module_find(struct module *module, const char *name, struct function **function);
char *read_text(const char *path, CUresult *status);
/* A function by its handle, or a library's kernel as a function of the current context. */
CUresult function_find(CUfunction handle, struct function **function);
CUresult kernel_find(CUkernel handle, struct function **function);
const struct sg_image *image_load(int descriptor, char **memory, size_t *size);

/* ---- running ---- */
/* 0, or the sticky error */
int grid_run(const struct grid *grid, const unsigned char *parameters, struct tally *tally);
void tally_add(struct tally *tally, const struct tally *more);
CUresult launch_check(const struct context *context, const struct function *function, const struct grid *grid);
CUresult launch_pack(const struct function *function, void **values, void **extra, unsigned char *buffer);
int function_most_threads(const struct function *function);
int function_most_shared(const struct function *function);
CUresult fill_check(const CUDA_MEMSET_NODE_PARAMS_v2 *fill);
CUresult fill_submit(const CUDA_MEMSET_NODE_PARAMS_v2 *fill, struct stream *stream);
CUresult array_resolve(CUDA_MEMCPY3D *copy); /* replaces arrays by their memory */
CUresult copy_check(const CUDA_MEMCPY3D *copy);
CUresult copy_submit(struct stream *stream, const CUDA_MEMCPY3D *copy);
uint64_t now_nanoseconds(void);
void condition_init(pthread_cond_t *condition);

/* State of one CPU thread that runs blocks: fibers, shared window, and the exit from a fault. */
struct engine;
struct engine *engine_of_thread(void);
int engine_run(struct engine *engine, const struct grid *grid, const unsigned char *parameters, uint64_t first,
               uint64_t end);
