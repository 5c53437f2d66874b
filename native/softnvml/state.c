/* A GPU's state: memory, utilization, temperature, power, clocks, errors. */
#include "softnvml.h"

#define GETTER(function, type, expression)                                                                             \
    API function(nvmlDevice_t device, type *answer)                                                                    \
    {                                                                                                                  \
        LOOK(device, answer);                                                                                          \
        *answer = (type)(expression);                                                                                  \
        return NVML_SUCCESS;                                                                                           \
    }

/* ---- memory ---- */
API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    LOOK(device, memory);
    *memory = (nvmlMemory_t){card->facts.memory, card->facts.memory - reading.used, reading.used};
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    LOOK(device, memory);
    if (memory->version != nvmlMemory_v2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *memory = (nvmlMemory_v2_t){memory->version, card->facts.memory, 0, card->facts.memory - reading.used,
                                reading.used};
    return NVML_SUCCESS;
}

/* The window through which the host sees the memory: one megabyte of it is always in use. */
API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    LOOK(device, memory);
    *memory = (nvmlBAR1Memory_t){card->facts.bar1, card->facts.bar1 - (1 << 20), 1 << 20};
    return NVML_SUCCESS;
}

/* ---- load ---- */
API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    LOOK(device, rates);
    *rates = (nvmlUtilization_t){reading.utilization, reading.memory_utilization};
    return NVML_SUCCESS;
}

#define VIDEO_ENGINE(function, percent)                                                                                \
    API function(nvmlDevice_t device, unsigned *utilization, unsigned *period)                                         \
    {                                                                                                                  \
        LOOK(device, utilization && period ? utilization : 0);                                                         \
        *utilization = percent;                                                                                        \
        *period = 1000000;                                                                                             \
        return NVML_SUCCESS;                                                                                           \
    }
VIDEO_ENGINE(nvmlDeviceGetEncoderUtilization, reading.encoder)
VIDEO_ENGINE(nvmlDeviceGetDecoderUtilization, reading.decoder)

API nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter, unsigned *value)
{
    LOOK(device, counter < NVML_PCIE_UTIL_COUNT ? value : 0);
    *value = counter == NVML_PCIE_UTIL_TX_BYTES ? reading.pcie_sent : reading.pcie_received;
    return NVML_SUCCESS;
}
GETTER(nvmlDeviceGetPcieReplayCounter, unsigned, reading.replays)
/* An idle GPU reduces its link speed. */
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, reading.performance_state ? 1 : card->facts.pcie_generation)

/* ---- temperature and power ---- */
API nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned *degrees)
{
    LOOK(device, sensor == NVML_TEMPERATURE_GPU ? degrees : 0);
    *degrees = reading.temperature;
    return NVML_SUCCESS;
}

API nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_t *answer)
{
    LOOK(device, answer);
    if (answer->version != nvmlTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (answer->sensorType != NVML_TEMPERATURE_GPU)
        return NVML_ERROR_INVALID_ARGUMENT;
    answer->temperature = (int)reading.temperature;
    return NVML_SUCCESS;
}

API nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, nvmlTemperatureThresholds_t which, unsigned *degrees)
{
    LOOK(device, which < NVML_TEMPERATURE_THRESHOLD_COUNT ? degrees : 0);
    switch (which) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: *degrees = card->facts.shutdown; break;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: *degrees = card->facts.slowdown; break;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: *degrees = card->facts.slowdown - 2; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

API nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *answer)
{
    LOOK(device, answer);
    if (answer->version != nvmlMarginTemperature_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    answer->marginTemperature = (int)card->facts.slowdown - (int)reading.temperature;
    return NVML_SUCCESS;
}

GETTER(nvmlDeviceGetPowerUsage, unsigned, reading.power)
GETTER(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, reading.energy)
GETTER(nvmlDeviceGetPowerManagementMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, reading.power_limit)
GETTER(nvmlDeviceGetEnforcedPowerLimit, unsigned, reading.power_limit)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, card->facts.power_default)
GETTER(nvmlDeviceGetPerformanceState, nvmlPstates_t, reading.performance_state)
GETTER(nvmlDeviceGetPowerState, nvmlPstates_t, reading.performance_state)
GETTER(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, reading.persistence)

API nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *least, unsigned *most)
{
    LOOK(device, least && most ? least : 0);
    *least = card->facts.power_least;
    *most = card->facts.power_most;
    return NVML_SUCCESS;
}

/* ---- clocks ---- */
static nvmlReturn_t pick_clock(nvmlClockType_t type, unsigned graphics, unsigned memory, unsigned video,
                               unsigned *clock)
{
    switch (type) {
    case NVML_CLOCK_GRAPHICS:
    case NVML_CLOCK_SM: *clock = graphics; return NVML_SUCCESS;
    case NVML_CLOCK_MEM: *clock = memory; return NVML_SUCCESS;
    case NVML_CLOCK_VIDEO: *clock = video; return NVML_SUCCESS;
    default: return NVML_ERROR_INVALID_ARGUMENT;
    }
}

#define CLOCK(function, source)                                                                                        \
    API function(nvmlDevice_t device, nvmlClockType_t type, unsigned *clock)                                           \
    {                                                                                                                  \
        LOOK(device, clock);                                                                                           \
        return pick_clock(type, source.clock_graphics, source.clock_memory, source.clock_video, clock);                \
    }
CLOCK(nvmlDeviceGetClockInfo, reading)
CLOCK(nvmlDeviceGetMaxClockInfo, card->facts)
CLOCK(nvmlDeviceGetApplicationsClock, card->facts)
CLOCK(nvmlDeviceGetDefaultApplicationsClock, card->facts)
CLOCK(nvmlDeviceGetMaxCustomerBoostClock, card->facts)

API nvmlDeviceGetClock(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t which, unsigned *clock)
{
    return which == NVML_CLOCK_ID_CURRENT ? nvmlDeviceGetClockInfo(device, type, clock)
                                          : nvmlDeviceGetMaxClockInfo(device, type, clock);
}

GETTER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, reading.reasons)
GETTER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, reading.reasons)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, nvmlClocksEventReasonAll)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, nvmlClocksEventReasonAll)

API nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy, nvmlViolationTime_t *time)
{
    LOOK(device, policy < NVML_PERF_POLICY_COUNT ? time : 0);
    time->referenceTime = reading.microseconds;
    time->violationTime = policy == NVML_PERF_POLICY_POWER     ? reading.slowed_power
                          : policy == NVML_PERF_POLICY_THERMAL ? reading.slowed_thermal
                                                               : 0;
    return NVML_SUCCESS;
}

/* One memory clock, and for it steps of 15 MHz from the highest down, as on real GPUs. */
API nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned *count, unsigned *clocks)
{
    LOOK(device, count);
    if ((status = room_for(1, count, clocks)) == NVML_SUCCESS)
        clocks[0] = card->facts.clock_memory;
    return status;
}

API nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned memory, unsigned *count, unsigned *clocks)
{
    LOOK(device, count);
    if (memory != card->facts.clock_memory)
        return NVML_ERROR_NOT_FOUND;
    unsigned steps = (card->facts.clock_graphics - 210) / 15 + 1;
    if ((status = room_for(steps, count, clocks)) == NVML_SUCCESS)
        for (unsigned at = 0; at < steps; at++)
            clocks[at] = card->facts.clock_graphics - 15 * at;
    return status;
}

