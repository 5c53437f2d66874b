/* How the driver gives memory: large allocations are multiples of a granule (2 MiB on NVIDIA's drivers), and small ones
 * share granules. The agent measures the granule once per GPU model and driver, and the limits page has it. */
#include "enforce.h"
#include <pthread.h>

enum { PAGE = 4096, PIECE = 512 }; /* small allocations begin at multiples of a piece */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t small[MG_PAGE_GPUS]; /* the small allocations of this process */
static uint64_t granule_of[MG_PAGE_GPUS];

void granules_before_fork(void)
{
    pthread_mutex_lock(&lock);
}
void granules_in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

void granules_in_child(void)
{
    pthread_mutex_init(&lock, 0);
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++)
        small[gpu] = 0;
}

static uint64_t round_to(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* Read once: what is given back must be what was charged. */
static uint64_t granule(unsigned gpu)
{
    uint64_t known = __atomic_load_n(&granule_of[gpu], __ATOMIC_RELAXED);
    if (!known) {
        known = __atomic_load_n(&tenant_limits->gpus[gpu].granule_bytes, __ATOMIC_RELAXED);
        known = known ? known : PAGE;
        __atomic_store_n(&granule_of[gpu], known, __ATOMIC_RELAXED);
    }
    return known;
}

uint64_t granules_round(unsigned gpu, uint64_t bytes)
{
    return round_to(bytes, granule(gpu));
}

/* With a granule of one page, every allocation takes whole pages. */
static bool is_small(uint64_t unit, uint64_t bytes)
{
    return unit > PAGE && bytes < unit / 2;
}

static uint64_t taken(uint64_t unit, uint64_t pieces, uint64_t bytes)
{
    uint64_t shared = round_to(pieces, unit), whole = is_small(unit, bytes) ? 0 : round_to(bytes, unit);
    return whole > UINT64_MAX - shared ? UINT64_MAX : whole + shared;
}

bool granules_change(unsigned gpu, uint64_t from, uint64_t to)
{
    uint64_t unit = granule(gpu);
    bool good = true;
    pthread_mutex_lock(&lock);
    uint64_t less = is_small(unit, from) ? round_to(from, PIECE) : 0, pieces = small[gpu];
    pieces -= less < pieces ? less : pieces;
    pieces += is_small(unit, to) ? round_to(to, PIECE) : 0;
    uint64_t before = taken(unit, small[gpu], from), after = taken(unit, pieces, to);
    if (after > before)
        good = account_charge(gpu, after - before);
    else if (after < before)
        account_give_back(gpu, before - after);
    if (good)
        small[gpu] = pieces;
    pthread_mutex_unlock(&lock);
    return good;
}
