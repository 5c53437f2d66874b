#define _GNU_SOURCE
#include "link.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The shortest time between two attempts to connect. */
#define RETRY_NS (INT64_C(20) * 1000000)

static struct {
    pthread_mutex_t lock;
    const char *folder;
    int descriptor; /* or -1 */
    unsigned number;
    int64_t tried;
} connection = {.lock = PTHREAD_MUTEX_INITIALIZER, .descriptor = -1};

static int64_t read_clock(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t clock_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t clock_coarse(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

void word_wait(const uint32_t *word, uint32_t value, int64_t deadline)
{
    struct timespec until = {deadline / 1000000000, deadline % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, deadline == INT64_MAX ? NULL : &until, NULL,
            FUTEX_BITSET_MATCH_ANY);
}

void word_wake(const uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void link_start(const char *folder)
{
    connection.folder = folder;
}

void link_forget(void)
{
    if (connection.descriptor >= 0)
        close(connection.descriptor);
    connection.descriptor = -1;
    connection.number++;
    pthread_mutex_init(&connection.lock, NULL);
}

/* Through the directory's descriptor, because its path may be longer than a socket address allows. */
static int reach(const char *folder)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int place = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int descriptor = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    snprintf(name.sun_path, sizeof name.sun_path, "/proc/self/fd/%d/arbiter", place);
    if (place >= 0 && descriptor >= 0 && connect(descriptor, (struct sockaddr *)&name, sizeof name)) {
        close(descriptor);
        descriptor = -1;
    }
    if (place >= 0)
        close(place);
    return descriptor;
}

static void hang_up(void)
{
    close(connection.descriptor);
    connection.descriptor = -1;
}

static int connected(void)
{
    if (connection.descriptor >= 0)
        return 1;
    int64_t now = clock_now();
    if (now - connection.tried < RETRY_NS)
        return 0;
    connection.tried = now;
    connection.descriptor = reach(connection.folder);
    if (connection.descriptor >= 0)
        connection.number++;
    return connection.descriptor >= 0;
}

unsigned link_say(const struct lease_message *message)
{
    unsigned said = 0;
    pthread_mutex_lock(&connection.lock);
    for (int attempt = 0; attempt < 2 && !said && connected(); attempt++) {
        if (send(connection.descriptor, message, sizeof *message, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof *message)
            said = connection.number;
        else if (errno == EAGAIN || errno == EINTR)
            break;
        else
            hang_up();
    }
    pthread_mutex_unlock(&connection.lock);
    return said;
}

unsigned link_number(void)
{
    return __atomic_load_n(&connection.number, __ATOMIC_RELAXED);
}
