/* The same values by field number, as exporters query them. */
#include "softnvml.h"
#include <limits.h>

struct value {
    nvmlValueType_t type;
    unsigned long long number;
};
#define NUMBER(what)                                                                                                   \
    (struct value)                                                                                                     \
    {                                                                                                                  \
        NVML_VALUE_TYPE_UNSIGNED_INT, what                                                                             \
    }
#define LONG(what)                                                                                                     \
    (struct value)                                                                                                     \
    {                                                                                                                  \
        NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, what                                                                       \
    }

static unsigned links(const struct card *card)
{
    unsigned count = 0;
    while (count < WATCH_LINKS && card->facts.links[count])
        count++;
    return count;
}

/* Bytes over all links, or over one of them: a copy is spread evenly. */
static nvmlReturn_t link_bytes(const struct card *card, unsigned scope, uint64_t bytes, struct value *value)
{
    unsigned count = links(card);
    if (!count)
        return NVML_ERROR_NOT_SUPPORTED;
    if (scope != UINT_MAX && scope >= count)
        return NVML_ERROR_INVALID_ARGUMENT;
    *value = LONG(scope == UINT_MAX ? bytes : bytes / count);
    return NVML_SUCCESS;
}

static nvmlReturn_t pick_link(const nvmlFieldValue_t *field, const struct card *card,
                              const struct watch_reading *reading, struct value *value)
{
    nvmlReturn_t status;
    switch (field->fieldId) {
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX:
    case NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_TX:
    case NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES:
        status = link_bytes(card, field->scopeId, reading->link_total[0], value);
        break;
    case NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX:
    case NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX:
    case NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES:
        status = link_bytes(card, field->scopeId, reading->link_total[1], value);
        break;
    default: return NVML_ERROR_NOT_SUPPORTED;
    }
    if (field->fieldId < NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES)
        value->number >>= 10; /* the older fields are in KiB */
    return status;
}

static nvmlReturn_t pick(const nvmlFieldValue_t *wanted, const struct card *card, const struct watch_reading *reading,
                         struct value *value)
{
    unsigned field = wanted->fieldId;
    switch (field) {
    case NVML_FI_DEV_ECC_CURRENT:
    case NVML_FI_DEV_ECC_PENDING: *value = NUMBER(card->facts.ecc); break;
    case NVML_FI_DEV_ECC_SBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_SBE_VOL_DEV: *value = LONG(reading->ecc_volatile[0]); break;
    case NVML_FI_DEV_ECC_DBE_VOL_TOTAL:
    case NVML_FI_DEV_ECC_DBE_VOL_DEV: *value = LONG(reading->ecc_volatile[1]); break;
    case NVML_FI_DEV_ECC_SBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_SBE_AGG_DEV: *value = LONG(reading->ecc_aggregate[0]); break;
    case NVML_FI_DEV_ECC_DBE_AGG_TOTAL:
    case NVML_FI_DEV_ECC_DBE_AGG_DEV: *value = LONG(reading->ecc_aggregate[1]); break;
    case NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION: *value = LONG(reading->energy); break;
    case NVML_FI_DEV_POWER_AVERAGE:
    case NVML_FI_DEV_POWER_INSTANT: *value = NUMBER(reading->power); break;
    case NVML_FI_DEV_POWER_MIN_LIMIT: *value = NUMBER(card->facts.power_least); break;
    case NVML_FI_DEV_POWER_MAX_LIMIT: *value = NUMBER(card->facts.power_most); break;
    case NVML_FI_DEV_POWER_DEFAULT_LIMIT: *value = NUMBER(card->facts.power_default); break;
    case NVML_FI_DEV_POWER_CURRENT_LIMIT: *value = NUMBER(reading->power_limit); break;
    case NVML_FI_DEV_PERF_POLICY_POWER: *value = LONG(reading->slowed_power); break;
    case NVML_FI_DEV_PERF_POLICY_THERMAL: *value = LONG(reading->slowed_thermal); break;
    case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: *value = NUMBER(reading->recovery); break;
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN:
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN: *value = LONG(reading->slowed_thermal); break;
    case NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN: *value = LONG(reading->slowed_brake); break;
    case NVML_FI_DEV_PERF_POLICY_SYNC_BOOST: *value = LONG(0); break;
    case NVML_FI_DEV_PCIE_REPLAY_COUNTER: *value = NUMBER(reading->replays); break;
    case NVML_FI_DEV_PCIE_COUNT_TX_BYTES: *value = LONG(reading->pcie_total[0]); break;
    case NVML_FI_DEV_PCIE_COUNT_RX_BYTES: *value = LONG(reading->pcie_total[1]); break;
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        if (!card->facts.link_version)
            return NVML_ERROR_NOT_SUPPORTED;
        *value = NUMBER(links(card));
        break;
    default: return pick_link(wanted, card, reading, value);
    }
    return NVML_SUCCESS;
}

API nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    LOOK(device, count > 0 ? values : 0);
    for (int at = 0; at < count; at++) {
        struct value value = NUMBER(0);
        values[at].nvmlReturn = pick(&values[at], card, &reading, &value);
        values[at].timestamp = (long long)reading.microseconds;
        values[at].latencyUsec = 0;
        values[at].valueType = value.type;
        if (value.type == NVML_VALUE_TYPE_UNSIGNED_INT)
            values[at].value.uiVal = (unsigned)value.number;
        else
            values[at].value.ullVal = value.number;
    }
    return NVML_SUCCESS;
}
