/* Counts the bytes allocated from the C library, now and at the peak. Load it into a process with LD_PRELOAD.
   Blocks of fewer than HEAP_LEAST_BYTES are not counted. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

extern void *__libc_malloc(size_t);
extern void __libc_free(void *);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

static atomic_long held, peak;
static long least;

__attribute__((constructor)) static void read_least(void) {
    const char *given = getenv("HEAP_LEAST_BYTES");
    if (given) least = atol(given);
}

static long size_of(void *block) {
    long size = block ? (long)malloc_usable_size(block) : 0;
    return size < least ? 0 : size;
}

static void *counted(void *block) {
    long size = size_of(block);
    if (size) {
        long now = atomic_fetch_add(&held, size) + size;
        long highest = atomic_load(&peak);
        while (now > highest && !atomic_compare_exchange_weak(&peak, &highest, now)) {
        }
    }
    return block;
}

static void discounted(void *block) { atomic_fetch_sub(&held, size_of(block)); }

void *malloc(size_t size) { return counted(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return counted(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return counted(__libc_memalign(alignment, size)); }
void free(void *block) { discounted(block); __libc_free(block); }

void *realloc(void *block, size_t size) {
    discounted(block);
    void *moved = __libc_realloc(block, size);
    if (!moved && size) counted(block);
    return counted(moved);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    void *made = counted(__libc_memalign(alignment, size));
    if (!made) return ENOMEM;
    *block = made;
    return 0;
}

long heap_held(void) { return atomic_load(&held); }
long heap_peak(void) { return atomic_load(&peak); }
void heap_reset(void) { atomic_store(&peak, atomic_load(&held)); }
