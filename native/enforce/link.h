/* The connection to the arbiter, one socket per process, and waiting for words of the limits page to change. */
#ifndef MILLIGPU_LINK_H
#define MILLIGPU_LINK_H

#include "protocol.h"

/* The directory with the arbiter's socket; the caller keeps the string alive. */
void link_start(const char *folder);

/* Send a message, over a new connection if the old one is gone. Returns the connection's number, or 0 if there is no
 * arbiter now. Messages sent over an earlier connection must be sent again. */
unsigned link_say(const struct lease_message *message);
unsigned link_number(void);

/* Call in a child of fork: the connection belongs to the parent. */
void link_forget(void);

/* Sleep until `*word` differs from `value`, a thread wakes this one, or the clock reaches `deadline`. */
void word_wait(const uint32_t *word, uint32_t value, int64_t deadline);
void word_wake(const uint32_t *word);

int64_t clock_now(void);
/* A time that has passed, by at most CLOCK_COARSE_NS; several times cheaper to read. */
int64_t clock_coarse(void);
#define CLOCK_COARSE_NS INT64_C(20000000)

#endif
