/* How much GPU memory a module takes for its variables, read from the module before it is loaded: PTX declares them
 * (ptx.c), a cubin is an ELF file with their sizes in its sections, and a fat binary holds both (fatbin.c). */
#include "image.h"
#include <elf.h>
#include <string.h>

enum { FAT_MAGIC = (int)0xBA55ED50, FAT_WRAPPER = 0x466243B1 };

struct fat_wrapper {
    uint32_t magic, version;
    const void *data;
};

/* Shared memory is on the chip, and is listed like memory on the GPU. */
static bool is_on_chip(const char *name, size_t room)
{
    static const char shared[] = ".nv.shared";
    return room >= sizeof shared - 1 && !memcmp(name, shared, sizeof shared - 1);
}

static bool read_section(const char *file, size_t size, const Elf64_Ehdr *head, unsigned at, Elf64_Shdr *section)
{
    uint64_t where;
    if (head->e_shentsize < sizeof *section
        || __builtin_add_overflow(head->e_shoff, (uint64_t)at * head->e_shentsize, &where) || where > size
        || size - where < sizeof *section)
        return false;
    memcpy(section, file + where, sizeof *section);
    return true;
}

/* Where the names of sections are; null if there are none. */
static const char *section_names(const char *file, size_t size, const Elf64_Ehdr *head, uint64_t *room)
{
    Elf64_Shdr names;
    if (head->e_shstrndx >= head->e_shnum || !read_section(file, size, head, head->e_shstrndx, &names)
        || names.sh_offset > size || names.sh_size > size - names.sh_offset)
        return 0;
    *room = names.sh_size;
    return file + names.sh_offset;
}

static struct image_need elf_need(const char *file, size_t size)
{
    struct image_need need = {0, false};
    Elf64_Ehdr head;
    Elf64_Shdr section;
    uint64_t room = 0;
    if (size < sizeof head)
        return (struct image_need){size, true};
    memcpy(&head, file, sizeof head);
    const char *names = section_names(file, size, &head, &room);
    for (unsigned at = 0; head.e_shoff && at < head.e_shnum; at++) {
        if (!read_section(file, size, &head, at, &section))
            return (struct image_need){need.bytes > size ? need.bytes : size, true};
        bool on_chip = names && section.sh_name < room && is_on_chip(names + section.sh_name, room - section.sh_name);
        if (section.sh_flags & SHF_ALLOC && !on_chip)
            need.bytes = section.sh_size > UINT64_MAX - need.bytes ? UINT64_MAX : need.bytes + section.sh_size;
    }
    return need;
}

struct image_need module_need(const uint8_t *image, size_t size)
{
    if (size >= SELFMAG && !memcmp(image, ELFMAG, SELFMAG))
        return elf_need((const char *)image, size);
    return (struct image_need){ptx_bytes((const char *)image), false};
}

struct image_need image_need(const void *image, size_t size, unsigned capability)
{
    uint32_t magic;
    if (!image || size < sizeof magic)
        return (struct image_need){0, false};
    memcpy(&magic, image, sizeof magic);
    if (magic == (uint32_t)FAT_WRAPPER && size == IMAGE_UNKNOWN)
        return image_need(((const struct fat_wrapper *)image)->data, size, capability);
    if (magic == (uint32_t)FAT_MAGIC)
        return fatbin_need(image, size, capability);
    return module_need(image, size);
}
