/* The limits library: what its parts know of each other.
 *
 * It stands in the driver's place. What it does not wrap goes through `cudaapi_real`, a table of the driver's own
 * functions, which is filled before anybody can call: with the driver's functions, or, when the tenant's pages are
 * not in order, with one that answers CUDA_ERROR_NO_DEVICE. */
#pragma once
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "cudaapi.h"
#include "cudaapi_real.h"
#include "folder.h"
#include <stdbool.h>
#include <stdint.h>

#define API __attribute__((visibility("default"))) CUresult

/* ---- tenant.c: the tenant's folder, its pages, the driver's library ---- */
extern const struct mg_limits_page *tenant_limits; /* null: no device for this process */
extern struct mg_usage_page *tenant_usage;
extern int tenant_usage_file;

/* ---- devices.c: which card of the page a device is ---- */
int device_gpu(CUdevice device); /* -1: none */
CUdevice gpu_device(unsigned gpu);
/* The card of the current context; -1 when there is none. Costs nothing while one card is visible. */
extern int devices_only;
int devices_current(void);
int devices_of_stream(CUstream stream);
void devices_in_child(void);
static inline int current_gpu(void) { return devices_only >= 0 ? devices_only : devices_current(); }
static inline int stream_gpu(CUstream stream) { return devices_only >= 0 ? devices_only : devices_of_stream(stream); }

/* ---- account.c: what the tenant's processes hold together ---- */
enum { ACCOUNT_UNIT = 4096 }; /* no allocation takes less of a card than a page */
bool account_charge(unsigned gpu, uint64_t bytes); /* all of it or, over the cap, nothing */
void account_add(unsigned gpu, uint64_t bytes);    /* already taken: counted, cap or not */
void account_give_back(unsigned gpu, uint64_t bytes);
void account_settle(void);
void account_refused(unsigned gpu);
uint64_t account_used(unsigned gpu);
uint64_t account_cap(unsigned gpu);
uint64_t account_round(uint64_t bytes);
void account_before_fork(void);
void account_in_parent(void);
void account_in_child(void);

/* ---- ledger.c: what this process holds, by handle ---- */
enum holding_kind { HOLDING_POINTER = 1, HOLDING_ARRAY, HOLDING_MIPMAP, HOLDING_EXTERNAL, HOLDING_IMPORT,
                    HOLDING_CONTEXT, HOLDING_PRIMARY, HOLDING_MODULE, HOLDING_LIBRARY,
                    HOLDING_LIMITS /* and one more for each CUlimit */ };
struct holding {
    enum holding_kind kind;
    unsigned gpu;
    uintptr_t handle;
    uint64_t bytes;
    CUcontext context; /* with which it ends; null: with the process */
    struct holding *next;
};
void ledger_put(struct holding holding);
bool ledger_take(enum holding_kind kind, uintptr_t handle, struct holding *taken);
/* All that ends with a context leaves the ledger and the account. */
void ledger_end(CUcontext context);
void ledger_before_fork(void);
void ledger_in_parent(void);
void ledger_in_child(void);

/* ---- charge.c: an allocation, from asking to holding ---- */
struct charge {
    int gpu;
    uint64_t bytes;
};
/* CUDA_SUCCESS with the bytes charged, or the error to answer. */
CUresult charge_begin(struct charge *charge, const char *symbol, uint64_t bytes);
CUresult charge_begin_on(struct charge *charge, const char *symbol, int gpu, uint64_t bytes);
CUresult charge_refused(const char *symbol, unsigned gpu, uint64_t bytes); /* counts it and says why */
/* After the driver answered `status`: a holding, or everything given back. */
CUresult charge_end(struct charge charge, CUresult status, enum holding_kind kind, uintptr_t handle);
/* Give back what the driver's call frees; when the call fails, nothing changed. */
#define GIVE_BACK(kind, handle, call)                                                  \
    ({                                                                                 \
        struct holding held;                                                           \
        bool known = ledger_take(kind, (uintptr_t)(handle), &held);                    \
        CUresult answer = (call);                                                      \
        if (known && answer)                                                           \
            ledger_put(held);                                                          \
        else if (known)                                                                \
            account_give_back(held.gpu, held.bytes);                                   \
        answer;                                                                        \
    })

/* ---- pools.c ---- */
void pools_refresh(void);             /* count again what the driver's pools hold */
bool pools_trim(unsigned gpu);        /* make them let go of what they keep unused; whether any did */
void pools_before_fork(void);
void pools_in_parent(void);
void pools_in_child(void);

/* ---- virtual.c ---- */
void virtual_before_fork(void);
void virtual_in_parent(void);
void virtual_in_child(void);

/* ---- contexts.c ---- */
void contexts_in_child(void);
