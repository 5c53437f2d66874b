// A hook of the container runtime (OCI, createContainer): in a container with a share, the limits library covers every
// libcuda and libnvidia-ml that the image brings and its loader would find first.
//
//     milligpu-attach-hook NAME...
//
// Each NAME is a library in /run/milligpu/lib of the container. Covered are the files of its versions in directories of
// LD_LIBRARY_PATH, in CUDA's and conda's directories for forward compatibility, and in the loader's cache. The runtime
// calls this in the container's mount namespace, with all mounts in place and before the container's root becomes "/".
//
// The image is not trusted: its paths are looked up below its root only, without /proc's links, and nothing is written.
#define _GNU_SOURCE
#include "json.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OPEN_TREE_CLONE_ 1
#define MOVE_MOUNT_EMPTY_PATHS 0x44
// A container's configuration has some hundred KiB at most, a loader's cache some hundred.
#define FILE_MAX (16u << 20)
#define OURS "/run/milligpu/lib/"
#define OWN_FOLDER "/run/milligpu/"

static const char *const compat_folders[] = {"/opt/conda/cuda-compat", "/opt/conda/lib"};
static int root = -1;
static char root_path[PATH_MAX];

__attribute__((format(printf, 1, 2), noreturn)) static void give_up(const char *words, ...)
{
    va_list arguments;
    va_start(arguments, words);
    fputs("milligpu: ", stderr);
    vfprintf(stderr, words, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

// Opens a path as the container will see it; -1 if there is none.
static int open_inside(const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
    int found = (int)syscall(SYS_openat2, root, path, &how, sizeof how);
    if (found < 0 && (errno == ENOSYS || errno == EPERM)) {
        fputs("milligpu: this kernel has no openat2: an image's own libcuda is not covered\n", stderr);
        exit(0);
    }
    return found;
}

static char *read_all(int file, size_t *length)
{
    size_t size = 0, room = 1 << 16;
    char *text = malloc(room + 1);
    for (ssize_t got; text && (got = read(file, text + size, room - size)) > 0;) {
        size += (size_t)got;
        if (size == room && room < FILE_MAX)
            text = realloc(text, (room *= 2) + 1);
    }
    if (!text)
        give_up("out of memory");
    text[size] = 0;
    if (length)
        *length = size;
    return text;
}

// Whether a file is "libcuda.so", "libcuda.so.1" or "libcuda.so.550.54", if the library is "libcuda.so.1".
static int is_version_of(const char *file, const char *library)
{
    const char *end = strstr(library, ".so");
    size_t length = end ? (size_t)(end - library) + 3 : strlen(library);
    return !strncmp(file, library, length) && (!file[length] || file[length] == '.');
}

// Whether an open file is in our own directory of the container, where the driver's own libraries are.
static int is_own(int file)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    size_t prefix = strlen(root_path);
    if (length <= 0 || (size_t)length <= prefix)
        return 0;
    path[length] = 0;
    return !strncmp(path, root_path, prefix) && !strncmp(path + prefix, OWN_FOLDER, strlen(OWN_FOLDER));
}

static void cover(const char *path, const char *library)
{
    int file = open_inside(path, O_PATH);
    if (file < 0)
        return;
    char ours_path[PATH_MAX];
    snprintf(ours_path, sizeof ours_path, OURS "%s", library);
    int ours = open_inside(ours_path, O_PATH);
    struct stat there, here;
    if (ours < 0 || fstat(ours, &here) || fstat(file, &there))
        give_up("%s is not in the container: %s", ours_path, strerror(errno));
    int same = here.st_dev == there.st_dev && here.st_ino == there.st_ino;
    if (S_ISREG(there.st_mode) && !same && !is_own(file)) {
        // A copy of the runtime's mount, which is read-only.
        int copy = (int)syscall(SYS_open_tree, ours, "", OPEN_TREE_CLONE_ | O_CLOEXEC | AT_EMPTY_PATH);
        if (copy < 0 || syscall(SYS_move_mount, copy, "", file, "", MOVE_MOUNT_EMPTY_PATHS))
            give_up("%s cannot be covered by the limits library: %s", path, strerror(errno));
        close(copy);
    }
    close(ours);
    close(file);
}

static void cover_folder(const char *folder, char *const *libraries, int below)
{
    int opened = open_inside(folder, O_RDONLY | O_DIRECTORY);
    DIR *entries = opened < 0 ? NULL : fdopendir(opened);
    if (!entries)
        return;
    for (struct dirent *each; (each = readdir(entries));) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", folder, each->d_name) >= (int)sizeof path)
            continue;
        for (char *const *library = libraries; *library; library++)
            if (is_version_of(each->d_name, *library))
                cover(path, *library);
        if (below && each->d_name[0] != '.' && each->d_type != DT_REG)
            cover_folder(path, libraries, 0);
    }
    closedir(entries);
}

