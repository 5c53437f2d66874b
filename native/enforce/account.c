/* The memory account that all processes of a tenant share, on the usage page.
 *
 * Each process has a slot with the bytes it holds. The account is the sum of the slots and is stored next to them, so a
 * charge needs one comparison. Slots and account change under a lock, which is a word of the page: the number of the
 * slot that holds it. A process may be killed at any instruction. Each living process holds a record lock on its slot's
 * byte of the file. The kernel drops this lock when the process dies, in any pid namespace. A process that waits for a
 * lock whose holder is dead takes it over and adds the slots up again, so the result does not depend on where the
 * holder died. The bytes of a dead process are given back on demand: before an allocation is refused, before free
 * memory is reported, or when the slot is used again.
 *
 * The page belongs to the tenant. Whatever is written there, nothing outside the page is touched. */
#include "enforce.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FREE = 0, TAKEN = 1, SPINS = 100, NONE = -1 };

/* The threads of this process take it before the page's lock. */
static pthread_mutex_t here = PTHREAD_MUTEX_INITIALIZER;
static int own = NONE;

static struct flock slot_byte(int slot, short kind)
{
    off_t start = (off_t)offsetof(struct mg_usage_page, slots) + slot * (off_t)sizeof(struct mg_process_slot);
    return (struct flock){.l_type = kind, .l_whence = SEEK_SET, .l_start = start, .l_len = 1};
}

static bool lock_slot(int slot)
{
    struct flock byte = slot_byte(slot, F_WRLCK);
    return fcntl(tenant_usage_file, F_SETLK, &byte) == 0;
}

static void unlock_slot(int slot)
{
    struct flock byte = slot_byte(slot, F_UNLCK);
    fcntl(tenant_usage_file, F_SETLK, &byte);
}

/* Start time of a process in clock ticks after boot; 0 if it does not exist or is a zombie. */
static uint64_t process_started(uint32_t pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length <= 0)
        return 0;
    text[length] = 0;
    const char *at = strrchr(text, ')'); /* the name may contain anything, so skip it */
    if (!at || at[1] != ' ' || at[2] == 'Z' || at[2] == 'X')
        return 0;
    for (int field = 2; field < 22 && at; field++)
        at = strchr(at + 1, ' ');
    uint64_t ticks = 0;
    for (at = at ? at + 1 : ""; *at >= '0' && *at <= '9'; at++)
        ticks = ticks * 10 + (uint64_t)(*at - '0');
    return ticks;
}

/* Whether the process of a slot is dead. If so, the slot's byte stays locked by this process. A killed process drops
 * its lock before the driver has taken back its memory: while the kernel still lists it, its memory is not free. */
static bool slot_is_dead(int slot)
{
    const struct mg_process_slot *gone = &tenant_usage->slots[slot];
    if (slot == own || !lock_slot(slot))
        return false;
    if (gone->state == FREE || !gone->started || process_started(gone->pid) != gone->started)
        return true;
    unlock_slot(slot);
    return false;
}

/* ---- under the lock ---- */
static void add_up(void)
{
    for (unsigned gpu = 0; gpu < MG_PAGE_GPUS; gpu++) {
        uint64_t sum = 0;
        for (unsigned slot = 0; slot < MG_USAGE_SLOTS; slot++)
            sum += tenant_usage->slots[slot].state ? tenant_usage->slots[slot].used[gpu] : 0;
        tenant_usage->accounts[gpu].used = sum;
    }
}

static void clear_slot(int slot)
{
    struct mg_process_slot *gone = &tenant_usage->slots[slot];
    gone->state = FREE; /* from here on the slot does not count, even if this process is killed now */
    add_up();
    memset(gone->used, 0, sizeof gone->used);
}

static void clear_dead(void)
{
    for (int slot = 0; slot < (int)MG_USAGE_SLOTS; slot++)
        if (tenant_usage->slots[slot].state != FREE && slot_is_dead(slot)) {
            clear_slot(slot);
            unlock_slot(slot);
        }
}

/* ---- the lock ---- */
/* Whether the lock was taken over from a dead process. */
static bool taken_over(uint32_t holder)
{
    if (holder == (uint32_t)own + 1) /* a former process with our slot died while it held the lock */
        return true;
    bool possible = holder <= MG_USAGE_SLOTS;
    if (possible && !slot_is_dead((int)holder - 1))
        return false;
    bool good = __atomic_compare_exchange_n(&tenant_usage->lock, &holder, (uint32_t)own + 1, false, __ATOMIC_ACQUIRE,
                                            __ATOMIC_RELAXED);
    if (possible)
        unlock_slot((int)holder - 1);
    return good;
}

