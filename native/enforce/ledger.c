/* What this process holds, by handle, so that freeing gives back exactly what was charged. */
#include "enforce.h"
#include <pthread.h>
#include <stdlib.h>

enum { FIRST_BUCKETS = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct holding **buckets;
static size_t bucket_count, used;

static size_t bucket(enum holding_kind kind, uintptr_t handle)
{
    uint64_t mixed = ((uint64_t)handle ^ ((uint64_t)kind << 56)) * 0x9E3779B97F4A7C15u;
    return (size_t)(mixed >> 20) % bucket_count;
}

static bool grow(void)
{
    size_t before = bucket_count, wanted = before ? 4 * before : FIRST_BUCKETS;
    struct holding **old = buckets, **larger = calloc(wanted, sizeof *larger);
    if (!larger)
        return before != 0;
    buckets = larger;
    bucket_count = wanted;
    for (size_t at = 0; at < before; at++)
        for (struct holding *each = old[at], *next; each; each = next) {
            next = each->next;
            struct holding **place = &buckets[bucket(each->kind, each->handle)];
            each->next = *place;
            *place = each;
        }
    free(old);
    return true;
}

/* Without memory for the entry, the bytes stay charged until the process ends: too much rather than too little. */
void ledger_put(struct holding holding)
{
    struct holding *line = malloc(sizeof *line);
    if (!line)
        return;
    pthread_mutex_lock(&lock);
    if (used < 2 * bucket_count || grow()) {
        struct holding **place = &buckets[bucket(holding.kind, holding.handle)];
        *line = holding;
        line->next = *place;
        *place = line;
        used++;
        line = 0;
    }
    pthread_mutex_unlock(&lock);
    free(line);
}

bool ledger_take(enum holding_kind kind, uintptr_t handle, struct holding *taken)
{
    bool found = false;
    pthread_mutex_lock(&lock);
    struct holding **place = bucket_count ? &buckets[bucket(kind, handle)] : 0;
    while (place && *place && ((*place)->kind != kind || (*place)->handle != handle))
        place = &(*place)->next;
    if (place && *place) {
        *taken = **place;
        free(*place);
        *place = taken->next;
        used--;
        found = true;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Remove all holdings of a context, or all holdings, from the table. */
static struct holding *unlink_all(CUcontext context, bool every)
{
    struct holding *list = 0;
    for (size_t at = 0; at < bucket_count; at++)
        for (struct holding **place = &buckets[at]; *place;) {
            struct holding *line = *place;
            if (!every && line->context != context) {
                place = &line->next;
                continue;
            }
            *place = line->next;
            line->next = list;
            list = line;
            used--;
        }
    return list;
}

void ledger_end(CUcontext context)
{
    if (!context)
        return;
    pthread_mutex_lock(&lock);
    struct holding *list = unlink_all(context, false);
    pthread_mutex_unlock(&lock);
    for (struct holding *next; list; list = next) {
        next = list->next;
        granules_give_back(list->gpu, list->bytes);
        free(list);
    }
}

void ledger_before_fork(void)
{
    pthread_mutex_lock(&lock);
}
void ledger_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

void ledger_in_child(void)
{
    pthread_mutex_init(&lock, 0);
    for (struct holding *list = unlink_all(0, true), *next; list; list = next) {
        next = list->next;
        free(list);
    }
}