static void cover_path_list(const char *list, char *const *libraries)
{
    char folder[PATH_MAX];
    for (const char *at = list; *at; at += *at == ':') {
        size_t length = strcspn(at, ":");
        if (*at == '/' && length < sizeof folder) {
            memcpy(folder, at, length);
            folder[length] = 0;
            cover_folder(folder, libraries, 0);
        }
        at += length;
    }
}

// /usr/local/cuda/compat, /usr/local/cuda-12.8/compat and so on, with their subdirectories.
static void cover_toolkits(char *const *libraries)
{
    int opened = open_inside("/usr/local", O_RDONLY | O_DIRECTORY);
    DIR *entries = opened < 0 ? NULL : fdopendir(opened);
    if (!entries)
        return;
    for (struct dirent *each; (each = readdir(entries));) {
        char path[PATH_MAX];
        snprintf(path, sizeof path, "/usr/local/%s/compat", each->d_name);
        if (!strncmp(each->d_name, "cuda", 4))
            cover_folder(path, libraries, 1);
    }
    closedir(entries);
}

static void cover_environment(const char *configuration, char *const *libraries)
{
    const char *process = json_member(configuration, "process");
    const char *variables = process ? json_member(process, "env") : NULL;
    static char text[1 << 16];
    for (const char *at = variables ? json_first(variables) : NULL; at; at = json_next(at)) {
        if (!json_text(at, text, sizeof text))
            continue;
        if (!strncmp(text, "LD_LIBRARY_PATH=", 16)) {
            cover_path_list(text + 16, libraries);
        } else if (!strncmp(text, "CONDA_PREFIX=", 13)) {
            char path[PATH_MAX];
            if (snprintf(path, sizeof path, "%s/cuda-compat", text + 13) < (int)sizeof path)
                cover_folder(path, libraries, 0);
            if (snprintf(path, sizeof path, "%s/lib", text + 13) < (int)sizeof path)
                cover_folder(path, libraries, 0);
        }
    }
}

static void cover_cached(char *const *libraries)
{
    int file = open_inside("/etc/ld.so.cache", O_RDONLY);
    if (file < 0)
        return;
    size_t length;
    char *cache = read_all(file, &length);
    close(file);
    for (char *at = cache, *end = cache + length; at < end; at += strlen(at) + 1) {
        // Paths are at the end of the file, each with a zero behind it; the first follows binary data.
        char *start = strchr(at, '/'), *name = start ? strrchr(start, '/') + 1 : NULL;
        for (char *const *library = libraries; name && *library; library++)
            if (is_version_of(name, *library))
                cover(start, *library);
    }
    free(cache);
}

static void open_root(const char *state, char **configuration)
{
    static char bundle[PATH_MAX], path[PATH_MAX];
    const char *member = json_member(state, "bundle");
    if (!member || !json_text(member, bundle, sizeof bundle) || chdir(bundle))
        give_up("the runtime names no bundle");
    int file = open("config.json", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        give_up("%s/config.json: %s", bundle, strerror(errno));
    *configuration = read_all(file, NULL);
    close(file);
    member = json_member(*configuration, "root");
    member = member ? json_member(member, "path") : NULL;
    if (!member || !json_text(member, path, sizeof path) || !realpath(path, root_path) || !strcmp(root_path, "/"))
        give_up("the bundle names no root directory");
    root = open(root_path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root < 0)
        give_up("%s: %s", root_path, strerror(errno));
}

int main(int count, char **arguments)
{
    if (count < 2)
        give_up("usage: milligpu-attach-hook LIBRARY...");
    char *configuration, *state = read_all(STDIN_FILENO, NULL), *const *libraries = arguments + 1;
    open_root(state, &configuration);
    cover_environment(configuration, libraries);
    cover_toolkits(libraries);
    for (size_t at = 0; at < sizeof compat_folders / sizeof *compat_folders; at++)
        cover_folder(compat_folders[at], libraries, 0);
    cover_cached(libraries);
    free(configuration);
    free(state);
    return 0;
}
