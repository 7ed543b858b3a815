/* What every call says where there is no card. */
#define COI_LIBRARY_VERSION 2
#include "check.h"
#include <common/COIEngine_common.h>
#include <common/COIEvent_common.h>
#include <common/COIPerf_common.h>
#include <common/COISysInfo_common.h>
#include <pthread.h>
#include <source/COIBuffer_source.h>
#include <source/COIEngine_source.h>
#include <source/COIEvent_source.h>
#include <source/COIPipeline_source.h>
#include <source/COIProcess_source.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char bytes[8192];
static COIEVENT event = COI_EVENT_INITIALIZER;

static void engines(COIENGINE bad)
{
    uint32_t count = 7, index = 7;
    COIENGINE engine;
    COI_DEVICE_TYPE type;
    static COI_ENGINE_INFO info;
    COIENGINE wild[] = {NULL, bad, (COIENGINE)&count, (COIENGINE)-1, (COIENGINE)bytes};
    unsigned i;
    CHECK(COIEngineGetCount(COI_DEVICE_MIC, NULL), COI_INVALID_POINTER);
    CHECK(COIEngineGetCount(COI_DEVICE_INVALID, &count), COI_DOES_NOT_EXIST);
    CHECK(COIEngineGetCount(COI_DEVICE_SOURCE, &count), COI_DOES_NOT_EXIST);
    CHECK(COIEngineGetCount(COI_DEVICE_MAX, &count), COI_DOES_NOT_EXIST);
    TRUE(count == 7);
    CHECK(COIEngineGetCount(COI_ISA_MIC, &count), COI_SUCCESS);
    TRUE(count == 0);
    CHECK(COIEngineGetCount(COI_ISA_KNC, &count), COI_SUCCESS);
    CHECK(COIEngineGetCount(COI_DEVICE_KNL, &count), COI_SUCCESS);
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 0, NULL), COI_INVALID_POINTER);
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 0, &engine), COI_OUT_OF_RANGE);
    CHECK(COIEngineGetHandle(COI_ISA_KNF, 0, &engine), COI_OUT_OF_RANGE);
    CHECK(COIEngineGetHandle(COI_ISA_x86_64, 0, &engine), COI_DOES_NOT_EXIST);
    for (i = 0; i < sizeof wild / sizeof *wild; i++) {
        CHECK(COIEngineGetInfo(wild[i], sizeof info, &info), COI_INVALID_HANDLE);
        CHECK(COIEngineGetHostname(wild[i], bytes), COI_INVALID_HANDLE);
    }
    CHECK(COIEngineGetIndex(NULL, &index), COI_INVALID_POINTER);
    CHECK(COIEngineGetIndex(&type, NULL), COI_INVALID_POINTER);
    CHECK(COIEngineGetIndex(&type, &index), COI_SUCCESS);
    TRUE(type == COI_DEVICE_SOURCE && index == 0);
}

