/* A sink whose run functions stay, do nothing, or kill it. */
#include <signal.h>
#include <stdint.h>
#include <unistd.h>

#include <intel-coi/sink/COIPipeline_sink.h>
#include <intel-coi/sink/COIProcess_sink.h>

#define RUN_FUNCTION(name)                                                                                             \
    COINATIVELIBEXPORT void name(uint32_t buffer_count, void **buffers, uint64_t *lengths, void *misc,                 \
                                 uint16_t misc_bytes, void *result, uint16_t result_bytes)                             \
    {                                                                                                                  \
        (void)buffer_count, (void)buffers, (void)lengths, (void)misc, (void)misc_bytes, (void)result,                  \
            (void)result_bytes;                                                                                        \
        body;                                                                                                          \
    }

#define body for (;;) pause()
RUN_FUNCTION(stay)
#undef body
#define body
RUN_FUNCTION(nothing)
#undef body
#define body kill(getpid(), SIGKILL)
RUN_FUNCTION(die)
#undef body

int main(void)
{
    COIPipelineStartExecutingRunFunctions();
    COIProcessWaitForShutdown();
    return 0;
}