/* Where real GPUs buffer several samples, only the newest. */
API nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long newer,
                         nvmlValueType_t *value_type, unsigned *count, nvmlSample_t *samples)
{
    LOOK(device, value_type && count && type < NVML_SAMPLINGTYPE_COUNT ? count : 0);
    unsigned value;
    switch (type) {
    case NVML_TOTAL_POWER_SAMPLES: value = reading.power; break;
    case NVML_GPU_UTILIZATION_SAMPLES: value = reading.utilization; break;
    case NVML_MEMORY_UTILIZATION_SAMPLES: value = reading.memory_utilization; break;
    case NVML_PROCESSOR_CLK_SAMPLES: value = reading.clock_graphics; break;
    case NVML_MEMORY_CLK_SAMPLES: value = reading.clock_memory; break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    if (reading.microseconds <= newer)
        return NVML_ERROR_NOT_FOUND;
    *value_type = NVML_VALUE_TYPE_UNSIGNED_INT;
    if (!samples) { /* the caller asks only for the count */
        *count = 1;
        return NVML_SUCCESS;
    }
    if ((status = room_for(1, count, samples)) == NVML_SUCCESS)
        samples[0] = (nvmlSample_t){.timeStamp = reading.microseconds, .sampleValue.uiVal = value};
    return status;
}

/* ---- memory errors ---- */
API nvmlDeviceGetEccMode(nvmlDevice_t device, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
    LOOK(device, current && pending ? current : 0);
    if (!card->facts.ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = NVML_FEATURE_ENABLED;
    return NVML_SUCCESS;
}

API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                unsigned long long *count)
{
    LOOK(device, type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT ? count : 0);
    if (!card->facts.ecc)
        return NVML_ERROR_NOT_SUPPORTED;
    *count = counter == NVML_VOLATILE_ECC ? reading.ecc_volatile[type] : reading.ecc_aggregate[type];
    return NVML_SUCCESS;
}

/* Every injected error is an error of the GPU's memory. */
API nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
                                    nvmlMemoryLocation_t location, unsigned long long *count)
{
    nvmlReturn_t status = nvmlDeviceGetTotalEccErrors(device, type, counter, count);
    if (status)
        return status;
    if (location >= NVML_MEMORY_LOCATION_COUNT)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (location != NVML_MEMORY_LOCATION_DRAM)
        *count = 0;
    return NVML_SUCCESS;
}

/* From compute capability 8.0 on, rows are remapped; before, pages were retired. */
API nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed)
{
    LOOK(device, corrected && uncorrected && pending && failed ? corrected : 0);
    if (!card->facts.ecc || card->facts.major < 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *corrected = *failed = 0;
    *uncorrected = (unsigned)reading.ecc_aggregate[1];
    *pending = reading.ecc_volatile[1] > 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, nvmlEnableState_t *pending)
{
    LOOK(device, pending);
    if (!card->facts.ecc || card->facts.major >= 8)
        return NVML_ERROR_NOT_SUPPORTED;
    *pending = reading.ecc_volatile[1] ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

/* ---- settings ---- */
static nvmlReturn_t set(nvmlDevice_t device, enum watch_what what, unsigned value)
{
    LOOK(device, &cards);
    struct watch_setting setting = {what, value};
    return card_ask(card, WATCH_SET, &setting, sizeof setting, 0, 0);
}

API nvmlDeviceSetPersistenceMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    return mode > NVML_FEATURE_ENABLED ? NVML_ERROR_INVALID_ARGUMENT : set(device, WATCH_PERSISTENCE, mode);
}
API nvmlDeviceSetAccountingMode(nvmlDevice_t device, nvmlEnableState_t mode)
{
    return mode > NVML_FEATURE_ENABLED ? NVML_ERROR_INVALID_ARGUMENT : set(device, WATCH_ACCOUNTING_MODE, mode);
}
API nvmlDeviceClearAccountingPids(nvmlDevice_t device)
{
    return set(device, WATCH_CLEAR_ACCOUNTS, 0);
}
API nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit)
{
    return set(device, WATCH_POWER_LIMIT, limit);
}
API nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, nvmlEccCounterType_t counter)
{
    return counter >= NVML_ECC_COUNTER_TYPE_COUNT ? NVML_ERROR_INVALID_ARGUMENT : set(device, WATCH_CLEAR_ECC, counter);
}
GETTER(nvmlDeviceGetAccountingMode, nvmlEnableState_t, reading.accounting)
GETTER(nvmlDeviceGetAccountingBufferSize, unsigned, 4000) /* as many as softgpu/meter.py keeps */
