/* How much GPU memory a module takes for its variables, read from the module before it is loaded.
 *
 * PTX declares its variables with their sizes; a cubin is an ELF file with the sizes in its sections. A fat binary
 * holds compressed modules, and only its compressed size can be read. Zero-filled variables do not show in that size;
 * only the audit finds them. */
#include "image.h"
#include <elf.h>
#include <string.h>

enum { FAT_MAGIC = (int)0xBA55ED50, FAT_WRAPPER = 0x466243B1 };

struct fat_header {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};
struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
};

static uint64_t elf_bytes(const Elf64_Ehdr *file)
{
    const char *sections = (const char *)file + file->e_shoff;
    uint64_t sum = 0;
    for (unsigned at = 0; file->e_shoff && at < file->e_shnum; at++) {
        const Elf64_Shdr *section = (const Elf64_Shdr *)(sections + (size_t)at * file->e_shentsize);
        if (section->sh_flags & SHF_ALLOC)
            sum = section->sh_size > UINT64_MAX - sum ? UINT64_MAX : sum + section->sh_size;
    }
    return sum;
}

/* ---- PTX ---- */
static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Size in bytes of a type such as .b8, .f32 or .u64; 0 if the word is another directive. */
static uint64_t type_bytes(const char *word)
{
    if (word[0] != '.' || !strchr("bsuf", word[1]))
        return 0;
    unsigned bits = 0;
    const char *digit = word + 2;
    for (; *digit >= '0' && *digit <= '9'; digit++)
        bits = bits * 10 + (unsigned)(*digit - '0');
    return is_space(*digit) && bits >= 8 && bits <= 128 ? bits / 8 : 0;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

/* One declaration, from after its .global to its end: type, vector, and the extents in brackets. */
static uint64_t declared(const char *at)
{
    uint64_t bytes = 0, count = 1;
    for (; *at && *at != ';' && *at != '='; at++) {
        if (*at == '.' && !bytes && type_bytes(at))
            bytes = type_bytes(at);
        else if (!strncmp(at, ".v2", 3) || !strncmp(at, ".v4", 3))
            count = times(count, (uint64_t)(at[2] - '0'));
        else if (*at == '[' && at[1] >= '0' && at[1] <= '9') {
            uint64_t extent = 0;
            for (at++; *at >= '0' && *at <= '9'; at++)
                extent = extent > UINT64_MAX / 10 - 10 ? UINT64_MAX / 10 - 10 : extent * 10 + (uint64_t)(*at - '0');
            count = times(count, extent);
        }
    }
    return times(bytes, count);
}

/* Inside an instruction, .global is part of a longer word such as ld.global.f32. */
static bool begins_declaration(const char *text, const char *at, size_t length)
{
    static const char external[] = ".extern";
    if ((at > text && !is_space(at[-1]) && at[-1] != ';' && at[-1] != '}') || !is_space(at[length]))
        return false;
    while (at > text && is_space(at[-1]))
        at--;
    size_t before = sizeof external - 1;
    return (size_t)(at - text) < before || strncmp(at - before, external, before);
}

static uint64_t ptx_bytes(const char *text)
{
    static const char word[] = ".global";
    uint64_t sum = 0;
    for (const char *at = text; (at = strstr(at, word)); at += sizeof word - 1)
        if (begins_declaration(text, at, sizeof word - 1)) {
            uint64_t bytes = declared(at + sizeof word - 1);
            sum = bytes > UINT64_MAX - sum ? UINT64_MAX : sum + bytes;
        }
    return sum;
}

uint64_t image_bytes(const void *image)
{
    uint32_t magic;
    if (!image)
        return 0;
    memcpy(&magic, image, sizeof magic);
    if (magic == (uint32_t)FAT_WRAPPER)
        return image_bytes(((const struct fat_wrapper *)image)->data);
    if (magic == (uint32_t)FAT_MAGIC)
        return ((const struct fat_header *)image)->size;
    if (!memcmp(&magic, ELFMAG, SELFMAG))
        return elf_bytes(image);
    return ptx_bytes(image);
}
