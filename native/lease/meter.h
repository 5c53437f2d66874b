/* Charges GPU time to the holder, and to tenants whose work ran on after their turn. Part of turns.c. */
#ifndef MILLIGPU_LEASE_METER_H
#define MILLIGPU_LEASE_METER_H

#include "turns.h"

/* How far back a tenant's time stamp may reach: far enough to correct for the arbiter's delay, not enough to hide
 * work. */
#define METER_STAMP_REACH (300 * LEASE_US)

/* Charge the time up to now to the tenants that had it: the holder, and those whose work runs on next to it. */
void meter_until(struct lease_gpu *gpu, int64_t now);

/* End the charges of tenants whose work ran on and who have been silent for too long: at the end of the time in which
 * they are believed, however late the arbiter looks. Call it before a message of a tenant counts. */
void meter_silence(struct lease_gpu *gpu, int64_t now);

/* The tenant's work runs on after its turn, with an unknown end. */
int meter_is_late(const struct lease_gpu *gpu, int who);

/* A tenant's time stamp, limited to a plausible range. */
int64_t meter_believed(const struct lease_gpu *gpu, int64_t stamp, int64_t now);

/* The tenant has work on the GPU outside its turn, or its work takes longer than it announced. */
void meter_running_on(struct lease_gpu *gpu, int who, int64_t now);

/* Work that ran on has ended or is about to end. */
void meter_late_end(struct lease_gpu *gpu, int who, int64_t stamp, int64_t now);

/* Work of an earlier turn ended, before or after the announced time: correct the charges accordingly. */
void meter_ended(struct lease_gpu *gpu, int who, int64_t stamp, int64_t now);

#endif
