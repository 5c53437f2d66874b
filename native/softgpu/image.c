/* Loads an object file of the GPU's compiler: a relocatable ELF file that needs only a fixed list of functions. A full
 * dynamic linker would require a shared library, and making one would require a linker on the node. */
#include "softgpu.h"
#include <elf.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PAGE = 4096, JUMP = 16 };

/* The compiler's helpers for half-precision floats, which LLVM calls by the same names; linked from libgcc. */
_Float16 __truncdfhf2(double value);
_Float16 __truncsfhf2(float value);
float __extendhfsf2(_Float16 value);

#define NAME(function) {#function, (void (*)(void))function}
static const struct known {
    const char *name;
    void (*function)(void);
} known[] = {
    /* clang-format off */
    NAME(sg_barrier), NAME(sg_barrier_reduce), NAME(sg_barrier_arrive), NAME(sg_mbarrier_init),
    NAME(sg_mbarrier_arrive), NAME(sg_mbarrier_wait), NAME(sg_warp), NAME(sg_mma), NAME(sg_exit), NAME(sg_trap),
    NAME(sg_find_nth_set),
    NAME(sg_assert), NAME(sg_printf), NAME(sg_malloc), NAME(sg_free), NAME(sg_clock),
    NAME(sg_modelled_clock), NAME(sg_work),
    NAME(memcpy), NAME(memset), NAME(memmove),
    NAME(exp2f), NAME(exp2), NAME(log2f), NAME(log2), NAME(sinf), NAME(sin), NAME(cosf), NAME(cos), NAME(sincosf),
    NAME(sincos), NAME(tanhf), NAME(tanh), NAME(fmaf), NAME(fma), NAME(roundevenf), NAME(roundeven), NAME(floorf),
    NAME(floor), NAME(ceilf),
    NAME(ceil), NAME(truncf), NAME(trunc), NAME(sqrtf), NAME(sqrt), NAME(fminf), NAME(fmin), NAME(fmaxf), NAME(fmax),
    NAME(fmodf), NAME(fmod), NAME(__truncdfhf2), NAME(__truncsfhf2), NAME(__extendhfsf2),
    /* clang-format on */
};

struct loading {
    const unsigned char *file;
    size_t size;
    const Elf64_Shdr *sections;
    unsigned count;
    char *memory;
    uintptr_t *places; /* address of each section */
    const Elf64_Sym *symbols;
    size_t symbol_count;
    const char *names;
    size_t names_size;
    unsigned char *jumps;
    unsigned jump_count;
};

static bool inside(const struct loading *at, uint64_t offset, uint64_t size)
{
    return offset <= at->size && size <= at->size - offset;
}

static bool read_headers(struct loading *at)
{
    const Elf64_Ehdr *header = (const void *)at->file;
    if (at->size < sizeof *header || memcmp(header->e_ident, ELFMAG, SELFMAG) || header->e_type != ET_REL
        || header->e_machine != EM_X86_64 || header->e_shentsize != sizeof(Elf64_Shdr)
        || !inside(at, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr)))
        return false;
    at->sections = (const void *)(at->file + header->e_shoff);
    at->count = header->e_shnum;
    for (unsigned each = 0; each < at->count; each++) {
        const Elf64_Shdr *section = &at->sections[each];
        if (section->sh_type != SHT_NOBITS && !inside(at, section->sh_offset, section->sh_size))
            return false;
        if (section->sh_type == SHT_SYMTAB && section->sh_link < at->count) {
            at->symbols = (const void *)(at->file + section->sh_offset);
            at->symbol_count = section->sh_size / sizeof(Elf64_Sym);
            at->names = (const char *)at->file + at->sections[section->sh_link].sh_offset;
            at->names_size = at->sections[section->sh_link].sh_size;
        }
    }
    return at->symbols != 0;
}

/* Code first, then a page boundary, then data: only the code becomes executable, and it is never writable. */
static size_t lay_out(struct loading *at, size_t *code_size)
{
    size_t end = 0;
    unsigned externals = 0;
    for (size_t each = 0; each < at->symbol_count; each++)
        externals += at->symbols[each].st_shndx == SHN_UNDEF;
    for (int data = 0; data < 2; data++) {
        for (unsigned each = 0; each < at->count; each++) {
            const Elf64_Shdr *section = &at->sections[each];
            bool is_code = section->sh_flags & SHF_EXECINSTR;
            if (!(section->sh_flags & SHF_ALLOC) || is_code == (data == 1))
                continue;
            size_t align = section->sh_addralign ? section->sh_addralign : 1;
            end = (end + align - 1) & ~(align - 1);
            at->places[each] = end + 1; /* 0 means "not loaded" */
            end += section->sh_size;
        }
        if (!data) {
            end = (end + JUMP - 1) & ~(size_t)(JUMP - 1);
            at->jumps = (void *)end;
            end = (end + externals * JUMP + PAGE - 1) & ~(size_t)(PAGE - 1);
            *code_size = end;
        }
    }
    return (end + PAGE - 1) & ~(size_t)(PAGE - 1);
}

static void (*find_known(const char *name))(void)
{
    for (unsigned each = 0; each < sizeof known / sizeof *known; each++)
        if (!strcmp(known[each].name, name))
            return known[each].function;
    return 0;
}

