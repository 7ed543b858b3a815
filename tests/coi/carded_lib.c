/* A library to be loaded first. */
#include <stdint.h>

void preloaded(uint32_t count, void **buffers, uint64_t *lengths, void *misc, uint16_t misc_bytes, void *result,
               uint16_t result_bytes)
{
    (void)count, (void)buffers, (void)lengths, (void)misc, (void)misc_bytes, (void)result_bytes;
    *(int64_t *)result = 4711;
}
