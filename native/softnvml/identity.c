/* The list of GPUs and their properties. */
#include "softnvml.h"
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* The driver version reported is that of the release whose header this library is built from. */
#define CUDA_RELEASE 13040
#define DRIVER_VERSION "615.71.01"

#define GETTER(function, type, expression)                                                                             \
    API function(nvmlDevice_t device, type *answer)                                                                    \
    {                                                                                                                  \
        LOOK(device, answer);                                                                                          \
        *answer = (type)(expression);                                                                                  \
        return NVML_SUCCESS;                                                                                           \
    }
#define TEXT(function, expression)                                                                                     \
    API function(nvmlDevice_t device, char *answer, unsigned length)                                                   \
    {                                                                                                                  \
        LOOK(device, answer);                                                                                          \
        return put_text(answer, length, expression);                                                                   \
    }

/* ---- the system ---- */
static nvmlReturn_t system_text(char *to, unsigned length, const char *text)
{
    return ready() ? NVML_ERROR_UNINITIALIZED : to ? put_text(to, length, text) : NVML_ERROR_INVALID_ARGUMENT;
}

API nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    return system_text(version, length, DRIVER_VERSION);
}
API nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return system_text(version, length, "13." DRIVER_VERSION);
}

/* These two work before nvmlInit. */
API nvmlSystemGetCudaDriverVersion(int *version)
{
    if (!version)
        return NVML_ERROR_INVALID_ARGUMENT;
    *version = CUDA_RELEASE;
    return NVML_SUCCESS;
}
API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

API nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    char path[32], text[4096] = "";
    if (ready() || !name || !length)
        return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return NVML_ERROR_NOT_FOUND;
    text[fread(text, 1, sizeof text - 1, file)] = 0; /* the first word ends with a zero byte */
    fclose(file);
    snprintf(name, length, "%s", text); /* truncated instead of refused, as the driver does */
    return NVML_SUCCESS;
}

/* There are no units of several GPUs, and no GPUs excluded from NVML. */
static nvmlReturn_t none(unsigned *count)
{
    if (ready() || !count)
        return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
    *count = 0;
    return NVML_SUCCESS;
}
API nvmlUnitGetCount(unsigned *count)
{
    return none(count);
}
API nvmlGetExcludedDeviceCount(unsigned *count)
{
    return none(count);
}

/* ---- handles ---- */
API nvmlDeviceGetCount_v2(unsigned *count)
{
    if (ready() || !count)
        return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
    *count = card_count;
    return NVML_SUCCESS;
}
API nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

/* A lost GPU keeps its index, but no handle of it is given out. */
static nvmlReturn_t handle(struct card *found, nvmlDevice_t *device)
{
    struct card *card;
    struct watch_reading reading;
    nvmlReturn_t status = look((nvmlDevice_t)found, device, &card, &reading);
    if (!status)
        *device = (nvmlDevice_t)found;
    return status;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return handle(index < card_count ? &cards[index] : 0, device);
}
API nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static nvmlReturn_t by_text(size_t place, const char *text, nvmlDevice_t *device)
{
    if (ready() || !text || !device)
        return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
    for (unsigned at = 0; at < card_count; at++)
        if (!strcasecmp((const char *)&cards[at].facts + place, text))
            return handle(&cards[at], device);
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return by_text(offsetof(struct watch_facts, uuid), uuid, device);
}
API nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return by_text(offsetof(struct watch_facts, serial), serial, device);
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    unsigned domain, bus, slot;
    if (ready() || !text || !device)
        return ready() ? NVML_ERROR_UNINITIALIZED : NVML_ERROR_INVALID_ARGUMENT;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (unsigned at = 0; at < card_count; at++)
        if (!domain && !slot && cards[at].facts.pci_bus == bus)
            return handle(&cards[at], device);
    return NVML_ERROR_NOT_FOUND;
}
API nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