/* Distant functions are reached through a nearby jump: `jmp *0(%rip)` and the address. */
static uintptr_t jump_to(struct loading *at, void (*function)(void))
{
    static const unsigned char code[] = {0xff, 0x25, 2, 0, 0, 0, 0x66, 0x90};
    unsigned char *jump = at->jumps + at->jump_count++ * JUMP;
    uintptr_t target = (uintptr_t)function;
    memcpy(jump, code, sizeof code);
    memcpy(jump + sizeof code, &target, sizeof target);
    return (uintptr_t)jump;
}

static bool resolve(struct loading *at, uintptr_t *values)
{
    for (size_t each = 1; each < at->symbol_count; each++) {
        const Elf64_Sym *symbol = &at->symbols[each];
        if (symbol->st_shndx == SHN_UNDEF) {
            if (symbol->st_name >= at->names_size)
                return false;
            void (*function)(void) = find_known(at->names + symbol->st_name);
            if (!function)
                return false;
            values[each] = jump_to(at, function);
        } else if (symbol->st_shndx == SHN_ABS)
            values[each] = symbol->st_value;
        else if (symbol->st_shndx < at->count && at->places[symbol->st_shndx])
            values[each] = at->places[symbol->st_shndx] + symbol->st_value;
    }
    return true;
}

static bool relocate(const struct loading *at, const Elf64_Shdr *section, const uintptr_t *values)
{
    if (section->sh_info >= at->count || !at->places[section->sh_info])
        return true; /* it refers to something that is not loaded */
    uint64_t limit = at->sections[section->sh_info].sh_size;
    const Elf64_Rela *entries = (const void *)(at->file + section->sh_offset);
    for (size_t each = 0; each < section->sh_size / sizeof *entries; each++) {
        const Elf64_Rela *entry = &entries[each];
        size_t symbol = ELF64_R_SYM(entry->r_info);
        bool wide = ELF64_R_TYPE(entry->r_info) == R_X86_64_64 || ELF64_R_TYPE(entry->r_info) == R_X86_64_PC64;
        if (symbol >= at->symbol_count || entry->r_offset > limit || limit - entry->r_offset < (wide ? 8 : 4))
            return false;
        uintptr_t place = at->places[section->sh_info] + entry->r_offset;
        uint64_t value = values[symbol] + entry->r_addend;
        int32_t near = (int32_t)(value - place);
        switch (ELF64_R_TYPE(entry->r_info)) {
        case R_X86_64_64: memcpy((void *)place, &value, 8); break;
        case R_X86_64_PC64:
            value -= place;
            memcpy((void *)place, &value, 8);
            break;
        case R_X86_64_PC32:
        case R_X86_64_PLT32:
            if ((int64_t)near != (int64_t)(value - place))
                return false;
            memcpy((void *)place, &near, 4);
            break;
        default: return false;
        }
    }
    return true;
}

static const struct sg_image *find_image(const struct loading *at, const uintptr_t *values)
{
    for (size_t each = 1; each < at->symbol_count; each++)
        if (at->symbols[each].st_name < at->names_size && !strcmp(at->names + at->symbols[each].st_name, "sg_image"))
            return (const struct sg_image *)values[each];
    return 0;
}

static const struct sg_image *load(struct loading *at, size_t *size)
{
    size_t code_size = 0;
    if (!read_headers(at) || !(at->places = calloc(at->count, sizeof *at->places)))
        return 0;
    *size = lay_out(at, &code_size);
    at->memory = mmap(0, *size + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uintptr_t *values = calloc(at->symbol_count, sizeof *values);
    bool good = at->memory != MAP_FAILED && values;
    at->jumps = good ? (unsigned char *)at->memory + (uintptr_t)at->jumps : 0;
    for (unsigned each = 0; good && each < at->count; each++)
        if (at->places[each]) {
            at->places[each] += (uintptr_t)at->memory - 1;
            if (at->sections[each].sh_type != SHT_NOBITS)
                memcpy((void *)at->places[each], at->file + at->sections[each].sh_offset, at->sections[each].sh_size);
        }
    good = good && resolve(at, values);
    for (unsigned each = 0; good && each < at->count; each++)
        if (at->sections[each].sh_type == SHT_RELA)
            good = relocate(at, &at->sections[each], values);
    const struct sg_image *image = good ? find_image(at, values) : 0;
    free(values);
    free(at->places);
    if (image && (image->version != SG_IMAGE_VERSION || mprotect(at->memory, code_size, PROT_READ | PROT_EXEC)))
        image = 0;
    if (!image && at->memory && at->memory != MAP_FAILED)
        munmap(at->memory, *size + PAGE);
    return image;
}

const struct sg_image *image_load(int descriptor, char **memory, size_t *size)
{
    struct stat state;
    const struct sg_image *image = 0;
    if (fstat(descriptor, &state) || state.st_size <= 0)
        return 0;
    void *file = mmap(0, (size_t)state.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (file == MAP_FAILED)
        return 0;
    struct loading at = {.file = file, .size = (size_t)state.st_size};
    image = load(&at, size);
    *memory = at.memory;
    *size += PAGE;
    munmap(file, at.size);
    return image;
}
