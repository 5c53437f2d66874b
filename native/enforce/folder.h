/* The tenant's folder, for both libraries that stand in a driver's place. */
#pragma once
#include "milligpu/pages.h"
#include <stddef.h>

enum { FOLDER_ROOM = 1024 };
extern char tenant_folder[FOLDER_ROOM];
void say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* one line on stderr */

void folder_find(void);
/* What is wrong, or null and the limits page, for reading. */
const char *folder_limits(const struct mg_limits_page **page);
int folder_open(const char *name, int flags);
void *folder_map(int file, size_t size, int protection);
/* A library of the driver's, by its full path: the loader then opens it beside ours, though both have one name. */
void *folder_library(const char *name);
