/* Where the data of copies to the host go: only where a copy of this process waits for them. */
#include "link_parts.h"
#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
struct landing {
    struct landing *next;
    uint64_t cookie;
    char *to;
    size_t size, landed;
    bool later;
    char *shadow;
};
static struct landing *landings;

struct landing *landing_begin(void *to, size_t size, bool later, char *shadow)
{
    static uint64_t cookies;
    struct landing *landing = calloc(1, sizeof *landing);
    if (!landing)
        return NULL;
    *landing = (struct landing){.to = to, .size = size, .later = later, .shadow = shadow};
    pthread_mutex_lock(&lock);
    landing->cookie = ++cookies;
    landing->next = landings;
    landings = landing;
    pthread_mutex_unlock(&lock);
    return landing;
}

uint64_t landing_cookie(const struct landing *landing)
{
    return landing->cookie;
}

void landing_end(struct landing *landing)
{
    pthread_mutex_lock(&lock);
    struct landing **at = &landings;
    while (*at && *at != landing)
        at = &(*at)->next;
    if (*at)
        *at = landing->next;
    pthread_mutex_unlock(&lock);
    free(landing);
}

/* Data go only where a copy of this process waits for them, and not beyond its end. */
int landing_receive(size_t length)
{
    struct {
        uint64_t cookie, offset, size;
    } where;
    char padding[WIRE_ALIGN];
    if (length < sizeof where || link_receive(&where, sizeof where))
        return link_lose("it sent a frame that is too short");
    pthread_mutex_lock(&lock);
    struct landing *landing = landings;
    while (landing && landing->cookie != where.cookie)
        landing = landing->next;
    pthread_mutex_unlock(&lock);
    if (!landing || where.size > landing->size || where.offset > landing->size - where.size
        || padded(where.size) + sizeof where != length)
        return link_lose("it sent data that nobody asked for");
    char *to = landing->to + where.offset;
    if (link_receive(to, where.size) || link_receive(padding, padded(where.size) - where.size))
        return link_status_lost;
    if (landing->shadow)
        memcpy(landing->shadow + where.offset, to, where.size);
    landing->landed += where.size;
    if (landing->later && landing->landed == landing->size)
        landing_end(landing);
    return 0;
}
