/* Finds the tenant's directory and its files.
 *
 * The directory is found from the path of this library, never from the environment: a tenant must not be able to choose
 * its limits with a variable. */
#define _GNU_SOURCE
#include "folder.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

char tenant_folder[FOLDER_ROOM] = "/run/milligpu/tenant";

void say(const char *format, ...)
{
    char line[512] = "milligpu: ";
    size_t used = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int wrote = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
    va_end(arguments);
    used += wrote < 0 ? 0 : (size_t)wrote;
    if (used > sizeof line - 1)
        used = sizeof line - 1;
    line[used++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, used); /* one write, because other processes write to stderr too */
    (void)ignored;
}

/* The directory next to this library, if there is one. */
void folder_find(void)
{
    Dl_info self;
    char path[FOLDER_ROOM];
    if (!dladdr((void *)&folder_find, &self) || !self.dli_fname)
        return;
    const char *slash = strrchr(self.dli_fname, '/');
    int length = slash ? (int)(slash - self.dli_fname) : 1;
    int wrote = snprintf(path, sizeof path, "%.*s/tenant", length, slash ? self.dli_fname : ".");
    if (wrote > 0 && wrote < (int)sizeof path && !access(path, F_OK))
        memcpy(tenant_folder, path, (size_t)wrote + 1);
}

int folder_open(const char *name, int flags)
{
    char path[FOLDER_ROOM + 64];
    snprintf(path, sizeof path, "%s/%s", tenant_folder, name);
    return open(path, flags | O_CLOEXEC);
}

void *folder_map(int file, size_t size, int protection)
{
    if (file < 0)
        return 0;
    off_t length = lseek(file, 0, SEEK_END);
    if (length != (off_t)size) {
        errno = EINVAL; /* reading past the end of a shorter file would raise SIGBUS */
        return 0;
    }
    void *page = mmap(0, size, protection, MAP_SHARED, file, 0);
    return page == MAP_FAILED ? 0 : page;
}

const char *folder_limits(const struct mg_limits_page **page)
{
    struct mg_limits_page copy;
    int file = folder_open("limits", O_RDONLY);
    *page = folder_map(file, sizeof **page, PROT_READ);
    if (file >= 0)
        close(file);
    if (!*page)
        return "the limits page cannot be opened";
    return mg_limits_read(*page, &copy) || !copy.gpu_count ? "the limits page is not valid" : 0;
}

void *folder_library(const char *name)
{
    char path[FOLDER_ROOM + 64];
    snprintf(path, sizeof path, "%s/real/%s", tenant_folder, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