static void lock_page(void)
{
    for (unsigned tries = 1;; tries++) {
        uint32_t holder = 0;
        if (__atomic_compare_exchange_n(&tenant_usage->lock, &holder, (uint32_t)own + 1, false, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED))
            return;
        if (holder == (uint32_t)own + 1 || tries % SPINS == 0) {
            if (taken_over(holder)) {
                add_up();
                return;
            }
            nanosleep(&(struct timespec){.tv_nsec = 50000}, 0);
        } else
            sched_yield();
    }
}

static void unlock_page(void)
{
    __atomic_store_n(&tenant_usage->lock, 0, __ATOMIC_RELEASE);
}

/* ---- the process ---- */
/* A child of fork holds nothing and has no slot; it does not inherit the parent's record lock. */
void account_before_fork(void)
{
    pthread_mutex_lock(&here);
}
void account_in_parent(void)
{
    pthread_mutex_unlock(&here);
}

void account_in_child(void)
{
    pthread_mutex_init(&here, 0);
    own = NONE;
}

/* Whether the slot belongs to a living process, not counting this process before it called exec. */
static bool somebody_elses(const struct mg_process_slot *slot, uint64_t started)
{
    if (slot->state == FREE || !slot->started || (slot->pid == (uint32_t)getpid() && slot->started == started))
        return false;
    return process_started(slot->pid) == slot->started;
}

static bool take_slot(int slot, uint64_t started)
{
    if (!lock_slot(slot))
        return false;
    struct mg_process_slot *mine = &tenant_usage->slots[slot];
    if (somebody_elses(mine, started)) {
        unlock_slot(slot);
        return false;
    }
    own = slot;
    lock_page();
    clear_slot(slot);
    mine->pid = (uint32_t)getpid();
    mine->started = started;
    mine->state = TAKEN;
    unlock_page();
    return true;
}

/* Processes that start together begin the search at different slots. */
static bool have_slot(void)
{
    if (own != NONE)
        return true;
    uint64_t started = process_started((uint32_t)getpid());
    unsigned first = (unsigned)getpid();
    for (unsigned at = 0; at < MG_USAGE_SLOTS; at++)
        if (take_slot((int)((first + at) % MG_USAGE_SLOTS), started))
            return true;
    say("no GPU for this process: %u processes of this tenant already use it", MG_USAGE_SLOTS);
    return false;
}

uint64_t account_limit(unsigned gpu)
{
    return __atomic_load_n(&tenant_limits->gpus[gpu].memory_limit, __ATOMIC_RELAXED);
}

uint64_t account_round(uint64_t bytes)
{
    enum { PAGE = 4096 };
    return bytes > UINT64_MAX - PAGE ? bytes : (bytes + PAGE - 1) / PAGE * PAGE;
}

static bool fits(const struct mg_account *account, uint64_t bytes, uint64_t limit)
{
    return account->used <= limit && bytes <= limit - account->used;
}

/* The slot changes first: if this process is killed in between, its slot's content is what gets subtracted. */
static void add(unsigned gpu, uint64_t bytes)
{
    struct mg_account *account = &tenant_usage->accounts[gpu];
    tenant_usage->slots[own].used[gpu] += bytes;
    account->used += bytes;
    if (account->used > account->peak)
        account->peak = account->used;
}

bool account_charge(unsigned gpu, uint64_t bytes)
{
    bool good = false;
    pthread_mutex_lock(&here);
    if (have_slot()) {
        lock_page();
        const struct mg_account *account = &tenant_usage->accounts[gpu];
        if (!fits(account, bytes, account_limit(gpu)))
            clear_dead();
        good = fits(account, bytes, account_limit(gpu));
        if (good)
            add(gpu, bytes);
        unlock_page();
    }
    pthread_mutex_unlock(&here);
    return good;
}

void account_add(unsigned gpu, uint64_t bytes)
{
    pthread_mutex_lock(&here);
    if (have_slot()) {
        lock_page();
        add(gpu, bytes);
        unlock_page();
    }
    pthread_mutex_unlock(&here);
}

void account_give_back(unsigned gpu, uint64_t bytes)
{
    pthread_mutex_lock(&here);
    if (own != NONE) {
        lock_page();
        struct mg_account *account = &tenant_usage->accounts[gpu];
        uint64_t *held = &tenant_usage->slots[own].used[gpu];
        account->used -= bytes < account->used ? bytes : account->used;
        *held -= bytes < *held ? bytes : *held;
        unlock_page();
    }
    pthread_mutex_unlock(&here);
}

/* Clear the slots of dead processes before free memory is reported. */
void account_settle(void)
{
    pthread_mutex_lock(&here);
    if (own != NONE) {
        lock_page();
        clear_dead();
        unlock_page();
    }
    pthread_mutex_unlock(&here);
}

void account_refused(unsigned gpu)
{
    __atomic_add_fetch(&tenant_usage->accounts[gpu].refused, 1, __ATOMIC_RELAXED);
}

uint64_t account_used(unsigned gpu)
{
    return __atomic_load_n(&tenant_usage->accounts[gpu].used, __ATOMIC_RELAXED);
}