static void processes(COIPROCESS bad)
{
    COIPROCESS process, wild[] = {NULL, bad, COI_PROCESS_SOURCE, (COIPROCESS)bytes};
    COILIBRARY library;
    COIFUNCTION function;
    COIENGINE engine = (COIENGINE)bytes;
    const char *names[] = {"f"};
    const void *libraries[] = {bytes};
    uint64_t sizes[] = {sizeof bytes}, zero[] = {0};
    char longest[300];
    unsigned i;
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    CHECK(COIProcessCreateFromFile(engine, NULL, 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process), COI_INVALID_POINTER);
    CHECK(COIProcessCreateFromFile(engine, "/none", 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process), COI_DOES_NOT_EXIST);
    CHECK(COIProcessCreateFromFile(engine, "/tmp", 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process), COI_INVALID_FILE);
    CHECK(COIProcessCreateFromFile(engine, "/dev/null", 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process),
          COI_INVALID_FILE);
    CHECK(COIProcessCreateFromFile(engine, longest, 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process), COI_OUT_OF_RANGE);
    CHECK(COIProcessCreateFromFile(engine, "/proc/self/exe", 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process),
          COI_INVALID_HANDLE);
    CHECK(COIProcessCreateFromMemory(engine, "x", bytes, 1, 0, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, 0, &process),
          COI_INVALID_HANDLE);
    CHECK(COIProcessDestroy(bad, -2, 0, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIProcessDestroy(bad, -1, 1, NULL, NULL), COI_ARGUMENT_MISMATCH);
    for (i = 0; i < sizeof wild / sizeof *wild; i++) {
        CHECK(COIProcessDestroy(wild[i], 0, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIProcessGetFunctionHandles(wild[i], 1, names, &function), COI_INVALID_HANDLE);
        CHECK(COIProcessLoadLibraryFromMemory(wild[i], bytes, 1, NULL, NULL, NULL, 0, 0, &library),
              COI_INVALID_HANDLE);
        CHECK(COIProcessUnloadLibrary(wild[i], (COILIBRARY)bytes), COI_INVALID_HANDLE);
        CHECK(COIProcessSetCacheSize(wild[i], 0, 0, 0, 0, 0, NULL, NULL), COI_INVALID_HANDLE);
    }
    CHECK(COIProcessSetCacheSize(bad, 0, 0, 0, 0, 1, NULL, NULL), COI_ARGUMENT_MISMATCH);
    CHECK(COIProcessSetCacheSize(bad, 0, 0, 0, 0, 0, &event, NULL), COI_ARGUMENT_MISMATCH);
    CHECK(COIProcessLoadLibraryFromFile(bad, NULL, NULL, NULL, 0, &library), COI_INVALID_POINTER);
    CHECK(COIProcessLoadLibraryFromFile(bad, "none.so", NULL, NULL, 0, &library), COI_DOES_NOT_EXIST);
    CHECK(COIProcessLoadLibraryFromFile(bad, "/etc/passwd", NULL, NULL, 0, &library), COI_INVALID_FILE);
    CHECK(COIProcessRegisterLibraries(0, libraries, sizes, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIProcessRegisterLibraries(1, NULL, sizes, NULL, NULL), COI_INVALID_POINTER);
    CHECK(COIProcessRegisterLibraries(1, libraries, NULL, NULL, NULL), COI_INVALID_POINTER);
    CHECK(COIProcessRegisterLibraries(1, libraries, sizes, names, NULL), COI_ARGUMENT_MISMATCH);
    CHECK(COIProcessRegisterLibraries(1, libraries, sizes, NULL, sizes), COI_ARGUMENT_MISMATCH);
    CHECK(COIProcessRegisterLibraries(1, libraries, zero, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIProcessRegisterLibraries(1, libraries, sizes, NULL, NULL), COI_OUT_OF_RANGE);
    libraries[0] = NULL;
    CHECK(COIProcessRegisterLibraries(1, libraries, sizes, NULL, NULL), COI_INVALID_POINTER);
    CHECK(COIProcessConfigureDMA(5, COI_DMA_MODE_READ_WRITE), COI_NOT_SUPPORTED);
    CHECK(COIProcessConfigureDMA(1, COI_DMA_RESERVED), COI_NOT_SUPPORTED);
    CHECK(COIProcessConfigureDMA(2, COI_DMA_MODE_SINGLE), COI_ARGUMENT_MISMATCH);
    CHECK(COIProcessConfigureDMA(1, COI_DMA_MODE_READ_WRITE), COI_ARGUMENT_MISMATCH);
    CHECK(COIProcessConfigureDMA(2, COI_DMA_MODE_READ_WRITE), COI_SUCCESS);
    CHECK(COIProcessConfigureDMA(1, COI_DMA_MODE_SINGLE), COI_SUCCESS);
}

static void pipelines(COIPIPELINE bad)
{
    COIPIPELINE pipeline = bad, wild[] = {NULL, bad, (COIPIPELINE)bytes};
    COIENGINE engine;
    COI_CPU_MASK mask;
    COIFUNCTION function = (COIFUNCTION)bytes;
    COIBUFFER buffers[] = {(COIBUFFER)bytes};
    COI_ACCESS_FLAGS flags[] = {COI_SINK_READ};
    unsigned i;
#define RUN(p, f, n, b, a, nd, d, m, ml, r, rl)                                                                        \
    COIPipelineRunFunction(p, f, n, b, a, nd, d, m, ml, r, rl, NULL)
    CHECK(COIPipelineCreate((COIPROCESS)bytes, NULL, 0, NULL), COI_INVALID_POINTER);
    CHECK(COIPipelineCreate((COIPROCESS)bytes, NULL, 0, &pipeline), COI_INVALID_HANDLE);
    TRUE(pipeline == NULL);
    CHECK(COIPipelineCreate(COI_PROCESS_SOURCE, NULL, 0, &pipeline), COI_INVALID_HANDLE);
    for (i = 0; i < sizeof wild / sizeof *wild; i++) {
        CHECK(COIPipelineDestroy(wild[i]), COI_INVALID_HANDLE);
        CHECK(COIPipelineGetEngine(wild[i], &engine), COI_INVALID_HANDLE);
        CHECK(RUN(wild[i], function, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0), COI_INVALID_HANDLE);
    }
    CHECK(COIPipelineGetEngine(bad, NULL), COI_INVALID_POINTER);
    CHECK(RUN(bad, NULL, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0), COI_INVALID_HANDLE);
    CHECK(RUN(bad, function, 16385, buffers, flags, 0, NULL, NULL, 0, NULL, 0), COI_OUT_OF_RANGE);
    CHECK(RUN(bad, function, 0, NULL, NULL, 0, NULL, bytes, 32769, NULL, 0), COI_OUT_OF_RANGE);
    CHECK(RUN(bad, function, 1, NULL, flags, 0, NULL, NULL, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 1, buffers, NULL, 0, NULL, NULL, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, buffers, NULL, 0, NULL, NULL, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, flags, 0, NULL, NULL, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, NULL, 1, NULL, NULL, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, NULL, 0, &event, NULL, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, NULL, 0, NULL, NULL, 1, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, NULL, 0, NULL, bytes, 0, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 1), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 0, NULL, NULL, 0, NULL, NULL, 0, bytes, 0), COI_ARGUMENT_MISMATCH);
    CHECK(RUN(bad, function, 1, buffers, flags, 0, NULL, NULL, 0, NULL, 0), COI_INVALID_HANDLE);
    CHECK(COIPipelineSetCPUMask(COI_PROCESS_SOURCE, 0, 0, NULL), COI_INVALID_POINTER);
    CHECK(COIPipelineSetCPUMask(COI_PROCESS_SOURCE, 0, 0, &mask), COI_INVALID_HANDLE);
    CHECK(COIPipelineClearCPUMask(NULL), COI_INVALID_POINTER);
    memset(mask, 255, sizeof mask);
    CHECK(COIPipelineClearCPUMask(&mask), COI_SUCCESS);
    TRUE(mask[0] == 0 && mask[15] == 0);
}

static void buffers(COIBUFFER bad)
{
    COIPROCESS none[] = {(COIPROCESS)bytes};
    COIBUFFER buffer, wild[] = {NULL, bad, (COIBUFFER)-1, (COIBUFFER)bytes};
    COIMAPINSTANCE map;
    void *data;
    uint64_t address;
    arr_desc array;
    unsigned i;
    memset(&array, 0, sizeof array);
#define CREATE(size, type, flags, n, p) COIBufferCreate(size, type, flags, NULL, n, p, &buffer)
#define MEMORY(size, type, flags, m, n, p) COIBufferCreateFromMemory(size, type, flags, m, n, p, &buffer)
    CHECK(CREATE(0, COI_BUFFER_NORMAL, 0, 1, none), COI_OUT_OF_RANGE);
    CHECK(CREATE(1, COI_BUFFER_NORMAL, COI_SINK_MEMORY, 1, none), COI_NOT_SUPPORTED);
    CHECK(CREATE(1, COI_BUFFER_NORMAL, COI_SAME_ADDRESS_SINKS | COI_OPTIMIZE_HUGE_PAGE_SIZE, 1, none),
          COI_NOT_SUPPORTED);
    CHECK(COIBufferCreate(1, COI_BUFFER_NORMAL, 0, NULL, 1, none, NULL), COI_INVALID_POINTER);
    CHECK(CREATE(1, COI_BUFFER_NORMAL, 0x200, 1, none), COI_OUT_OF_RANGE);
    CHECK(CREATE(1, (COI_BUFFER_TYPE)0, 0, 1, none), COI_NOT_SUPPORTED);
    CHECK(CREATE(1, (COI_BUFFER_TYPE)9, 0, 1, none), COI_NOT_SUPPORTED);
    CHECK(CREATE(1, COI_BUFFER_NORMAL, 0, 0, none), COI_OUT_OF_RANGE);
    CHECK(CREATE(1, COI_BUFFER_NORMAL, 0, 1, NULL), COI_INVALID_POINTER);
    buffer = bad;
    CHECK(CREATE(1, COI_BUFFER_NORMAL, 0, 1, none), COI_INVALID_HANDLE);
    TRUE(buffer == NULL);
    CHECK(MEMORY(0, COI_BUFFER_NORMAL, 0, bytes, 1, none), COI_OUT_OF_RANGE);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, 0, NULL, 1, none), COI_INVALID_POINTER);
    CHECK(COIBufferCreateFromMemory(1, COI_BUFFER_NORMAL, 0, bytes, 1, none, NULL), COI_INVALID_POINTER);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, 0x200, bytes, 1, none), COI_OUT_OF_RANGE);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, 0, bytes, 0, none), COI_OUT_OF_RANGE);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, 0, bytes, 1, NULL), COI_INVALID_POINTER);
    CHECK(MEMORY(1, (COI_BUFFER_TYPE)6, 0, bytes, 1, none), COI_NOT_SUPPORTED);
    CHECK(MEMORY(1, COI_BUFFER_OPENCL, COI_SINK_MEMORY, bytes, 1, none), COI_NOT_SUPPORTED);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, COI_SINK_MEMORY, bytes, 2, none), COI_ARGUMENT_MISMATCH);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, COI_SINK_MEMORY | COI_OPTIMIZE_HUGE_PAGE_SIZE, bytes, 1, none),
          COI_ARGUMENT_MISMATCH);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, COI_SAME_ADDRESS_SINKS, bytes, 1, none), COI_NOT_SUPPORTED);
    CHECK(MEMORY(1, COI_BUFFER_NORMAL, 0, bytes, 1, none), COI_INVALID_HANDLE);
    for (i = 0; i < sizeof wild / sizeof *wild; i++) {
        COIBUFFER b = wild[i];
        CHECK(COIBufferDestroy(b), COI_INVALID_HANDLE);
        CHECK(COIBufferMap(b, 0, 0, COI_MAP_READ_ONLY, 0, NULL, NULL, &map, &data), COI_INVALID_HANDLE);
        CHECK(COIBufferGetSinkAddress(b, &address), COI_INVALID_HANDLE);
        CHECK(COIBufferGetSinkAddressEx(NULL, b, &address), COI_INVALID_HANDLE);
        CHECK(COIBufferGetSinkAddressEx(NULL, b, NULL), COI_INVALID_POINTER);
        CHECK(COIBufferWrite(b, 0, bytes, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferWriteEx(b, NULL, 0, bytes, 1, COI_COPY_USE_DMA, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferRead(b, 0, bytes, 1, COI_COPY_USE_CPU, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferWriteMultiD(b, NULL, 0, &array, &array, COI_COPY_USE_CPU, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferReadMultiD(b, 0, &array, &array, COI_COPY_USE_CPU, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferCopy(b, b, 0, 0, 1, COI_COPY_USE_CPU, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferCopyEx(b, NULL, b, 0, 0, 1, COI_COPY_USE_CPU, 0, NULL, NULL), COI_INVALID_HANDLE);
        CHECK(COIBufferSetState(b, COI_PROCESS_SOURCE, COI_BUFFER_VALID, COI_BUFFER_MOVE, 0, NULL, NULL),
              COI_INVALID_HANDLE);
        CHECK(COIBufferCreateSubBuffer(b, 1, 0, &buffer), COI_INVALID_HANDLE);
        CHECK(COIBufferAddRefcnt(none[0], b, 1), COI_INVALID_HANDLE);
        CHECK(COIBufferReleaseRefcnt(none[0], b, 1), COI_INVALID_HANDLE);
    }
    CHECK(COIBufferSetState(bad, COI_PROCESS_SOURCE, COI_BUFFER_VALID, COI_BUFFER_MOVE, 1, NULL, NULL),
          COI_ARGUMENT_MISMATCH);
    CHECK(COIBufferSetState(bad, COI_PROCESS_SOURCE, COI_BUFFER_VALID_MAY_DROP, COI_BUFFER_MOVE, 0, NULL, NULL),
          COI_ARGUMENT_MISMATCH);
    CHECK(COIBufferSetState(bad, COI_SINK_OWNERS, COI_BUFFER_VALID, COI_BUFFER_MOVE, 0, NULL, NULL),
          COI_ARGUMENT_MISMATCH);
    CHECK(COIBufferUnmap(NULL, 0, NULL, NULL), COI_INVALID_HANDLE);
    CHECK(COIBufferUnmap((COIMAPINSTANCE)bytes, 0, NULL, NULL), COI_INVALID_HANDLE);
    CHECK(COIBufferUnmap(NULL, 1, NULL, NULL), COI_ARGUMENT_MISMATCH);
    CHECK(COIBufferUnmap(NULL, 0, &event, NULL), COI_ARGUMENT_MISMATCH);
}

static int called;
static const void *told;
static COIRESULT result;

static void callback(COIEVENT which, const COIRESULT with, const void *data)
{
    called++;
    told = data;
    result = with;
    (void)which;
}

static void notified(COI_NOTIFICATIONS type, COIPROCESS process, COIEVENT which, const void *data)
{
    called++;
    told = data;
    TRUE(type == USER_EVENT_SIGNALED && process == COI_PROCESS_SOURCE);
    (void)which;
}

static void *signal_it(void *which)
{
    usleep(20000);
    CHECK(COIEventSignalUserEvent(*(COIEVENT *)which), COI_SUCCESS);
    return NULL;
}

static void *take_it_away(void *which)
{
    usleep(20000);
    CHECK(COIEventUnregisterUserEvent(*(COIEVENT *)which), COI_SUCCESS);
    return NULL;
}

static void events(void)
{
    COIEVENT none = COI_EVENT_INITIALIZER, user, pair[2];
    COIEVENT unknown = {{1234567, 0}};
    uint32_t count = 9, which[2] = {9, 9};
    pthread_t thread;
    CHECK(COIEventWait(1, NULL, 0, 1, NULL, NULL), COI_INVALID_POINTER);
    CHECK(COIEventWait(0, &none, 0, 1, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIEventWait(1, &none, -2, 1, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIEventWait(1, &none, 0, 1, &count, NULL), COI_ARGUMENT_MISMATCH);
    CHECK(COIEventWait(1, &none, 0, 1, NULL, which), COI_ARGUMENT_MISMATCH);
    CHECK(COIEventWait(1, &unknown, -1, 1, NULL, NULL), COI_SUCCESS);
    CHECK(COIEventWait(1, &none, -1, 1, NULL, NULL), COI_SUCCESS);
    CHECK(COIEventRegisterUserEvent(NULL), COI_INVALID_POINTER);
    CHECK(COIEventSignalUserEvent(none), COI_INVALID_HANDLE);
    CHECK(COIEventSignalUserEvent(unknown), COI_INVALID_HANDLE);
    CHECK(COIEventUnregisterUserEvent(unknown), COI_INVALID_HANDLE);
    CHECK(COIEventRegisterUserEvent(&user), COI_SUCCESS);
    pair[0] = user;
    CHECK(COIEventRegisterUserEvent(&pair[1]), COI_SUCCESS);
    CHECK(COIEventWait(2, pair, 0, 0, NULL, NULL), COI_ARGUMENT_MISMATCH);
    CHECK(COIEventWait(1, &user, 0, 1, NULL, NULL), COI_TIME_OUT_REACHED);
    CHECK(COIEventWait(2, pair, 10, 0, &count, which), COI_TIME_OUT_REACHED);
    TRUE(count == 0);
    CHECK(COIEventRegisterCallback(none, callback, NULL, 0), COI_INVALID_HANDLE);
    CHECK(COIEventRegisterCallback(user, NULL, NULL, 0), COI_INVALID_HANDLE);
    CHECK(COIEventRegisterCallback(user, callback, NULL, 1), COI_ARGUMENT_MISMATCH);
    CHECK(COIEventRegisterCallback(unknown, callback, bytes, 0), COI_SUCCESS);
    TRUE(called == 1 && told == bytes && result == COI_SUCCESS);
    CHECK(COIEventRegisterCallback(pair[1], callback, bytes + 1, 0), COI_SUCCESS);
    CHECK(COIEventRegisterCallback(pair[1], callback, bytes + 2, 0), COI_SUCCESS);
    TRUE(called == 1);
    TRUE(pthread_create(&thread, NULL, signal_it, &pair[1]) == 0);
    CHECK(COIEventWait(2, pair, -1, 0, &count, which), COI_SUCCESS);
    TRUE(count == 1 && which[0] == 1);
    TRUE(called == 2 && told == bytes + 2);
    pthread_join(thread, NULL);
    CHECK(COIEventSignalUserEvent(pair[1]), COI_SUCCESS);
    CHECK(COIEventWait(2, pair, 10, 1, &count, which), COI_TIME_OUT_REACHED);
    TRUE(count == 1 && which[0] == 1);
    TRUE(pthread_create(&thread, NULL, take_it_away, &user) == 0);
    CHECK(COIEventWait(1, &user, -1, 1, NULL, NULL), COI_EVENT_CANCELED);
    pthread_join(thread, NULL);
    CHECK(COIEventUnregisterUserEvent(pair[1]), COI_SUCCESS);
    CHECK(COIEventUnregisterUserEvent(pair[1]), COI_SUCCESS);
    CHECK(COIRegisterNotificationCallback((COIPROCESS)bytes, notified, NULL), COI_INVALID_HANDLE);
    CHECK(COIRegisterNotificationCallback(COI_PROCESS_SOURCE, NULL, NULL), COI_INVALID_POINTER);
    CHECK(COIUnregisterNotificationCallback(COI_PROCESS_SOURCE, NULL), COI_INVALID_POINTER);
    CHECK(COIUnregisterNotificationCallback(COI_PROCESS_SOURCE, notified), COI_DOES_NOT_EXIST);
    CHECK(COIUnregisterNotificationCallback((COIPROCESS)bytes, notified), COI_INVALID_HANDLE);
    CHECK(COIRegisterNotificationCallback(COI_PROCESS_SOURCE, notified, bytes), COI_SUCCESS);
    CHECK(COIRegisterNotificationCallback(COI_PROCESS_SOURCE, notified, bytes), COI_ALREADY_EXISTS);
    called = 0;
    CHECK(COIEventRegisterUserEvent(&user), COI_SUCCESS);
    CHECK(COIEventSignalUserEvent(user), COI_SUCCESS);
    CHECK(COIEventSignalUserEvent(user), COI_SUCCESS);
    TRUE(called == 1 && told == bytes);
    COINotificationCallbackSetContext(bytes + 3);
    CHECK(COIEventRegisterUserEvent(&user), COI_SUCCESS);
    CHECK(COIEventSignalUserEvent(user), COI_SUCCESS);
    TRUE(called == 2 && told == bytes + 3);
    CHECK(COIUnregisterNotificationCallback(COI_PROCESS_SOURCE, notified), COI_SUCCESS);
}

static void others(void)
{
    uint64_t hertz = COIPerfGetCycleFrequency(), start = COIPerfGetCycleCounter(), cycles;
    struct timespec from, to;
    TRUE(hertz >= 100000000);
    clock_gettime(CLOCK_MONOTONIC, &from);
    usleep(50000);
    cycles = COIPerfGetCycleCounter() - start;
    clock_gettime(CLOCK_MONOTONIC, &to);
    TRUE(cycles >= hertz / 25 && cycles / hertz <= (uint64_t)(to.tv_sec - from.tv_sec) + 1);
    TRUE(COISysGetCoreCount() >= 1 && COISysGetCoreCount() <= COISysGetHardwareThreadCount());
    TRUE(COISysGetHardwareThreadIndex() < COISysGetHardwareThreadCount());
    TRUE(COISysGetCoreIndex() < COISysGetCoreCount());
    TRUE(COISysGetL2CacheIndex() < COISysGetL2CacheCount());
    (void)COISysGetAPICID();
    TRUE(strcmp(COIResultGetName(COI_RETRY), "COI_RETRY") == 0);
    TRUE(strcmp(COIResultGetName(COI_NUM_RESULTS), "COI_ERROR") == 0);
    TRUE(strcmp(COIResultGetName((COIRESULT)-1), "COI_ERROR") == 0);
}

int main(void)
{
    void *bad = (void *)0xc01000000000040;
    unsetenv("SNAPRIG_RIG");
    engines(bad);
    processes(bad);
    pipelines(bad);
    buffers(bad);
    events();
    others();
    END();
}
