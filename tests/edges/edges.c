/* Memory whose neighbours are forbidden: who reads or writes beyond a tensor, or another block of a kilobyte or more,
 * gets a signal.
 *
 * To be preloaded. EDGES=after puts the end of a block at the edge of a forbidden page, rounded up to the alignment
 * asked for, 64 bytes at most; EDGES=before the beginning. Freed memory is forbidden too and given out only once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SMALLEST = 1024, SMALLEST_ALIGNED = 64, PAGE = 4096, PLAIN = 16, MOST_ALIGNED = 64 };
static const size_t ARENA = (size_t)16 << 40; /* addresses, not memory */

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static char *arena;
static size_t *sizes; /* of the block that begins in a page */
static size_t next;
static int state; /* 1: ends at an edge, 2: begins at one, -1: as without this */

static int enabled(void)
{
    if (state == 0) {
        const char *word = getenv("EDGES");
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        state = -1;
        if (word != NULL) {
            arena = mmap(NULL, ARENA, PROT_NONE, flags, -1, 0);
            sizes = mmap(NULL, ARENA / PAGE * sizeof *sizes, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (arena != MAP_FAILED && sizes != MAP_FAILED)
                state = word[0] == 'b' ? 2 : 1;
        }
    }
    return state > 0;
}

static size_t rounded(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

static int is_ours(void *pointer) { return state > 0 && (char *)pointer >= arena && (char *)pointer < arena + ARENA; }

static size_t *size_of(void *pointer) { return &sizes[((char *)pointer - arena) / PAGE]; }

static void *block(size_t alignment, size_t size)
{
    /* of small blocks all but tensors, which ask for an alignment, would be more mappings than the system has */
    if (size < (alignment > PLAIN ? SMALLEST_ALIGNED : SMALLEST) || alignment > PAGE || !enabled())
        return NULL;
    if (alignment > MOST_ALIGNED)
        alignment = MOST_ALIGNED;
    size_t used = rounded(size, alignment), pages = rounded(used, PAGE);
    size_t begin = __sync_fetch_and_add(&next, pages + PAGE) + PAGE;
    if (begin + pages > ARENA || mprotect(arena + begin, pages, PROT_READ | PROT_WRITE))
        return NULL;
    char *pointer = arena + begin + (state == 1 ? pages - used : 0);
    *size_of(pointer) = size;
    return pointer;
}

void *malloc(size_t size)
{
    void *found = block(PLAIN, size);
    return found ? found : __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
    void *found = size && count > SIZE_MAX / size ? NULL : block(PLAIN, count * size); /* new pages hold zeros */
    return found ? found : __libc_calloc(count, size);
}

void free(void *pointer)
{
    if (!is_ours(pointer)) {
        __libc_free(pointer);
        return;
    }
    uintptr_t begin = (uintptr_t)pointer / PAGE * PAGE, end = rounded((uintptr_t)pointer + *size_of(pointer), PAGE);
    mmap((void *)begin, end - begin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

void *realloc(void *pointer, size_t size)
{
    if (pointer == NULL)
        return malloc(size);
    if (!is_ours(pointer))
        return __libc_realloc(pointer, size);
    void *moved = malloc(size);
    if (moved != NULL) {
        memcpy(moved, pointer, *size_of(pointer) < size ? *size_of(pointer) : size);
        free(pointer);
    }
    return moved;
}

size_t malloc_usable_size(void *pointer)
{
    if (pointer == NULL)
        return 0;
    return is_ours(pointer) ? *size_of(pointer) : ((size_t *)pointer)[-1] / 16 * 16 - sizeof(size_t); /* glibc's */
}

int posix_memalign(void **result, size_t alignment, size_t size)
{
    void *found = block(alignment, size);
    *result = found ? found : __libc_memalign(alignment, size);
    return *result ? 0 : ENOMEM;
}

void *memalign(size_t alignment, size_t size)
{
    void *found;
    return posix_memalign(&found, alignment, size) ? NULL : found;
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
