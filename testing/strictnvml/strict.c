/* The rules of the strict NVML, read again whenever their file changes. Each line is a rule; the first that matches
 * counts:
 *   answer FUNCTION GPU CODE   the function returns this code about this GPU; * is every function or GPU
 *   hang FUNCTION GPU          the function returns only when there is no such rule any more
 *   links GPU COUNT            the GPU has this many NVLinks; calls about others return NVML_ERROR_INVALID_ARGUMENT
 *   mig GPU                    the GPU is in MIG mode
 * Calls that are not about a GPU have the number -1. */
#define _GNU_SOURCE
#include "strict.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_RULES = 4096, MOST_NAME = 96, HANG_US = 20000 };

struct rule {
    char kind[8], function[MOST_NAME], gpu[8];
    int value;
};

static struct rule rules[MOST_RULES];
static int rule_count;
static struct timespec changed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void read_rules(void)
{
    const char *path = getenv("STRICT_NVML");
    struct stat now;
    if (!path || stat(path, &now) || !memcmp(&now.st_mtim, &changed, sizeof changed))
        return;
    FILE *file = fopen(path, "re");
    char line[256];
    changed = now.st_mtim;
    for (rule_count = 0; file && rule_count < MOST_RULES && fgets(line, sizeof line, file);) {
        struct rule *rule = &rules[rule_count];
        memset(rule, 0, sizeof *rule);
        if (sscanf(line, "links %7s %d", rule->gpu, &rule->value) == 2)
            strcpy(rule->kind, "links");
        else if (sscanf(line, "mig %7s", rule->gpu) == 1)
            strcpy(rule->kind, "mig");
        else if (sscanf(line, "%7s %95s %7s %d", rule->kind, rule->function, rule->gpu, &rule->value) < 3)
            abort();
        rule_count++;
    }
    if (file)
        fclose(file);
}

static int find(const char *kind, const char *function, int gpu, int *value)
{
    char number[8];
    snprintf(number, sizeof number, "%d", gpu);
    int found = 0;
    pthread_mutex_lock(&lock);
    read_rules();
    for (int at = 0; at < rule_count && !found; at++) {
        const struct rule *rule = &rules[at];
        if (strcmp(rule->kind, kind) || (strcmp(rule->gpu, "*") && strcmp(rule->gpu, number)))
            continue;
        if (function && strcmp(rule->function, "*") && strcmp(rule->function, function))
            continue;
        *value = rule->value;
        found = 1;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

void *nvmlapi_next(const char *symbol)
{
    static void *library;
    if (!library && !(library = dlopen(getenv("STRICT_NVML_NEXT"), RTLD_NOW | RTLD_LOCAL)))
        abort();
    return dlsym(library, symbol);
}

int strict_gpu(nvmlDevice_t device)
{
    static __typeof__(&nvmlDeviceGetIndex) next;
    unsigned index;
    if (!next)
        next = (__typeof__(next))nvmlapi_next("nvmlDeviceGetIndex");
    return device && !next(device, &index) ? (int)index : -1;
}

int strict_answer(const char *function, int gpu)
{
    int value = -1;
    while (find("hang", function, gpu, &value))
        usleep(HANG_US);
    return find("answer", function, gpu, &value) ? value : -1;
}

int strict_no_link(int gpu, unsigned link)
{
    int links;
    return find("links", 0, gpu, &links) && link >= (unsigned)links;
}

#define EXPORT __attribute__((visibility("default")))

EXPORT const char *nvmlErrorString(nvmlReturn_t error)
{
    const char *(*next)(nvmlReturn_t) = (const char *(*)(nvmlReturn_t))nvmlapi_next("nvmlErrorString");
    return next(error);
}

/* As a driver's: a private table by its identifier, here the identifier itself. */
EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id);
EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **table, const void *id)
{
    *table = id;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    __typeof__(&nvmlDeviceGetMigMode) next = (__typeof__(next))nvmlapi_next("nvmlDeviceGetMigMode");
    int gpu = strict_gpu(device), value, code = strict_answer("nvmlDeviceGetMigMode", gpu);
    if (code >= 0)
        return code;
    if (!find("mig", 0, gpu, &value))
        return next(device, current, pending);
    *current = *pending = NVML_DEVICE_MIG_ENABLE;
    return NVML_SUCCESS;
}
