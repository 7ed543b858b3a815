/* A sink whose run functions tell how they run. */
#include <intel-coi/common/COIEngine_common.h>
#include <intel-coi/common/COIEvent_common.h>
#include <intel-coi/common/COISysInfo_common.h>
#include <intel-coi/sink/COIBuffer_sink.h>
#include <intel-coi/sink/COIPipeline_sink.h>
#include <intel-coi/sink/COIProcess_sink.h>

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN_FUNCTION(name)                                                                         \
    COINATIVELIBEXPORT void name(uint32_t count, void **buffers, uint64_t *lengths, void *misc,    \
                                 uint16_t misc_len, void *ret, uint16_t ret_len)
#define UNUSED (void)count, (void)buffers, (void)lengths, (void)misc, (void)misc_len, (void)ret, (void)ret_len

static void *kept;

RUN_FUNCTION(echo)
{
    UNUSED;
    memcpy(ret, misc, ret_len < misc_len ? ret_len : misc_len);
}

/* Results: of a null pointer, of what is no buffer, of what has no reference, of the middle of one. */
RUN_FUNCTION(references)
{
    UNUSED;
    const int results[] = {COIBufferAddRef(0), COIBufferAddRef(&kept), COIBufferReleaseRef(0),
                           COIBufferReleaseRef(&kept), COIBufferReleaseRef(buffers[0]),
                           COIBufferAddRef((char *)buffers[0] + lengths[0] - 1)};
    kept = buffers[0];
    memcpy(ret, results, ret_len);
}

RUN_FUNCTION(give_back)
{
    UNUSED;
    const int results[] = {COIBufferReleaseRef(kept), COIBufferReleaseRef(kept)};
    memcpy(ret, results, ret_len);
}

RUN_FUNCTION(signal_event)
{
    UNUSED;
    COIEVENT event;
    memcpy(&event, misc, sizeof event);
    const int result = COIEventSignalUserEvent(event);
    memcpy(ret, &result, ret_len);
}

/* Processors, stack, engine, cores. */
RUN_FUNCTION(where)
{
    UNUSED;
    cpu_set_t set;
    pthread_attr_t attributes;
    void *stack;
    size_t stack_bytes;
    COI_DEVICE_TYPE kind;
    uint32_t index;
    sched_getaffinity(0, sizeof set, &set);
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &stack, &stack_bytes);
    if (COIEngineGetIndex(&kind, &index) != COI_SUCCESS)
        abort();
    uint64_t told[5];
    memcpy(told, &set, sizeof told[0]);
    told[1] = stack_bytes;
    told[2] = index;
    told[3] = COISysGetCoreCount();
    told[4] = kind;
    memcpy(ret, told, ret_len);
}

RUN_FUNCTION(say)
{
    UNUSED;
    printf("out %s\n", (char *)misc);
    fprintf(stderr, "err %s\n", (char *)misc);
    const int result = COIProcessProxyFlush();
    memcpy(ret, &result, ret_len);
}

RUN_FUNCTION(variable)
{
    UNUSED;
    const char *value = getenv(misc);
    strncpy(ret, value ? value : "none", ret_len);
}

/* Counts, out loud, until the host has written to the buffer; returns how far it has come. */
RUN_FUNCTION(count_aloud)
{
    UNUSED;
    uint32_t lines = 0;
    while (*(volatile char *)buffers[0] == 0) {
        printf("%u\n", lines++);
        fflush(stdout);
    }
    memcpy(ret, &lines, ret_len);
}

RUN_FUNCTION(load)
{
    UNUSED;
    COILIBRARY library = 0;
    const int result = COIProcessLoadSinkLibraryFromFile(misc, 0, 0, 2, &library);
    const int results[] = {result, library != 0};
    memcpy(ret, results, ret_len);
}

RUN_FUNCTION(crash)
{
    UNUSED;
    *(volatile int *)8 = 1;
}

int main(int argc, char **argv)
{
    if (argc > 1)
        return atoi(argv[1]);
    if (COIPipelineStartExecutingRunFunctions() != COI_SUCCESS)
        return 1;
    if (COIProcessWaitForShutdown() != COI_SUCCESS)
        return 2;
    puts("bye");
    return 7;
}
