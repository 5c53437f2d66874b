/* The variables that PTX declares in global memory, with the sizes that it states.
 *
 * What cannot be understood counts as more than any GPU has: a program must not be able to hide a variable by an
 * unusual way to write it. Compilers write plain numbers. */
#include "image.h"
#include <stdlib.h>
#include <string.h>

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$'
           || c == '%';
}

static uint64_t plus(uint64_t a, uint64_t b)
{
    return b > UINT64_MAX - a ? UINT64_MAX : a + b;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* The text without comments and strings, each replaced by a space. Null without memory. */
static char *clean(const char *text)
{
    char *made = malloc(strlen(text) + 1), *to = made;
    for (const char *at = text; made && *at;) {
        const char *end = 0;
        if (at[0] == '/' && at[1] == '*')
            end = (end = strstr(at + 2, "*/")) ? end + 2 : strchr(at, 0);
        else if (at[0] == '/' && at[1] == '/')
            end = strchr(at, '\n');
        else if (at[0] == '"')
            end = (end = strchr(at + 1, '"')) ? end + 1 : strchr(at, 0);
        else {
            *to++ = *at++;
            continue;
        }
        *to++ = ' ';
        at = end ? end : strchr(at, 0);
    }
    if (made)
        *to = 0;
    return made;
}

static const char *skip_space(const char *at)
{
    while (is_space(*at))
        at++;
    return at;
}

static const char *skip_word(const char *at)
{
    while (is_word(*at))
        at++;
    return at;
}

/* From an opening bracket to behind its closing one. */
static const char *skip_bracketed(const char *at, char open, char close)
{
    int depth = 0;
    for (; *at; at++) {
        depth += (*at == open) - (*at == close);
        if (!depth)
            return at + 1;
    }
    return at;
}

static uint64_t read_number(const char **at)
{
    char *end;
    const char *from = *at;
    bool binary = from[0] == '0' && (from[1] == 'b' || from[1] == 'B');
    if (*from < '0' || *from > '9')
        return UINT64_MAX;
    uint64_t value = strtoull(binary ? from + 2 : from, &end, binary ? 2 : 0);
    *at = *end == 'U' ? end + 1 : end;
    return is_word(**at) ? UINT64_MAX : value;
}

/* A product of numbers, up to the closing bracket. */
static uint64_t read_extent(const char **at, char close)
{
    uint64_t value = 1;
    do {
        *at = skip_space(*at + 1);
        value = times(value, read_number(at));
        *at = skip_space(*at);
    } while (**at == '*');
    if (**at != close)
        return UINT64_MAX;
    ++*at;
    return value;
}

/* Size in bytes of a type such as .b8, .f16x2, .bf16 or .u64; 0 if the word is another directive. */
static uint64_t type_bytes(const char *word)
{
    if (!strncmp(word, ".texref", 7) || !strncmp(word, ".samplerref", 11) || !strncmp(word, ".surfref", 8))
        return 64; /* no more than a descriptor */
    const char *digit = word + 1 + (word[1] == 'b' && word[2] == 'f');
    if (!*digit || !strchr("bsuf", *digit))
        return 0;
    unsigned bits = 0, packed = 1;
    for (digit++; *digit >= '0' && *digit <= '9' && bits < 1000; digit++)
        bits = bits * 10 + (unsigned)(*digit - '0');
    if (digit[0] == 'x' && digit[1] >= '2' && digit[1] <= '4') {
        packed = (unsigned)(digit[1] - '0');
        digit += 2;
    }
    return !is_word(*digit) && bits >= 8 && bits <= 128 ? bits * packed / 8 : 0;
}

/* The number of outermost elements of an initializer, for an array that does not say how many it has. */
static uint64_t initializer_elements(const char *at)
{
    uint64_t count = 1;
    int depth = 0;
    for (; *at && (*at != ';' || depth); at++) {
        depth += (*at == '{') - (*at == '}');
        count += *at == ',' && depth == 1;
    }
    return count;
}

/* One name of a declaration with all that follows it, up to a comma or the end. */
static const char *read_name(const char *at, uint64_t *elements)
{
    bool open = false;
    *elements = 1;
    at = skip_space(skip_word(at));
    if (*at == '<') /* so many variables of this name */
        *elements = read_extent(&at, '>');
    for (at = skip_space(at); *at == '['; at = skip_space(at)) {
        if (*skip_space(at + 1) == ']') {
            open = true;
            at = skip_space(at + 1) + 1;
        } else
            *elements = times(*elements, read_extent(&at, ']'));
        if (*elements == UINT64_MAX)
            return at;
    }
    if (*at == '=') {
        if (open)
            *elements = times(*elements, initializer_elements(at));
        at = skip_space(at + 1);
        while (*at && *at != ',' && *at != ';')
            at = *at == '{' ? skip_bracketed(at, '{', '}') : at + 1;
    } else if (open) /* defined elsewhere */
        *elements = 0;
    return at;
}

/* A declaration, from after its .global: attributes and type, then names. */
static uint64_t declared(const char *at)
{
    uint64_t bytes = 0, lanes = 1, sum = 0;
    for (at = skip_space(at); *at == '.' || (*at >= '0' && *at <= '9') || *at == '('; at = skip_space(at)) {
        if (*at == '(') {
            at = skip_bracketed(at, '(', ')');
            continue;
        }
        if (*at == '.' && at[1] == 'v' && at[2] >= '2' && at[2] <= '8' && !is_word(at[3]))
            lanes = (uint64_t)(at[2] - '0');
        else if (*at == '.' && !bytes)
            bytes = type_bytes(at);
        at = skip_word(at + 1);
    }
    if (!bytes)
        return UINT64_MAX;
    do {
        uint64_t elements;
        at = read_name(skip_space(at + (*at == ',')), &elements);
        sum = plus(sum, times(times(bytes, lanes), elements));
    } while (sum != UINT64_MAX && *at == ',');
    return sum == UINT64_MAX || *at == ';' ? sum : UINT64_MAX;
}

/* Whether the word before `at` is this one. */
static bool follows(const char *text, const char *at, const char *word)
{
    size_t length = strlen(word);
    while (at > text && is_space(at[-1]))
        at--;
    return (size_t)(at - text) >= length && !strncmp(at - length, word, length);
}

/* Inside an instruction, .global is part of a longer word such as ld.global.f32. With .ptr it tells where a parameter
 * points to, and a variable with .extern is another module's. */
static bool begins_declaration(const char *text, const char *at, const char *end)
{
    return (at == text || (!is_word(at[-1]) && at[-1] != '.' && at[-1] != ':')) && !is_word(*end) && *end != '.'
           && *end != ':' && !follows(text, at, ".ptr") && !follows(text, at, ".extern");
}

uint64_t ptx_bytes(const char *text)
{
    static const char word[] = ".global";
    char *cleaned = clean(text);
    uint64_t sum = cleaned ? 0 : UINT64_MAX;
    for (const char *at = cleaned; at && (at = strstr(at, word)); at += sizeof word - 1)
        if (begins_declaration(cleaned, at, at + sizeof word - 1))
            sum = plus(sum, declared(at + sizeof word - 1));
    free(cleaned);
    return sum;
}
