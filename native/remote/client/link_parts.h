/* What the parts of the client's connection share: link.c, lanes.c, landings.c, counts.c and hello.c. */
#pragma once
#include "../line.h"
#include "link.h"

/* link.c: the connection */
bool link_is_lost(void);
int link_lose(const char *why); /* says why, once; returns the status of a lost connection */
void link_open(struct line *opened, bool strict);
void link_forget(void);         /* in a child of fork */
void link_run(int patience_ms); /* after the worker's welcome */
int link_emit(struct lane *lane, int flags, const void *payload, size_t size);
int link_await(struct lane *lane);
int link_receive(void *to, size_t size); /* by the thread that reads for all */

/* lanes.c */
struct lane *lane_find(uint32_t number);
void lanes_begin(void);
void lanes_forget(void);

/* landings.c */
int landing_receive(size_t length);

/* counts.c: how often the program waited for the server, and for what; for measurements and tests */
void count_sent(int op, size_t bytes);
void count_received(size_t bytes);
void count_waited(int op);
void counts_write_at_exit(void);
