#include "json.h"

#include <stdlib.h>
#include <string.h>

// Documents of runtimes have a dozen levels.
#define DEPTH_MAX 64

static const char *space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

static const char *skip_text(const char *at)
{
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && !*++at)
            return NULL;
    return *at ? at + 1 : NULL;
}

static const char *skip(const char *at, int depth)
{
    at = space(at);
    if (*at == '"')
        return skip_text(at);
    if (*at != '{' && *at != '[') {
        size_t length = strcspn(at, ",]} \t\r\n");
        return length ? at + length : NULL;
    }
    if (depth == DEPTH_MAX)
        return NULL;
    char close = *at == '{' ? '}' : ']';
    for (at = space(at + 1); *at != close; at = space(at)) {
        at = skip(at, depth + 1);
        if (!at)
            return NULL;
        at = space(at);
        if (*at == ',' || *at == ':')
            at++;
        else if (*at != close)
            return NULL;
    }
    return at + 1;
}

const char *json_member(const char *at, const char *name)
{
    at = space(at);
    if (*at++ != '{')
        return NULL;
    for (at = space(at); *at == '"'; at = space(at + 1)) {
        char found[128];
        int same = json_text(at, found, sizeof found) && !strcmp(found, name);
        at = skip_text(at);
        at = at ? space(at) : NULL;
        if (!at || *at != ':')
            return NULL;
        at = space(at + 1);
        if (same)
            return at;
        at = skip(at, 0);
        at = at ? space(at) : NULL;
        if (!at || *at != ',')
            return NULL;
    }
    return NULL;
}

const char *json_first(const char *at)
{
    at = space(at);
    if (*at++ != '[')
        return NULL;
    at = space(at);
    return *at == ']' ? NULL : at;
}

const char *json_next(const char *element)
{
    const char *at = skip(element, 0);
    at = at ? space(at) : NULL;
    return at && *at == ',' ? space(at + 1) : NULL;
}

static size_t utf8(unsigned long code, char *to)
{
    if (code < 0x80) {
        to[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        to[0] = (char)(0xc0 | code >> 6);
        to[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    to[0] = (char)(0xe0 | code >> 12);
    to[1] = (char)(0x80 | (code >> 6 & 0x3f));
    to[2] = (char)(0x80 | (code & 0x3f));
    return 3;
}

int json_text(const char *at, char *text, size_t size)
{
    static const char plain[] = "\"\\/bfnrt", meaning[] = "\"\\/\b\f\n\r\t";
    size_t length = 0;
    if (*at++ != '"')
        return 0;
    for (; *at && *at != '"'; at++) {
        if (length + 4 > size)
            return 0;
        if (*at != '\\') {
            text[length++] = *at;
            continue;
        }
        const char *known = *++at ? strchr(plain, *at) : NULL;
        if (known) {
            text[length++] = meaning[known - plain];
        } else if (*at == 'u' && strspn(at + 1, "0123456789abcdefABCDEF") >= 4) {
            char digits[5] = {at[1], at[2], at[3], at[4], 0};
            unsigned long code = strtoul(digits, NULL, 16);
            if (!code)
                return 0;
            length += utf8(code, text + length);
            at += 4;
        } else {
            return 0;
        }
    }
    text[length] = 0;
    return *at == '"';
}
