/* The tenant's directory, for both libraries that take a driver library's place. */
#pragma once
#include "milligpu/pages.h"
#include <stddef.h>

enum { FOLDER_ROOM = 1024 };
extern char tenant_folder[FOLDER_ROOM];
void say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* one line on stderr */

void folder_find(void);
/* Returns the limits page, mapped for reading, and null; or what is wrong. */
const char *folder_limits(const struct mg_limits_page **page);
int folder_open(const char *name, int flags);
void *folder_map(int file, size_t size, int protection);
/* Open a driver library by its full path: the loader then keeps it apart from ours, although both have the same
 * name. */
void *folder_library(const char *name);
