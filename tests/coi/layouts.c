/* Sizes, offsets and values that programs were compiled with: those of MPSS's public headers. */
#include <common/COIEngine_common.h>
#include <common/COIEvent_common.h>
#include <common/COIMacros_common.h>
#include <common/COIPerf_common.h>
#include <common/COIResult_common.h>
#include <common/COISysInfo_common.h>
#include <common/COITypes_common.h>
#include <source/COIBuffer_source.h>
#include <source/COIEngine_source.h>
#include <source/COIEvent_source.h>
#include <source/COIPipeline_source.h>
#include <source/COIProcess_source.h>
#include <stddef.h>
#include <stdio.h>

#define IS(what, value) _Static_assert((what) == (value), #what)
#define AT(type, field, value) IS(offsetof(type, field), value)

IS(sizeof(COIEVENT), 16);
IS(sizeof(COI_CPU_MASK), 128);
IS(sizeof(coi_wchar_t), 4);
IS(sizeof(COIRESULT), 4);
IS(sizeof(COI_ACCESS_FLAGS), 4);
IS(sizeof(COI_ENGINE_INFO), 5200);
IS(sizeof(COI_ENGINE_INFO_SCIF), 5184);
AT(COI_ENGINE_INFO, ISA, 1020);
AT(COI_ENGINE_INFO, NumCores, 1024);
AT(COI_ENGINE_INFO, MiscFlags, 1028);
AT(COI_ENGINE_INFO, NumThreads, 1032);
AT(COI_ENGINE_INFO, CoreMaxFrequency, 1036);
AT(COI_ENGINE_INFO, Load, 1040);
AT(COI_ENGINE_INFO, PhysicalMemory, 5136);
AT(COI_ENGINE_INFO, SwapMemoryFree, 5160);
AT(COI_ENGINE_INFO, VendorId, 5168);
AT(COI_ENGINE_INFO, BoardSKU, 5176);
AT(COI_ENGINE_INFO, InterconnType, 5180);
AT(COI_ENGINE_INFO, CpuVendorId, 5184);
AT(COI_ENGINE_INFO, CpuFamily, 5197);
AT(COI_ENGINE_INFO, CpuStepping, 5199);
AT(COI_ENGINE_INFO_SCIF, BoardSKU, 5176);
IS(sizeof(dim_desc), 40);
AT(dim_desc, lindex, 8);
AT(dim_desc, stride, 32);
IS(sizeof(arr_desc), 136);
AT(arr_desc, dim, 16);

IS(COI_ERROR, 1);
IS(COI_DOES_NOT_EXIST, 5);
IS(COI_MEMORY_OVERLAP, 10);
IS(COI_RETRY, 15);
IS(COI_PENDING, 21);
IS(COI_EVENT_CANCELED, 25);
IS(COI_INCORRECT_FORMAT, 30);
IS(COI_NUM_RESULTS, 31);
IS(COI_ISA_x86_64, 1);
IS(COI_ISA_MIC, 2);
IS(COI_ISA_KNF, 3);
IS(COI_ISA_KNC, 4);
IS(COI_DEVICE_KNL, 5);
IS(COI_DEVICE_MAX, 6);
IS(COI_MAX_ISA_KNC_DEVICES, 128);
IS(COI_MAX_ISA_KNF_DEVICES, 0);
IS(COI_INTERCONN_FABRIC, 2);
IS(COI_ENG_ECC_UNKNOWN, 2);
IS(COI_SINK_READ, 1);
IS(COI_SINK_WRITE_ENTIRE_ADDREF, 6);
IS(COI_PIPELINE_MAX_PIPELINES, 512);
IS(COI_PIPELINE_MAX_IN_BUFFERS, 16384);
IS(COI_PIPELINE_MAX_IN_MISC_DATA_LEN, 32768);
IS(COI_BUFFER_NORMAL, 1);
IS(COI_BUFFER_OPENCL, 5);
IS(COI_SAME_ADDRESS_SINKS, 1);
IS(COI_SAME_ADDRESS_SINKS_AND_SOURCE, 2);
IS(COI_OPTIMIZE_SOURCE_READ, 4);
IS(COI_OPTIMIZE_SINK_WRITE, 0x20);
IS(COI_OPTIMIZE_NO_DMA, 0x40);
IS(COI_OPTIMIZE_HUGE_PAGE_SIZE, 0x80);
IS(COI_SINK_MEMORY, 0x100);
IS(COI_MAP_READ_WRITE, 1);
IS(COI_MAP_WRITE_ENTIRE_BUFFER, 3);
IS(COI_COPY_USE_CPU_MOVE_ENTIRE, 5);
IS(COI_BUFFER_VALID_MAY_DROP, 2);
IS(COI_BUFFER_NO_MOVE, 1);
IS(COI_MAX_FILE_NAME_LENGTH, 256);
IS(COI_MAX_FUNCTION_NAME_LENGTH, 256);
IS(COI_FAT_BINARY, (uint64_t)-1);
IS(RUN_FUNCTION_READY, 0);
IS(USER_EVENT_SIGNALED, 5);
IS(COI_CACHE_ACTION_GROW_NOW, 0x20000);
IS(COI_CACHE_MODE_ONDEMAND_SYNC, 2);
IS(COI_DMA_MODE_ROUND_ROBIN, 2);

int main(void)
{
    COIEVENT none = COI_EVENT_INITIALIZER;
    COI_CPU_MASK one, other;
    int bit, wrong = 0;
    wrong |= none.opaque[0] != 0 || none.opaque[1] != (uint64_t)-1;
    wrong |= COI_PROCESS_SOURCE != (COIPROCESS)-1 || COI_SINK_OWNERS != (COIPROCESS)-2;
    wrong |= COI_EVENT_ASYNC != (COIEVENT *)1 || COI_EVENT_SYNC != (COIEVENT *)2;
    wrong |= COI_VALID_BUFFER_TYPES_AND_FLAGS[COI_BUFFER_NORMAL] != 0x1ff;
    wrong |= COI_VALID_BUFFER_TYPES_AND_FLAGS[COI_BUFFER_OPENCL] != 0xff;
    wrong |= COI_VALID_BUFFER_TYPES_AND_MAP[COI_BUFFER_OPENCL][COI_MAP_READ_ONLY] != 1;
    COI_CPU_MASK_ZERO(one);
    for (bit = -1; bit <= 1024; bit += 5)
        COI_CPU_MASK_SET(bit, one);
    wrong |= COI_CPU_MASK_COUNT(one) != 204 || !COI_CPU_MASK_ISSET(1019, one) || COI_CPU_MASK_ISSET(1024, one);
    COI_CPU_MASK_XOR(other, one, one);
    wrong |= COI_CPU_MASK_COUNT(other) != 0 || COI_CPU_MASK_EQUAL(one, other);
    COI_CPU_MASK_OR(other, other, one);
    wrong |= !COI_CPU_MASK_EQUAL(one, other);
    printf("%s\n", wrong ? "wrong" : "right");
    return wrong;
}
