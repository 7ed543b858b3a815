/* death_host SINK STEP: gets as far as STEP, says so, and waits for a line. "sink" has the sink kill itself; with any
 * other line somebody else has been killed meanwhile. Then it makes all further calls there are: each must end, well
 * or with COI_PROCESS_DIED. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <intel-coi/source/COIBuffer_source.h>
#include <intel-coi/source/COIEngine_source.h>
#include <intel-coi/source/COIEvent_source.h>
#include <intel-coi/source/COIPipeline_source.h>
#include <intel-coi/source/COIProcess_source.h>

#define LARGE (256ul << 20)

static COIPROCESS process;
static COIPIPELINE pipeline, spare, last;
static COIFUNCTION stay, nothing, die;
static COIBUFFER small, large;
static COIMAPINSTANCE map;
static COIEVENT events[8];
static unsigned event_count;
static char *memory;

static void must(const char *what, COIRESULT result)
{
    if (result == COI_SUCCESS)
        return;
    printf("%s: %s\n", what, COIResultGetName(result));
    exit(1);
}

/* Of a call after the death. */
static void may(const char *what, COIRESULT result)
{
    if (result == COI_SUCCESS || result == COI_PROCESS_DIED)
        return;
    printf("after the death, %s: %s\n", what, COIResultGetName(result));
    exit(1);
}

static COIRESULT run(COIPIPELINE in, COIFUNCTION function, COIEVENT *event)
{
    COI_ACCESS_FLAGS access = COI_SINK_WRITE;
    return COIPipelineRunFunction(in, function, 1, &small, &access, 0, NULL, NULL, 0, NULL, 0, event);
}

static void *destroys(void *unused)
{
    (void)unused;
    /* Its main does not return while the run function stays. */
    may("COIProcessDestroy in another thread", COIProcessDestroy(process, -1, 0, NULL, NULL));
    return NULL;
}

static int is_from(const char *step, const char *wanted)
{
    static const char *const steps[] = {"created", "pipeline", "buffer", "idle", "running", "queued", "rma", "mapped"};
    unsigned at = 0, to = 0;
    while (strcmp(steps[at], step))
        at++;
    while (strcmp(steps[to], wanted))
        to++;
    return at >= to;
}

int main(int argc, char **argv)
{
    COIENGINE engine;
    char line[16];
    const char *names[] = {"stay", "nothing", "die"};
    COIFUNCTION functions[3];
    pthread_t destroyer;
    if (argc != 3)
        return 2;
    const char *step = argv[2];
    int destroying = !strcmp(step, "destroying");
    if (destroying)
        step = "running";
    setvbuf(stdout, NULL, _IOLBF, 0);
    must("engine", COIEngineGetHandle(COI_DEVICE_MIC, 0, &engine));
    must("create", COIProcessCreateFromFile(engine, argv[1], 0, NULL, 0, NULL, 0, NULL, 0, NULL, &process));
    must("functions", COIProcessGetFunctionHandles(process, 3, names, functions));
    stay = functions[0], nothing = functions[1], die = functions[2];
    must("spare pipeline", COIPipelineCreate(process, NULL, 0, &spare));
    must("last pipeline", COIPipelineCreate(process, NULL, 0, &last));
    if (is_from(step, "pipeline"))
        must("pipeline", COIPipelineCreate(process, NULL, 0, &pipeline));
    if (is_from(step, "buffer"))
        must("buffer", COIBufferCreate(4096, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &small));
    if (is_from(step, "idle"))
        must("run", run(pipeline, nothing, NULL));
    if (is_from(step, "running"))
        must("run", run(pipeline, stay, &events[event_count++]));
    if (is_from(step, "queued")) {
        must("run", run(pipeline, nothing, &events[event_count++]));
        must("run", run(spare, nothing, &events[event_count++]));
    }
    if (is_from(step, "rma")) {
        memory = malloc(LARGE);
        memset(memory, 1, LARGE);
        must("buffer", COIBufferCreate(LARGE, COI_BUFFER_NORMAL, 0, NULL, 1, &process, &large));
        for (int i = 0; i < 4; i++)
            must("write", COIBufferWriteEx(large, process, 0, memory, LARGE, COI_COPY_USE_DMA, 0, NULL,
                                           &events[event_count++]));
    }
    if (is_from(step, "mapped"))
        must("map", COIBufferMap(large, 0, 0, COI_MAP_READ_WRITE, 1, &events[event_count - 1], NULL, &map,
                                 (void **)&memory) /* waits for the last write */);
    if (destroying)
        pthread_create(&destroyer, NULL, destroys, NULL);
    printf("ready\n");
    if (!fgets(line, sizeof(line), stdin))
        return 3;
    if (!strcmp(line, "sink\n")) {
        COIEVENT dying;
        COIRESULT result = COIPipelineRunFunction(last, die, 0, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, &dying);
        if (result == COI_SUCCESS)
            result = COIEventWait(1, &dying, -1, 1, NULL, NULL);
        if (result != COI_PROCESS_DIED)
            return printf("its death: %s\n", COIResultGetName(result)), 1;
    }
    if (is_from(step, "running")) {
        /* Nobody ends it: it has died. */
        COIRESULT result = COIEventWait(1, events, -1, 1, NULL, NULL);
        if (result != COI_PROCESS_DIED)
            return printf("the run function: %s\n", COIResultGetName(result)), 1;
    }
    for (unsigned i = 0; i < event_count; i++)
        may("an event", COIEventWait(1, &events[i], -1, 1, NULL, NULL));
    if (map)
        may("COIBufferUnmap", COIBufferUnmap(map, 0, NULL, NULL));
    if (small) {
        char byte;
        may("COIPipelineRunFunction", run(spare, nothing, NULL));
        may("COIBufferRead", COIBufferRead(small, 0, &byte, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
        may("COIBufferWrite", COIBufferWrite(small, 0, &byte, 1, COI_COPY_UNSPECIFIED, 0, NULL, NULL));
        may("COIBufferDestroy", COIBufferDestroy(small));
    }
    if (large)
        may("COIBufferDestroy of the large one", COIBufferDestroy(large));
    may("COIProcessGetFunctionHandles", COIProcessGetFunctionHandles(process, 3, names, functions));
    if (pipeline)
        may("COIPipelineDestroy", COIPipelineDestroy(pipeline));
    may("COIPipelineDestroy of the spare one", COIPipelineDestroy(spare));
    may("COIPipelineDestroy of the last one", COIPipelineDestroy(last));
    if (destroying)
        pthread_join(destroyer, NULL);
    else
        may("COIProcessDestroy", COIProcessDestroy(process, 0, 1, NULL, NULL));
    printf("over\n");
    return 0;
}
