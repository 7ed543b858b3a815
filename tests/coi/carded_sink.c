/* The sink of carded.c. */
#include <intel-coi/sink/COIPipeline_sink.h>
#include <intel-coi/sink/COIProcess_sink.h>
#include <stdint.h>
#include <stdlib.h>

#define RUN_FUNCTION(name)                                                                                             \
    COINATIVELIBEXPORT void name(uint32_t count, void **buffers, uint64_t *lengths, void *misc, uint16_t misc_bytes,   \
                                 void *result, uint16_t result_bytes)
#define UNUSED (void)count, (void)buffers, (void)lengths, (void)misc, (void)misc_bytes, (void)result, (void)result_bytes

int main(void)
{
    COIPipelineStartExecutingRunFunctions();
    COIProcessWaitForShutdown();
    return 7;
}

RUN_FUNCTION(nothing)
{
    UNUSED;
}

/* The sum of the bytes of all buffers. */
RUN_FUNCTION(sum)
{
    int64_t total = 0;
    uint32_t i;
    uint64_t at;
    for (i = 0; i < count; i++)
        for (at = 0; at < lengths[i]; at++)
            total += ((unsigned char *)buffers[i])[at];
    *(int64_t *)result = total;
    UNUSED;
}

/* Adds one to every byte. */
RUN_FUNCTION(add)
{
    uint64_t at;
    for (at = 0; at < lengths[0]; at++)
        ((unsigned char *)buffers[0])[at]++;
    UNUSED;
}

/* Whether a variable is set. */
RUN_FUNCTION(has)
{
    *(int64_t *)result = getenv(misc) != NULL;
    UNUSED;
}
