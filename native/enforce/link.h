/* The way to the arbiter: one socket per process, and waiting for words of the limits page to change. */
#ifndef MILLIGPU_LINK_H
#define MILLIGPU_LINK_H

#include "protocol.h"

/* The folder with the arbiter's socket; stays the caller's. */
void link_start(const char *folder);

/* Says it, over a new connection if the old one is gone. The connection's number, or 0: there is no arbiter now.
 * What was said over another connection than the present one must be said again. */
unsigned link_say(const struct lease_message *message);
unsigned link_number(void);

/* In a child of fork: the parent's connection is not ours. */
void link_forget(void);

/* Sleep until `*word` is no longer `value`, somebody wakes us, or the clock reads `deadline`. */
void word_wait(const uint32_t *word, uint32_t value, int64_t deadline);
void word_wake(const uint32_t *word);

int64_t clock_now(void);

#endif
