/* Whose time it was: the holder's, or that of work which ran on after its tenant's turn. Part of the turns. */
#ifndef MILLIGPU_LEASE_METER_H
#define MILLIGPU_LEASE_METER_H

#include "turns.h"

/* How far a tenant's time stamp may reach: it should be free of our delay, and not of its own work. */
#define METER_STAMP_REACH (300 * LEASE_US)

/* Charges the time up to now to whoever had it: the holder, and those whose work runs on beside it. */
void meter_until(struct lease_gpu *gpu, int64_t now);

/* Its work runs on after its turn, nobody knows how long. */
int meter_is_late(const struct lease_gpu *gpu, int who);

/* What a tenant's time stamp is worth. */
int64_t meter_believed(const struct lease_gpu *gpu, int64_t stamp, int64_t now);

/* It has work on the GPU outside its turn, or what it has takes longer than it said. */
void meter_running_on(struct lease_gpu *gpu, int who, int64_t now);

/* Work that ran on is about to end, or has. */
void meter_late_end(struct lease_gpu *gpu, int who, int64_t stamp, int64_t now);

/* Work of an earlier turn ended, earlier or later than its tenant had said: that time is its own, and no other is. */
void meter_ended(struct lease_gpu *gpu, int who, int64_t stamp, int64_t now);

#endif
