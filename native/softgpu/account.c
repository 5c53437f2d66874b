/* How long a context's work ran on the CPU, as everybody can read it on the card's activity page. */
#include "softgpu.h"

static struct activity_slot *slot_of(struct context *context)
{
    return &context->card->activity->slot[context->slot];
}

void account_begin(struct context *context)
{
    pthread_mutex_lock(&context->account);
    if (!context->running++)
        __atomic_store_n(&slot_of(context)->since, now_nanoseconds(), __ATOMIC_RELEASE);
    pthread_mutex_unlock(&context->account);
}

void account_end(struct context *context)
{
    struct activity_slot *slot = slot_of(context);
    pthread_mutex_lock(&context->account);
    if (!--context->running) {
        uint64_t since = slot->since;
        __atomic_store_n(&slot->since, 0, __ATOMIC_RELEASE);
        __atomic_fetch_add(&slot->busy, now_nanoseconds() - since, __ATOMIC_RELEASE);
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
