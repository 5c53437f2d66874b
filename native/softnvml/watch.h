/* The protocol between the management library and the GPU's daemon; mirrored by src/milligpu/softgpu/nvml_wire.py.
 *
 * The first request of a connection determines the type of client: the driver library sends a greeting and has the GPU
 * open from then on; the requests below only read. Headers are those of ../softgpu/wire.h, but a reply's status is an
 * nvmlReturn_t: a lost GPU returns NVML_ERROR_GPU_IS_LOST for everything. */
#pragma once
#include <stdint.h>

enum { WATCH_LINKS = 18, WATCH_SWITCH = 0xffff };

enum watch_kind {
    WATCH_FACTS = 64, /* -> struct watch_facts; also of a lost GPU, because its handle must still be found */
    WATCH_READING,    /* -> struct watch_reading */
    WATCH_PROCESSES,  /* -> struct watch_process[] */
    WATCH_SAMPLES,    /* u64 lower bound of the time, in microseconds -> struct watch_sample[] */
    WATCH_EVENTS,     /* u64 event types; from then on the daemon sends struct watch_event and accepts no requests */
    WATCH_SET,        /* struct watch_setting; root only */
    WATCH_ACCOUNTING, /* -> struct watch_account[], oldest first */
};

/* Properties that never change. */
struct watch_facts {
    char name[96], uuid[48], serial[32], vbios[32], part[32];
    uint64_t memory, bar1;
    uint32_t index, major, minor, architecture, brand, multiprocessors, cores, bus_width;
    uint32_t pci_bus, pci_device, pci_subsystem, pcie_generation, pcie_width;
    uint32_t numa, bridge, board; /* GPUs behind one PCIe bridge, or on one board, have the same number */
    uint32_t ecc, mig;            /* whether it supports them */
    uint32_t clock_graphics, clock_memory, clock_video; /* MHz, the maximum */
    uint32_t power_default, power_least, power_most;    /* mW */
    uint32_t slowdown, shutdown;                        /* degrees */
    uint32_t link_version;
    uint32_t links[WATCH_LINKS]; /* the remote end: a GPU's PCI bus, WATCH_SWITCH, or 0 for none */
};
_Static_assert(sizeof(struct watch_facts) == 440, "mirrors nvml_wire.py");

/* The current state. */
struct watch_reading {
    uint64_t microseconds;                               /* since 1970 */
    uint64_t used;                                       /* bytes */
    uint64_t energy;                                     /* mJ */
    uint64_t reasons;                                    /* why clocks are below their maximum, as NVML's bits */
    uint64_t ecc_volatile[2], ecc_aggregate[2];          /* corrected, uncorrected */
    uint64_t slowed_power, slowed_thermal, slowed_brake; /* ns */
    uint64_t pcie_total[2], link_total[2];               /* bytes sent, received */
    uint32_t utilization, memory_utilization;            /* percent of the last second */
    uint32_t temperature, power, power_limit;
    uint32_t clock_graphics, clock_memory, clock_video, performance_state;
    uint32_t pcie_sent, pcie_received; /* KB/s */
    uint32_t persistence, accounting;
    uint32_t recovery;                   /* NVML's recovery action for the GPU */
    uint32_t replays;                    /* of the PCIe link */
    uint32_t encoder, decoder, reserved; /* percent */
};
_Static_assert(sizeof(struct watch_reading) == 192, "mirrors nvml_wire.py");

struct watch_process {
    uint32_t pid, reserved;
    uint64_t memory;
};

struct watch_sample {
    uint64_t microseconds;
    uint32_t pid, utilization, memory_utilization, reserved;
};

struct watch_event {
    uint64_t type; /* NVML's event type; 0 if the GPU was lost or came back */
    uint64_t data; /* the XID */
};

enum watch_what {
    WATCH_PERSISTENCE = 1,
    WATCH_POWER_LIMIT,
    WATCH_ACCOUNTING_MODE,
    WATCH_CLEAR_ACCOUNTS,
    WATCH_CLEAR_ECC
};
struct watch_setting {
    uint32_t what, value;
};

struct watch_account {
    uint64_t most_memory, milliseconds, start; /* bytes, lifetime, microseconds since 1970 */
    uint32_t pid, utilization, memory_utilization, running;
};
