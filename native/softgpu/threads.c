/* The default stream that each thread has in each context: created on first use, closed when the thread ends. A closed
 * stream counts as one of its context's until all its work is done. */
#include "softgpu.h"
#include <stdlib.h>

struct own {
    struct own *next;
    struct context *context;
    struct stream *stream;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t key; /* used only for its destructor */
static bool usable;
static _Thread_local struct own *mine;

static void forget(struct own *own)
{
    stream_close(own->stream);
    stream_release(own->stream);
    free(own);
}

static void thread_ends(void *unused)
{
    (void)unused;
    while (mine && sg_alive()) {
        struct own *own = mine;
        mine = own->next;
        forget(own);
    }
}

static void make_key(void)
{
    usable = !pthread_key_create(&key, thread_ends);
}

/* Drop the streams of contexts that have ended. */
static void prune(void)
{
    for (struct own **at = &mine; *at;) {
        struct own *own = *at;
        if (handle_get(HANDLE_CONTEXT, own->context->handle) == own->context) {
            at = &own->next;
            continue;
        }
        *at = own->next;
        forget(own);
    }
}

CUresult stream_of_thread(struct context *context, struct stream **stream)
{
    for (struct own *own = mine; own; own = own->next)
        if (own->context == context) {
            *stream = own->stream;
            return CUDA_SUCCESS;
        }
    pthread_once(&once, make_key);
    prune();
    struct own *own = malloc(sizeof *own);
    if (!own || !usable || !(*stream = stream_new(context, CU_STREAM_DEFAULT, 0))) {
        free(own);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream_keep(*stream);
    *own = (struct own){mine, context, *stream};
    mine = own;
    return pthread_setspecific(key, own) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
