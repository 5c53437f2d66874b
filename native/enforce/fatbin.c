/* Fat binaries: one program for several GPU architectures, as PTX and as cubins, compressed or not. A GPU loads one of
 * them, so the charge is the largest of those that it can load.
 *
 * The layout is not documented; this was found by examining what NVIDIA's `fatbinary` tool writes, and is the same as
 * in src/milligpu/softgpu/ptx/fatbin.py. */
#include "image.h"
#include "unpack.h"
#include <stdlib.h>
#include <string.h>

enum { PTX = 1, CUBIN = 2, TOGETHER = 256, LZ4 = 0x2000, ZSTD = 0x8000 };
/* More than any compiler makes; a small file must not be able to fill the host's memory. */
static const uint64_t LARGEST = UINT64_C(1) << 30;

struct fat_header {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

struct fat_entry {
    uint16_t kind, version;
    uint32_t header_size; /* in a group: where the content begins */
    uint64_t size;
    uint32_t packed_size, options;
    uint16_t minor, major;
    uint32_t capability, name, name_size;
    uint64_t flags, unused, full_size;
};
_Static_assert(sizeof(struct fat_entry) == 64, "as the tool writes it");

struct fat_group {
    uint32_t count, size;
};
/* A text of `size` bytes and a zero byte at `at`, filled up to a multiple of 8. */
struct fat_text {
    uint32_t at, size;
};

/* A GPU runs PTX of every earlier architecture, and cubins of its own generation up to its own architecture. */
static bool is_loadable(const struct fat_entry *entry, unsigned capability)
{
    if (entry->kind == PTX)
        return entry->capability <= capability;
    return entry->kind == CUBIN && entry->capability / 10 == capability / 10 && entry->capability <= capability;
}

static void take_larger(struct image_need *most, struct image_need need)
{
    most->bytes = need.bytes > most->bytes ? need.bytes : most->bytes;
    most->unread |= need.unread;
}

static void take_unread(struct image_need *most, uint64_t bytes)
{
    take_larger(most, (struct image_need){bytes, true});
}

static void take_module(struct image_need *most, const uint8_t *content, uint64_t size)
{
    /* PTX ends with a zero byte, if necessary an added one. */
    uint8_t *copy = size < LARGEST ? malloc((size_t)size + 1) : 0;
    if (!copy) {
        take_unread(most, size);
        return;
    }
    memcpy(copy, content, (size_t)size);
    copy[size] = 0;
    take_larger(most, module_need(copy, (size_t)size));
    free(copy);
}

static uint64_t text_end(struct fat_text text)
{
    return (uint64_t)text.at + ((uint64_t)text.size + 8) / 8 * 8;
}

/* The length of an entry's head in a group: after the fields a name and options may follow. 0 if they do not fit. */
static uint64_t grouped_head(const uint8_t *head, uint64_t room)
{
    struct fat_entry entry;
    uint64_t end = sizeof entry, other;
    if (room < sizeof entry)
        return 0;
    memcpy(&entry, head, sizeof entry);
    if (entry.name && (other = text_end((struct fat_text){entry.name, entry.name_size})) > end)
        end = other;
    if (entry.options) {
        struct fat_text options;
        if (entry.options > room || room - entry.options < sizeof options)
            return 0;
        memcpy(&options, head + entry.options, sizeof options);
        if ((other = text_end(options)) > end)
            end = other;
    }
    return end <= room ? end : 0;
}

/* Entries that were compressed as one; each says where it is in the uncompressed content. */
static void take_group(struct image_need *most, const uint8_t *heads, uint64_t room, const uint8_t *content,
                       uint64_t size, unsigned capability)
{
    struct fat_group group;
    if (room < sizeof group) {
        take_unread(most, size);
        return;
    }
    memcpy(&group, heads, sizeof group);
    heads += sizeof group;
    room -= sizeof group;
    for (uint64_t at = 0, length; at < group.count; at++, heads += length, room -= length) {
        struct fat_entry entry;
        if (!(length = grouped_head(heads, room))) {
            take_unread(most, size);
            return;
        }
        memcpy(&entry, heads, sizeof entry);
        if (!is_loadable(&entry, capability))
            continue;
        if (entry.header_size > size || entry.size > size - entry.header_size)
            take_unread(most, size);
        else
            take_module(most, content + entry.header_size, entry.size);
    }
}

/* The content of an entry, to be freed. Null if it cannot be read. */
static uint8_t *unpacked(const struct fat_entry *entry, const uint8_t *content, uint64_t *size)
{
    bool packed = entry->flags & (LZ4 | ZSTD);
    uint64_t from = entry->packed_size ? entry->packed_size : entry->size;
    size_t made = 0;
    *size = packed ? entry->full_size : from;
    if (*size >= LARGEST || from > entry->size)
        return 0;
    uint8_t *out = malloc((size_t)*size + 1);
    bool good = out;
    if (good && !packed) {
        memcpy(out, content, (size_t)from);
        made = (size_t)from;
    } else if (good)
        good = entry->flags & ZSTD ? unpack_zstd(content, (size_t)from, out, (size_t)*size, &made)
                                   : unpack_lz4(content, (size_t)from, out, (size_t)*size, &made);
    if (!good) {
        free(out);
        return 0;
    }
    out[made] = 0;
    *size = made;
    return out;
}

static void take_entry(struct image_need *most, const struct fat_entry *entry, const uint8_t *image,
                       unsigned capability)
{
    uint64_t size;
    if (entry->kind != TOGETHER && !is_loadable(entry, capability))
        return;
    uint8_t *content = unpacked(entry, image + entry->header_size, &size);
    if (!content)
        take_unread(most, entry->full_size > entry->size ? entry->full_size : entry->size);
    else if (entry->kind == TOGETHER)
        take_group(most, image + sizeof *entry, entry->header_size - sizeof *entry, content, size, capability);
    else
        take_larger(most, module_need(content, (size_t)size));
    free(content);
}

struct image_need fatbin_need(const uint8_t *image, size_t size, unsigned capability)
{
    struct image_need most = {0, false};
    struct fat_header head;
    if (size < sizeof head)
        return (struct image_need){size, true};
    memcpy(&head, image, sizeof head);
    uint64_t at = head.header_size, end;
    if (__builtin_add_overflow(head.header_size, head.size, &end) || end > size)
        return (struct image_need){head.size, true};
    while (at < end) {
        struct fat_entry entry;
        if (end - at < sizeof entry)
            break;
        memcpy(&entry, image + at, sizeof entry);
        uint64_t length;
        if (entry.header_size < sizeof entry || __builtin_add_overflow(entry.size, entry.header_size, &length)
            || length > end - at) {
            take_unread(&most, end - at);
            break;
        }
        take_entry(&most, &entry, image + at, capability);
        at += length;
    }
    return most;
}
