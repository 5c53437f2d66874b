/* The topology of GPUs and processors: NVLink, PCIe, NUMA. */
#include "softnvml.h"
#include <stdio.h>
#include <string.h>

/* ---- NVLink ---- */
static nvmlReturn_t link_of(nvmlDevice_t device, unsigned link, const void *answer, struct card **card, uint32_t *peer)
{
    struct watch_reading reading;
    nvmlReturn_t status = look(device, answer, card, &reading);
    if (status)
        return status;
    if (!(*card)->facts.link_version)
        return NVML_ERROR_NOT_SUPPORTED;
    if (link >= WATCH_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    *peer = (*card)->facts.links[link];
    return NVML_SUCCESS;
}
#define LINK(answer)                                                                                                   \
    struct card *card;                                                                                                 \
    uint32_t peer;                                                                                                     \
    nvmlReturn_t status = link_of(device, link, answer, &card, &peer);                                                 \
    if (status)                                                                                                        \
    return status

API nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, nvmlEnableState_t *active)
{
    LINK(active);
    *active = peer ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED;
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    LINK(version);
    *version = card->facts.link_version;
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, nvmlNvLinkCapability_t capability, unsigned *has)
{
    LINK(capability < NVML_NVLINK_CAP_COUNT ? has : 0);
    *has = peer && capability != NVML_NVLINK_CAP_SLI_BRIDGE;
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, nvmlNvLinkErrorCounter_t counter,
                                    unsigned long long *count)
{
    LINK(counter < NVML_NVLINK_ERROR_COUNT ? count : 0);
    *count = 0;
    return peer ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, nvmlIntNvLinkDeviceType_t *type)
{
    LINK(type);
    *type = peer == WATCH_SWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return peer ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    LINK(pci);
    if (!peer)
        return NVML_ERROR_NOT_SUPPORTED;
    /* The remote end may be a GPU that this process does not see. A switch is not a GPU: its bus number is above all
     * GPUs'. */
    struct watch_facts facts = {.pci_bus = peer == WATCH_SWITCH ? 0xf0 : peer};
    for (unsigned at = 0; at < card_count; at++)
        if (cards[at].facts.pci_bus == peer)
            facts = cards[at].facts;
    put_pci(&facts, pci);
    return NVML_SUCCESS;
}
API nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

/* ---- PCIe ---- */
static nvmlGpuTopologyLevel_t level(const struct watch_facts *one, const struct watch_facts *other)
{
    return one->board == other->board     ? NVML_TOPOLOGY_INTERNAL
           : one->bridge == other->bridge ? NVML_TOPOLOGY_SINGLE
           : one->numa == other->numa     ? NVML_TOPOLOGY_NODE
                                          : NVML_TOPOLOGY_SYSTEM;
}

API nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuTopologyLevel_t *path)
{
    LOOK(device, card_of(other) ? path : 0);
    *path = level(&card->facts, &card_of(other)->facts);
    return NVML_SUCCESS;
}

API nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t wanted, unsigned *count,
                                     nvmlDevice_t *list)
{
    LOOK(device, count);
    nvmlDevice_t found[MOST_CARDS];
    unsigned number = 0;
    for (unsigned at = 0; at < card_count; at++)
        if (&cards[at] != card && level(&card->facts, &cards[at].facts) == wanted)
            found[number++] = (nvmlDevice_t)&cards[at];
    if (!list) { /* the caller asks only for the count */
        *count = number;
        return NVML_SUCCESS;
    }
    if ((status = room_for(number, count, list)) == NVML_SUCCESS)
        memcpy(list, found, number * sizeof *list);
    return status;
}

API nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, nvmlGpuP2PCapsIndex_t what,
                           nvmlGpuP2PStatus_t *answer)
{
    LOOK(device,
         card_of(other) && card_of(other) != card_of(device) && what < NVML_P2P_CAPS_INDEX_UNKNOWN ? answer : 0);
    *answer = NVML_P2P_STATUS_OK;
    if (what == NVML_P2P_CAPS_INDEX_NVLINK) {
        *answer = NVML_P2P_STATUS_NOT_SUPPORTED;
        for (unsigned at = 0; at < WATCH_LINKS; at++)
            if (card->facts.links[at] == card_of(other)->facts.pci_bus
                || (card->facts.links[at] == WATCH_SWITCH && card_of(other)->facts.links[0] == WATCH_SWITCH))
                *answer = NVML_P2P_STATUS_OK;
    }
    return NVML_SUCCESS;
}

/* ---- processors ---- */
/* Set the bits of a list such as 0-3,8. */
static void read_list(const char *text, unsigned words, unsigned long *set)
{
    unsigned from, to;
    int used;
    while (sscanf(text, "%u%n", &from, &used) == 1) {
        text += used;
        to = from;
        if (sscanf(text, "-%u%n", &to, &used) == 1)
            text += used;
        for (unsigned bit = from; bit <= to && bit / (8 * sizeof *set) < words; bit++)
            set[bit / (8 * sizeof *set)] |= 1ul << bit % (8 * sizeof *set);
        text += *text == ',';
    }
}

/* A node that this machine does not have means all its processors. */
API nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned words, unsigned long *set,
                                        nvmlAffinityScope_t scope)
{
    LOOK(device, words && scope <= NVML_AFFINITY_SCOPE_SOCKET ? set : 0);
    char path[64], text[4096] = "";
    memset(set, 0, words * sizeof *set);
    snprintf(path, sizeof path, "/sys/devices/system/node/node%u/cpulist", card->facts.numa);
    FILE *file = fopen(path, "r");
    if (!file)
        file = fopen("/sys/devices/system/cpu/online", "r");
    if (!file)
        return NVML_ERROR_NOT_SUPPORTED;
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    read_list(text, words, set);
    return NVML_SUCCESS;
}
API nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned words, unsigned long *set)
{
    return nvmlDeviceGetCpuAffinityWithinScope(device, words, set, NVML_AFFINITY_SCOPE_NODE);
}

API nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *set, nvmlAffinityScope_t scope)
{
    LOOK(device, scope <= NVML_AFFINITY_SCOPE_SOCKET ? set : 0);
    if (words <= card->facts.numa / (8 * sizeof *set))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memset(set, 0, words * sizeof *set);
    set[card->facts.numa / (8 * sizeof *set)] |= 1ul << card->facts.numa % (8 * sizeof *set);
    return NVML_SUCCESS;
}

API nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    LOOK(device, node);
    return NVML_ERROR_NOT_SUPPORTED; /* only for GPUs whose memory is a NUMA node */
}
