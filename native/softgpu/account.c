/* How long a context's work ran on the CPU, published on the GPU's activity page.
 *
 * Work waits for a CPU where other programs need it, too. That time is not counted: a GPU would not have waited. */
#include "softgpu.h"

static struct activity_slot *slot_of(struct context *context)
{
    return &context->card->activity->slot[context->slot];
}

static uint64_t thread_nanoseconds(void)
{
    struct timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

uint64_t account_begin(struct context *context)
{
    pthread_mutex_lock(&context->account);
    if (!context->running++)
        __atomic_store_n(&slot_of(context)->since, now_nanoseconds(), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context->account);
    return thread_nanoseconds();
}

void account_end(struct context *context, uint64_t began)
{
    struct activity_slot *slot = slot_of(context);
    pthread_mutex_lock(&context->account);
    context->worked += thread_nanoseconds() - began;
    if (!--context->running) {
        /* Streams that run at the same time use the same engine. */
        uint64_t passed = now_nanoseconds() - slot->since, worked = context->worked;
        context->worked = 0;
        __atomic_store_n(&slot->since, 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&slot->busy, worked < passed ? worked : passed, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&context->account);
}

void account_copy(struct context *context, size_t in, size_t out, uint64_t nanoseconds)
{
    struct activity_slot *slot = slot_of(context);
    __atomic_fetch_add(&slot->bytes_in, in, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->bytes_out, out, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->copy_busy, nanoseconds, __ATOMIC_RELAXED);
}

void account_transfer(struct context *context, const void *to, const void *from, size_t bytes, uint64_t nanoseconds)
{
    struct card *into = memory_card(to), *out_of = memory_card(from);
    bool peers = into && out_of && into != out_of;
    if (peers) {
        __atomic_fetch_add(&into->activity->peer_in, bytes, __ATOMIC_RELAXED);
        __atomic_fetch_add(&out_of->activity->peer_out, bytes, __ATOMIC_RELAXED);
    }
    account_copy(context, into && !out_of ? bytes : 0, out_of && !into ? bytes : 0, nanoseconds);
}
