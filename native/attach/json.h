// Just enough of JSON for the two documents that a container runtime writes for a hook.
#ifndef MILLIGPU_ATTACH_JSON_H
#define MILLIGPU_ATTACH_JSON_H

#include <stddef.h>

// The value of a member of the object at `at`, or NULL if there is none or the text is no JSON.
const char *json_member(const char *at, const char *name);
// The first element of the array at `at`, then the one after `element`; NULL at the end.
const char *json_first(const char *at);
const char *json_next(const char *element);
// A string without quotes and escapes; 0 if it is none, or does not fit.
int json_text(const char *at, char *text, size_t size);

#endif
