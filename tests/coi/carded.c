/* carded SINK LIBRARY: what the fixtures do not ask of the interface, on two cards. */
#define COI_LIBRARY_VERSION 2
#include "check.h"
#include <dirent.h>
#include <intel-coi/common/COIEvent_common.h>
#include <intel-coi/source/COIBuffer_source.h>
#include <intel-coi/source/COIEngine_source.h>
#include <intel-coi/source/COIEvent_source.h>
#include <intel-coi/source/COIPipeline_source.h>
#include <intel-coi/source/COIProcess_source.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *sink, *library;
static COIENGINE engine, second;

static COIRESULT create_on(COIENGINE on, COIPROCESS *process)
{
    return COIProcessCreateFromFile(on, sink, 0, NULL, 0, NULL, 0, NULL, 0, NULL, process);
}

static COIFUNCTION function(COIPROCESS process, const char *name)
{
    COIFUNCTION handle = NULL;
    CHECK(COIProcessGetFunctionHandles(process, 1, &name, &handle), COI_SUCCESS);
    return handle;
}

static int64_t run(COIPIPELINE pipe, COIFUNCTION what, COIBUFFER buffer, COI_ACCESS_FLAGS access)
{
    int64_t result = -1;
    CHECK(COIPipelineRunFunction(pipe, what, 1, &buffer, &access, 0, NULL, NULL, 0, &result, sizeof result, NULL),
          COI_SUCCESS);
    return result;
}

static void engines(void)
{
    static COI_ENGINE_INFO info;
    COIENGINE again = NULL;
    uint32_t count = 0;
    char name[4096] = "";
    CHECK(COIEngineGetCount(COI_ISA_KNC, &count), COI_SUCCESS);
    TRUE(count == 2);
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 2, &again), COI_OUT_OF_RANGE);
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 0, &again), COI_SUCCESS);
    TRUE(again == engine && engine != second);
    CHECK(COIEngineGetInfo(engine, sizeof info - 1, &info), COI_SIZE_MISMATCH);
    CHECK(COIEngineGetInfo(engine, sizeof info, NULL), COI_INVALID_POINTER);
    memset(&info, 0xee, sizeof info);
    CHECK(COIEngineGetInfo(engine, sizeof(COI_ENGINE_INFO_SCIF), &info), COI_SUCCESS);
    TRUE(info.CpuVendorId[0] == (char)0xee && info.ISA == COI_DEVICE_KNC);
    CHECK(COIEngineGetInfo(engine, sizeof info, &info), COI_SUCCESS);
    TRUE(info.NumCores == 8 && info.NumThreads == 8 && info.PhysicalMemory > info.PhysicalMemoryFree);
    TRUE(info.VendorId == 0x8086 && info.InterconnType == COI_INTERCONN_PCIE && info.CoreMaxFrequency > 100);
    TRUE(strcmp(info.CpuVendorId, "GenuineIntel") == 0 && info.DriverVersion[0] >= '0');
    CHECK(COIEngineGetHostname(second, name), COI_SUCCESS);
    TRUE(strcmp(name, "mic1") == 0);
}