/* ---- names and numbers ---- */
TEXT(nvmlDeviceGetName, card->facts.name)
TEXT(nvmlDeviceGetUUID, card->facts.uuid)
TEXT(nvmlDeviceGetSerial, card->facts.serial)
TEXT(nvmlDeviceGetVbiosVersion, card->facts.vbios)
TEXT(nvmlDeviceGetBoardPartNumber, card->facts.part)
GETTER(nvmlDeviceGetIndex, unsigned, card - cards)
GETTER(nvmlDeviceGetMinorNumber, unsigned, card->facts.index)
GETTER(nvmlDeviceGetModuleId, unsigned, card->facts.index)
GETTER(nvmlDeviceGetBoardId, unsigned, card->facts.board << 8)
GETTER(nvmlDeviceGetBrand, nvmlBrandType_t, card->facts.brand)
GETTER(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, card->facts.architecture)
GETTER(nvmlDeviceGetNumGpuCores, unsigned, card->facts.cores)
GETTER(nvmlDeviceGetMemoryBusWidth, unsigned, card->facts.bus_width)
GETTER(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, card->facts.pcie_generation)
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, card->facts.pcie_generation)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, card->facts.pcie_width)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, card->facts.pcie_width)
/* 2500 MB/s per lane in the first generation, doubled in each further one; the other function returns the
 * generation. */
GETTER(nvmlDeviceGetPcieSpeed, unsigned,
       card->facts.pcie_generation < 3 ? 2500u * card->facts.pcie_generation : 1000u << card->facts.pcie_generation)
GETTER(nvmlDeviceGetPcieLinkMaxSpeed, unsigned, card->facts.pcie_generation)
GETTER(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GETTER(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GETTER(nvmlDeviceGetComputeMode, nvmlComputeMode_t, NVML_COMPUTEMODE_DEFAULT)
GETTER(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
GETTER(nvmlDeviceIsMigDeviceHandle, unsigned, 0)
GETTER(nvmlDeviceGetMaxMigDeviceCount, unsigned, card->facts.mig ? 7 : 0)

/* As on a GPU whose MIG mode is off, or that has none: it has no instances. */
API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *instance)
{
    (void)index;
    LOOK(device, instance);
    (void)card;
    return NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned *several)
{
    LOOK(device, several);
    *several = 0;
    for (unsigned at = 0; at < card_count; at++)
        *several |= &cards[at] != card && cards[at].facts.board == card->facts.board;
    return NVML_SUCCESS;
}

API nvmlDeviceOnSameBoard(nvmlDevice_t device, nvmlDevice_t other, int *same)
{
    LOOK(device, same);
    if (!card_of(other))
        return NVML_ERROR_INVALID_ARGUMENT;
    *same = card_of(other)->facts.board == card->facts.board;
    return NVML_SUCCESS;
}

API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    LOOK(device, major && minor ? major : 0);
    *major = (int)card->facts.major;
    *minor = (int)card->facts.minor;
    return NVML_SUCCESS;
}

API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    LOOK(device, attributes);
    return NVML_ERROR_NOT_SUPPORTED; /* only for MIG devices */
}

API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    LOOK(device, current && pending ? current : 0);
    if (!card->facts.mig)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = NVML_DEVICE_MIG_DISABLE;
    return NVML_SUCCESS;
}

/* ---- PCI ---- */
void put_pci(const struct watch_facts *facts, nvmlPciInfo_t *pci)
{
    *pci = (nvmlPciInfo_t){
        .bus = facts->pci_bus, .pciDeviceId = facts->pci_device, .pciSubSystemId = facts->pci_subsystem};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT, 0, facts->pci_bus & 0xff, 0);
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0, facts->pci_bus & 0xff, 0);
}

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    LOOK(device, pci);
    put_pci(&card->facts, pci);
    return NVML_SUCCESS;
}
/* The older versions have a structure without its last field. */
API nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    LOOK(device, pci);
    nvmlPciInfo_t whole;
    put_pci(&card->facts, &whole);
    memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
    return NVML_SUCCESS;
}
API nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v2(device, pci);
}

API nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
    LOOK(device, pci);
    if (pci->version != nvmlPciInfoExt_v1)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    *pci = (nvmlPciInfoExt_t){.version = pci->version,
                              .bus = card->facts.pci_bus,
                              .pciDeviceId = card->facts.pci_device,
                              .pciSubSystemId = card->facts.pci_subsystem,
                              .baseClass = 3,
                              .subClass = 2};
    snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT, 0, card->facts.pci_bus & 0xff, 0);
    return NVML_SUCCESS;
}
