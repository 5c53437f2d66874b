/* Which memory is where: every allocation of this process, by address. */
#include "client.h"
#include <pthread.h>
#include <stdlib.h>

static struct {
    pthread_mutex_t lock;
    struct range *rows; /* by address; they do not overlap */
    size_t count, room;
} ranges = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The first row that begins above an address. */
static size_t row_after(uintptr_t address)
{
    size_t low = 0, high = ranges.count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges.rows[middle].base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool range_find(uintptr_t address, struct range *found)
{
    pthread_mutex_lock(&ranges.lock);
    size_t at = row_after(address);
    bool is_known = at && address - ranges.rows[at - 1].base < ranges.rows[at - 1].size;
    if (is_known)
        *found = ranges.rows[at - 1];
    pthread_mutex_unlock(&ranges.lock);
    return is_known;
}

static bool make_room(void)
{
    if (ranges.count < ranges.room)
        return true;
    size_t room = ranges.room ? ranges.room * 2 : 256;
    struct range *larger = realloc(ranges.rows, room * sizeof *larger);
    if (!larger)
        return false;
    ranges.rows = larger;
    ranges.room = room;
    return true;
}

static bool overlaps(const struct range *range, size_t at)
{
    if (at && range->base - ranges.rows[at - 1].base < ranges.rows[at - 1].size)
        return true;
    return at < ranges.count && ranges.rows[at].base - range->base < range->size;
}

bool range_add(const struct range *range)
{
    pthread_mutex_lock(&ranges.lock);
    size_t at = row_after(range->base);
    bool fits = make_room() && !overlaps(range, at);
    if (fits) {
        memmove(ranges.rows + at + 1, ranges.rows + at, (ranges.count - at) * sizeof *range);
        ranges.rows[at] = *range;
        ranges.count++;
    }
    pthread_mutex_unlock(&ranges.lock);
    return fits;
}

bool range_remove(uintptr_t base, struct range *removed)
{
    pthread_mutex_lock(&ranges.lock);
    size_t at = row_after(base);
    bool is_known = at && ranges.rows[at - 1].base == base;
    if (is_known) {
        *removed = ranges.rows[at - 1];
        ranges.count--;
        memmove(ranges.rows + at - 1, ranges.rows + at, (ranges.count - at + 1) * sizeof *removed);
    }
    pthread_mutex_unlock(&ranges.lock);
    return is_known;
}