static void programs(void)
{
    COIPROCESS process;
    static char bytes[1 << 20];
    const char *arguments[] = {"one", NULL};
    FILE *file = fopen(sink, "rb");
    uint64_t length = fread(bytes, 1, sizeof bytes, file);
#define CREATE(name, from, count, argc, argv, origin, offset)                                                          \
    COIProcessCreateFromMemory(engine, name, from, count, argc, argv, 0, NULL, 0, NULL, 0, NULL, origin, offset,       \
                               &process)
    fclose(file);
    CHECK(CREATE(NULL, bytes, length, 0, NULL, NULL, 0), COI_INVALID_POINTER);
    CHECK(CREATE("x", NULL, length, 0, NULL, NULL, 0), COI_INVALID_POINTER);
    CHECK(CREATE("x", bytes, 0, 0, NULL, NULL, 0), COI_OUT_OF_RANGE);
    CHECK(CREATE("x", bytes, length, -1, NULL, NULL, 0), COI_OUT_OF_RANGE);
    CHECK(CREATE("x", bytes, length, 0, arguments, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(CREATE("x", bytes, length, 1, NULL, NULL, 0), COI_ARGUMENT_MISMATCH);
    CHECK(CREATE("x", bytes, length, 0, NULL, NULL, 5), COI_ARGUMENT_MISMATCH);
    CHECK(CREATE("x", bytes, length, 0, NULL, "/none", 0), COI_DOES_NOT_EXIST);
    CHECK(CREATE("x", bytes, length, 0, NULL, "/tmp", 0), COI_INVALID_FILE);
    CHECK(CREATE("x", bytes, length, 0, NULL, sink, 1), COI_OUT_OF_RANGE);
    CHECK(CREATE("x", "#!/bin/sh\n", 10, 0, NULL, NULL, 0), COI_INVALID_FILE);
    CHECK(COIProcessCreateFromMemory(engine, "x", bytes, length, 0, NULL, 0, NULL, 0, NULL, 0, NULL, NULL, 0, NULL),
          COI_INVALID_POINTER);
    CHECK(CREATE("a/path/x", bytes, length, 1, arguments, sink, COI_FAT_BINARY), COI_SUCCESS);
    CHECK(COIProcessDestroy(process, -1, 0, NULL, NULL), COI_SUCCESS);
    CHECK(CREATE("x", bytes, length, 0, NULL, sink, 0), COI_SUCCESS);
    CHECK(COIProcessDestroy(process, -1, 0, NULL, NULL), COI_SUCCESS);
    bytes[18] = (char)181; /* EM_K1OM */
    CHECK(CREATE("x", bytes, length, 0, NULL, NULL, 0), COI_BINARY_AND_HARDWARE_MISMATCH);
}

/* How many of this process's threads may run on so many processors. */
static int threads_on(int processors)
{
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    int found = 0;
    while ((task = readdir(tasks)) != NULL) {
        cpu_set_t set;
        if (task->d_name[0] != '.' && sched_getaffinity(atoi(task->d_name), sizeof set, &set) == 0)
            found += CPU_COUNT(&set) == processors;
    }
    closedir(tasks);
    return found;
}

static void environment(void)
{
    COIPROCESS process;
    COIPIPELINE pipe;
    COIFUNCTION found;
    const char *name = "preloaded";
    int64_t result = 0;
    cpu_set_t before, after;
    setenv("SINK_LD_TRACE_LOADED_OBJECTS", "1", 1);
    CHECK(create_on(engine, &process), COI_NOT_INITIALIZED);
    setenv("SINK_LD_TRACE_LOADED_OBJECTS", "", 1);
    setenv("SINK_LD_PRELOAD", "/none.so", 1);
    CHECK(create_on(engine, &process), COI_DOES_NOT_EXIST);
    setenv("SINK_LD_PRELOAD", "/etc/passwd", 1);
    CHECK(create_on(engine, &process), COI_INVALID_FILE);
    setenv("SINK_LD_PRELOAD", library, 1);
    CHECK(create_on(engine, &process), COI_SUCCESS);
    unsetenv("SINK_LD_PRELOAD");
    CHECK(COIProcessGetFunctionHandles(process, 1, &name, &found), COI_SUCCESS);
    CHECK(COIPipelineCreate(process, NULL, 0, &pipe), COI_SUCCESS);
    CHECK(COIPipelineRunFunction(pipe, found, 0, NULL, NULL, 0, NULL, NULL, 0, &result, sizeof result, NULL),
          COI_SUCCESS);
    TRUE(result == 4711);
    CHECK(COIProcessDestroy(process, -1, 0, NULL, NULL), COI_SUCCESS);
    setenv("COI_HOST_THREAD_AFFINITY", "0,9999", 1);
    CHECK(create_on(engine, &process), COI_OUT_OF_RANGE);
    sched_getaffinity(0, sizeof before, &before);
    if (CPU_COUNT(&before) > 1 && CPU_ISSET(0, &before)) {
        setenv("COI_HOST_THREAD_AFFINITY", "0", 1);
        CHECK(create_on(engine, &process), COI_SUCCESS);
        sched_getaffinity(0, sizeof after, &after);
        TRUE(CPU_EQUAL(&before, &after));
        TRUE(threads_on(1) >= 1);
        CHECK(COIProcessDestroy(process, -1, 0, NULL, NULL), COI_SUCCESS);
    }
    unsetenv("COI_HOST_THREAD_AFFINITY");
}

static void targets(COIPROCESS here, COIPROCESS there, COIPIPELINE pipe, COIFUNCTION sum)
{
    COIPROCESS both[] = {here, there};
    COIBUFFER buffer, other, only;
    COIEVENT event;
    unsigned char data[100], back[100];
    uint64_t address, same;
    memset(data, 1, sizeof data);
    CHECK(COIBufferCreate(sizeof data, COI_BUFFER_NORMAL, 0, data, 2, both, &buffer), COI_SUCCESS);
    CHECK(COIBufferCreate(sizeof data, COI_BUFFER_NORMAL, 0, NULL, 2, both, &other), COI_SUCCESS);
    CHECK(COIBufferCreate(sizeof data, COI_BUFFER_NORMAL, 0, data, 1, &there, &only), COI_SUCCESS);
    CHECK(COIBufferGetSinkAddress(buffer, &address), COI_SUCCESS);
    CHECK(COIBufferGetSinkAddressEx(there, buffer, &same), COI_SUCCESS);
    TRUE(address == same && address % 4096 == 0);
    CHECK(COIBufferGetSinkAddressEx(here, only, &same), COI_OUT_OF_RANGE);
    CHECK(COIBufferGetSinkAddressEx(COI_PROCESS_SOURCE, only, &same), COI_OUT_OF_RANGE);
    /* To a process, to another, home. */
    data[0] = 50;
    CHECK(COIBufferWriteEx(buffer, here, 0, data, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    TRUE(run(pipe, sum, buffer, COI_SINK_READ) == 149);
    CHECK(COIBufferWriteEx(buffer, there, 1, data, 1, COI_COPY_USE_DMA_MOVE_ENTIRE, 0, NULL, &event), COI_SUCCESS);
    CHECK(COIEventWait(1, &event, -1, 1, NULL, NULL), COI_SUCCESS);
    TRUE(run(pipe, sum, buffer, COI_SINK_READ) == 198);
    CHECK(COIBufferWriteEx(buffer, COI_PROCESS_SOURCE, 2, data, 1, COI_COPY_USE_CPU, 0, NULL, COI_EVENT_SYNC),
          COI_SUCCESS);
    CHECK(COIBufferRead(buffer, 0, back, sizeof back, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    TRUE(back[0] == 50 && back[1] == 50 && back[2] == 50 && back[3] == 1 && back[99] == 1);
    CHECK(COIBufferCopyEx(other, here, buffer, 0, 0, 0, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    TRUE(run(pipe, sum, other, COI_SINK_READ) == 247);
    CHECK(COIBufferCopyEx(other, COI_PROCESS_SOURCE, buffer, 50, 0, 50, COI_COPY_USE_CPU, 0, NULL, COI_EVENT_ASYNC),
          COI_SUCCESS);
    CHECK(COIBufferRead(other, 0, back, sizeof back, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    TRUE(back[0] == 50 && back[49] == 1 && back[50] == 50 && back[53] == 1);
    CHECK(COIBufferCopy(buffer, buffer, 10, 0, 20, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_MEMORY_OVERLAP);
    CHECK(COIBufferCopy(buffer, other, 0, 1, 100, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIBufferCopy(buffer, other, 1, 0, (uint64_t)-1, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIBufferSetState(buffer, here, COI_BUFFER_INVALID, COI_BUFFER_NO_MOVE, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIBufferAddRefcnt(here, buffer, 1), COI_NOT_INITIALIZED);
    CHECK(COIBufferSetState(buffer, here, COI_BUFFER_VALID, COI_BUFFER_MOVE, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIBufferAddRefcnt(here, buffer, 0), COI_ERROR);
    CHECK(COIBufferAddRefcnt(here, buffer, 2), COI_SUCCESS);
    CHECK(COIBufferReleaseRefcnt(here, buffer, 0), COI_ERROR);
    CHECK(COIBufferReleaseRefcnt(here, buffer, 3), COI_OUT_OF_RANGE);
    CHECK(COIBufferReleaseRefcnt(here, buffer, 2), COI_SUCCESS);
    CHECK(COIBufferReleaseRefcnt(here, buffer, 1), COI_OUT_OF_RANGE);
    CHECK(COIBufferDestroy(buffer), COI_SUCCESS);
    CHECK(COIBufferDestroy(other), COI_SUCCESS);
    CHECK(COIBufferDestroy(only), COI_SUCCESS);
}

static void arrays(COIPROCESS process, COIPIPELINE pipe, COIFUNCTION add)
{
    /* Columns 2 to 4 of rows 1 and 3 of a matrix of 4 by 6; as a line, and back one higher. */
    unsigned char matrix[4][6], line[6], expected[6] = {8, 9, 10, 20, 21, 22};
    arr_desc part = {(int64_t)matrix, 2, {{6, 0, 1, 3, 2}, {1, 0, 2, 4, 1}, {0, 0, 0, 0, 0}}};
    arr_desc flat = {0, 1, {{1, 0, 0, 5, 1}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}}};
    COIBUFFER buffer;
    COI_ACCESS_FLAGS write = COI_SINK_WRITE;
    int i;
    for (i = 0; i < 24; i++)
        matrix[i / 6][i % 6] = (unsigned char)i;
    CHECK(COIBufferCreate(6, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &buffer), COI_SUCCESS);
    CHECK(COIBufferWriteMultiD(buffer, NULL, 0, &flat, &part, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIBufferRead(buffer, 0, line, 6, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    TRUE(memcmp(line, expected, 6) == 0);
    CHECK(COIPipelineRunFunction(pipe, add, 1, &buffer, &write, 0, NULL, NULL, 0, NULL, 0, NULL), COI_SUCCESS);
    CHECK(COIBufferReadMultiD(buffer, 0, &part, &flat, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    TRUE(matrix[1][2] == 9 && matrix[3][4] == 23 && matrix[1][1] == 7 && matrix[2][2] == 14);
    CHECK(COIBufferWriteMultiD(buffer, process, 0, &flat, &part, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIBufferWriteMultiD(buffer, NULL, 1, &flat, &part, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_OUT_OF_RANGE);
    CHECK(COIBufferWriteMultiD(buffer, NULL, 0, &part, &flat, COI_COPY_UNSPECIFIED, 0, NULL, NULL),
          COI_INVALID_POINTER);
    CHECK(COIBufferReadMultiD(buffer, 0, &flat, &flat, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_INVALID_POINTER);
    part.rank = 4;
    CHECK(COIBufferWriteMultiD(buffer, NULL, 0, &flat, &part, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_NOT_SUPPORTED);
    CHECK(COIBufferDestroy(buffer), COI_SUCCESS);
}

static void mapped(COIPROCESS process, COIPIPELINE pipe, COIFUNCTION sum)
{
    COIBUFFER buffer, open, part;
    COIMAPINSTANCE map, second_map;
    COIEVENT event;
    COI_ACCESS_FLAGS access = COI_SINK_READ;
    void *data, *inside;
    int64_t result;
    CHECK(COIBufferCreate(100, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &buffer), COI_SUCCESS);
    CHECK(COIBufferCreate(8192, COI_BUFFER_OPENCL, 0, NULL, 1, &process, &open), COI_SUCCESS);
    CHECK(COIBufferMap(buffer, 1, 100, COI_MAP_READ_WRITE, 0, NULL, NULL, &map, &data), COI_OUT_OF_RANGE);
    CHECK(COIBufferMap(buffer, 1, 0, COI_MAP_READ_WRITE, 0, NULL, NULL, &map, &data), COI_OUT_OF_RANGE);
    CHECK(COIBufferMap(buffer, 0, 0, (COI_MAP_TYPE)4, 0, NULL, NULL, &map, &data), COI_OUT_OF_RANGE);
    CHECK(COIBufferMap(buffer, 0, 0, COI_MAP_READ_WRITE, 0, NULL, NULL, NULL, &data), COI_INVALID_POINTER);
    CHECK(COIBufferMap(buffer, 0, 0, COI_MAP_READ_WRITE, 1, NULL, NULL, &map, &data), COI_ARGUMENT_MISMATCH);
    CHECK(COIBufferMap(buffer, 0, 0, COI_MAP_READ_WRITE, 0, NULL, &event, &map, &data), COI_SUCCESS);
    CHECK(COIEventWait(1, &event, -1, 1, NULL, NULL), COI_SUCCESS);
    memset(data, 2, 100);
    CHECK(COIBufferMap(buffer, 50, 10, COI_MAP_READ_ONLY, 0, NULL, NULL, &second_map, &inside), COI_SUCCESS);
    TRUE(inside == (char *)data + 50);
    CHECK(COIBufferWrite(buffer, 0, &result, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_RETRY);
    CHECK(COIBufferRead(buffer, 0, &result, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_RETRY);
    CHECK(COIBufferCopy(open, buffer, 0, 0, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL), COI_RETRY);
    CHECK(COIPipelineRunFunction(pipe, sum, 1, &buffer, &access, 0, NULL, NULL, 0, &result, sizeof result, NULL),
          COI_RETRY);
    CHECK(COIBufferDestroy(buffer), COI_RETRY);
    CHECK(COIBufferUnmap(second_map, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIBufferUnmap(map, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIBufferUnmap(map, 0, NULL, NULL), COI_INVALID_HANDLE);
    TRUE(run(pipe, sum, buffer, COI_SINK_READ) == 200);
    CHECK(COIBufferCreateSubBuffer(buffer, 10, 0, &part), COI_NOT_SUPPORTED);
    CHECK(COIBufferCreateSubBuffer(open, 0, 0, &part), COI_OUT_OF_RANGE);
    CHECK(COIBufferCreateSubBuffer(open, 4096, 4097, &part), COI_OUT_OF_RANGE);
    CHECK(COIBufferCreateSubBuffer(open, 4096, (uint64_t)-1, &part), COI_OUT_OF_RANGE);
    CHECK(COIBufferCreateSubBuffer(open, 4096, 0, NULL), COI_INVALID_POINTER);
    CHECK(COIBufferCreateSubBuffer(open, 4096, 4096, &part), COI_SUCCESS);
    CHECK(COIBufferDestroy(open), COI_RETRY);
    CHECK(COIBufferDestroy(part), COI_SUCCESS);
    CHECK(COIBufferDestroy(open), COI_SUCCESS);
    CHECK(COIBufferDestroy(buffer), COI_SUCCESS);
    CHECK(COIBufferDestroy(buffer), COI_INVALID_HANDLE);
}

static void *signal_it(void *event)
{
    usleep(30000);
    CHECK(COIEventSignalUserEvent(*(COIEVENT *)event), COI_SUCCESS);
    return NULL;
}

static void cache(COIPROCESS process)
{
    COIEVENT user, done;
    pthread_t thread;
    uint32_t grow = COI_CACHE_MODE_NOCHANGE | COI_CACHE_ACTION_GROW_NOW;
    CHECK(COIProcessSetCacheSize(process, 1 << 20, grow, 1 << 20, grow, 0, NULL, NULL), COI_SUCCESS);
    CHECK(COIProcessSetCacheSize(process, 0, COI_CACHE_MODE_ONDEMAND_ASYNC, 0, 0, 0, NULL, NULL), COI_NOT_SUPPORTED);
    CHECK(COIEventRegisterUserEvent(&user), COI_SUCCESS);
    CHECK(COIProcessSetCacheSize(process, 1, grow, 1, grow, 1, &user, &done), COI_SUCCESS);
    CHECK(COIEventWait(1, &done, 0, 1, NULL, NULL), COI_TIME_OUT_REACHED);
    TRUE(pthread_create(&thread, NULL, signal_it, &user) == 0);
    CHECK(COIEventWait(1, &done, -1, 1, NULL, NULL), COI_SUCCESS);
    pthread_join(thread, NULL);
}

/* Functions of the program outlive a library, and those of the library do not. */
static void unloaded(COIPROCESS process, COIPIPELINE pipe, COIFUNCTION nothing)
{
    COILIBRARY loaded;
    COIFUNCTION gone;
    int64_t result = 0;
    CHECK(COIProcessLoadLibraryFromFile(process, library, "plugged.so", NULL, COI_LOADLIBRARY_V1_FLAGS, &loaded),
          COI_SUCCESS);
    gone = function(process, "preloaded");
    CHECK(COIPipelineRunFunction(pipe, gone, 0, NULL, NULL, 0, NULL, NULL, 0, &result, sizeof result, NULL),
          COI_SUCCESS);
    TRUE(result == 4711);
    CHECK(COIProcessUnloadLibrary(process, loaded), COI_SUCCESS);
    CHECK(COIProcessUnloadLibrary(process, loaded), COI_INVALID_HANDLE);
    CHECK(COIPipelineRunFunction(pipe, gone, 0, NULL, NULL, 0, NULL, NULL, 0, &result, sizeof result, NULL),
          COI_INVALID_HANDLE);
    CHECK(COIPipelineRunFunction(pipe, nothing, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL), COI_SUCCESS);
}

static void the_end(COIPROCESS process, COIPIPELINE pipe, COIFUNCTION nothing)
{
    COIENGINE where = NULL;
    COIBUFFER buffer, after;
    COIPIPELINE idle;
    int8_t status = 0;
    uint32_t signal = 9;
    CHECK(COIBufferCreate(100, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &buffer), COI_SUCCESS);
    CHECK(COIPipelineCreate(process, NULL, 0, &idle), COI_SUCCESS);
    CHECK(COIPipelineGetEngine(pipe, &where), COI_SUCCESS);
    TRUE(where == engine);
    CHECK(COIProcessDestroy(process, 0, 0, &status, &signal), COI_TIME_OUT_REACHED);
    CHECK(COIProcessDestroy(process, -1, 0, &status, &signal), COI_SUCCESS);
    TRUE(status == 7 && signal == 0);
    CHECK(COIProcessDestroy(process, -1, 0, &status, &signal), COI_INVALID_HANDLE);
    CHECK(COIPipelineGetEngine(pipe, &where), COI_PROCESS_DIED);
    CHECK(COIPipelineRunFunction(pipe, nothing, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL), COI_PROCESS_DIED);
    CHECK(COIPipelineDestroy(pipe), COI_SUCCESS);
    CHECK(COIPipelineDestroy(pipe), COI_INVALID_HANDLE);
    CHECK(COIPipelineDestroy(idle), COI_SUCCESS);
    CHECK(COIBufferCreate(100, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &after), COI_INVALID_HANDLE);
    CHECK(COIBufferDestroy(buffer), COI_SUCCESS);
}

int main(int argc, char **argv)
{
    COIPROCESS here, there;
    COIPIPELINE pipe;
    if (argc != 3)
        return 2;
    sink = argv[1];
    library = argv[2];
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 0, &engine), COI_SUCCESS);
    CHECK(COIEngineGetHandle(COI_ISA_MIC, 1, &second), COI_SUCCESS);
    if (failures)
        END();
    engines();
    programs();
    environment();
    CHECK(create_on(engine, &here), COI_SUCCESS);
    CHECK(create_on(second, &there), COI_SUCCESS);
    CHECK(COIPipelineCreate(here, NULL, 0, &pipe), COI_SUCCESS);
    if (failures)
        END();
    targets(here, there, pipe, function(here, "sum"));
    arrays(here, pipe, function(here, "add"));
    mapped(here, pipe, function(here, "sum"));
    cache(here);
    unloaded(here, pipe, function(here, "nothing"));
    the_end(here, pipe, function(here, "nothing"));
    CHECK(COIProcessDestroy(there, 0, 1, NULL, NULL), COI_SUCCESS);
    END();
}
