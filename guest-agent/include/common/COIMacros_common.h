/* Masks of hardware threads (COI_CPU_MASK), as sched.h has them for cpu_set_t; and small macros. */
#ifndef _COIMACROS_COMMON_H
#define _COIMACROS_COMMON_H

#include "../common/COITypes_common.h"
/* Where there is a source side. */
#if __has_include("../source/COIPipeline_source.h")
#include "../source/COIPipeline_source.h"
#endif
#include <sched.h>
#include <string.h>

#define UNUSED_ATTR __attribute__((unused))

#ifndef UNREFERENCED_CONST_PARAM
#define UNREFERENCED_CONST_PARAM(P)                                                                                    \
    {                                                                                                                  \
        void *unreferenced UNUSED_ATTR = (void *)(uint64_t)P;                                                          \
    }
#endif

#ifndef UNREFERENCED_PARAM
#define UNREFERENCED_PARAM(P) (P = P)
#endif

#ifndef SYMBOL_VERSION
#define SYMBOL_VERSION(SYMBOL, VERSION) SYMBOL##VERSION
#endif

/* How many bits and words a mask has. */
#define COI_CPU_MASK_BITS_ 1024
#define COI_CPU_MASK_WORDS_ 16

/* CPU_ISSET: not 0 if the bit is set; 0 for what is no bit of a mask. */
static inline uint64_t COI_CPU_MASK_ISSET(int bitNumber, const COI_CPU_MASK cpu_mask)
{
    if (bitNumber < 0 || bitNumber >= COI_CPU_MASK_BITS_)
        return 0;
    return cpu_mask[bitNumber / 64] & ((uint64_t)1 << (bitNumber % 64));
}

/* CPU_SET; nothing for what is no bit of a mask. */
static inline void COI_CPU_MASK_SET(int bitNumber, COI_CPU_MASK cpu_mask)
{
    if (bitNumber >= 0 && bitNumber < COI_CPU_MASK_BITS_)
        cpu_mask[bitNumber / 64] |= (uint64_t)1 << (bitNumber % 64);
}

/* CPU_ZERO. */
static inline void COI_CPU_MASK_ZERO(COI_CPU_MASK cpu_mask)
{
    memset(cpu_mask, 0, sizeof(COI_CPU_MASK));
}

/* CPU_AND. */
static inline void COI_CPU_MASK_AND(COI_CPU_MASK dst, const COI_CPU_MASK src1, const COI_CPU_MASK src2)
{
    int word;
    for (word = 0; word < COI_CPU_MASK_WORDS_; word++)
        dst[word] = src1[word] & src2[word];
}

/* CPU_XOR. */
static inline void COI_CPU_MASK_XOR(COI_CPU_MASK dst, const COI_CPU_MASK src1, const COI_CPU_MASK src2)
{
    int word;
    for (word = 0; word < COI_CPU_MASK_WORDS_; word++)
        dst[word] = src1[word] ^ src2[word];
}

/* CPU_OR. */
static inline void COI_CPU_MASK_OR(COI_CPU_MASK dst, const COI_CPU_MASK src1, const COI_CPU_MASK src2)
{
    int word;
    for (word = 0; word < COI_CPU_MASK_WORDS_; word++)
        dst[word] = src1[word] | src2[word];
}

static inline int __COI_CountBits(uint64_t n)
{
    return __builtin_popcountll(n);
}

/* CPU_COUNT. */
static inline int COI_CPU_MASK_COUNT(const COI_CPU_MASK cpu_mask)
{
    int word;
    int count = 0;
    for (word = 0; word < COI_CPU_MASK_WORDS_; word++)
        count += __COI_CountBits(cpu_mask[word]);
    return count;
}

/* CPU_EQUAL. */
static inline int COI_CPU_MASK_EQUAL(const COI_CPU_MASK cpu_mask1, const COI_CPU_MASK cpu_mask2)
{
    return memcmp(cpu_mask1, cpu_mask2, sizeof(COI_CPU_MASK)) == 0;
}

#ifdef CPU_ZERO /* with _GNU_SOURCE, as sched.h wants it */
/* A cpu_set_t as a mask. */
static inline void COI_CPU_MASK_XLATE(COI_CPU_MASK dest, const cpu_set_t *src)
{
    int bit;
    COI_CPU_MASK_ZERO(dest);
    for (bit = 0; bit < COI_CPU_MASK_BITS_; bit++)
        if (CPU_ISSET(bit, src))
            COI_CPU_MASK_SET(bit, dest);
}

/* A mask as a cpu_set_t. */
static inline void COI_CPU_MASK_XLATE_EX(cpu_set_t *dest, const COI_CPU_MASK src)
{
    int bit;
    CPU_ZERO(dest);
    for (bit = 0; bit < COI_CPU_MASK_BITS_; bit++)
        if (COI_CPU_MASK_ISSET(bit, src))
            CPU_SET(bit, dest);
}
#endif

#endif
