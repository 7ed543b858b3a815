/* Engines: the cards of the rig. */
#ifndef _COIENGINE_SOURCE_H
#define _COIENGINE_SOURCE_H

#include "../common/COIEngine_common.h"
#include "../common/COIResult_common.h"
#include "../common/COITypes_common.h"
#include <wchar.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COI_MAX_DRIVER_VERSION_STR_LEN 255
#define CPU_VENDOR_ID_LEN 13
#define COI_MAX_HW_THREADS 1024

/* MiscFlags of an engine: whether its memory has error correction. */
typedef enum {
    COI_ENG_ECC_DISABLED = 0,
    COI_ENG_ECC_ENABLED = 0x00000001,
    COI_ENG_ECC_UNKNOWN = 0x00000002
} coi_eng_misc;

/* How an engine is reached. */
typedef enum { COI_INTERCONN_INVALID = 0, COI_INTERCONN_PCIE = 1, COI_INTERCONN_FABRIC = 2 } COI_INTERCONNECTION_TYPE;

/* What an engine is. What is not known is 0. */
typedef struct COI_ENGINE_INFO {
    coi_wchar_t DriverVersion[COI_MAX_DRIVER_VERSION_STR_LEN];
    COI_DEVICE_TYPE ISA;
    uint32_t NumCores;
    coi_eng_misc MiscFlags;
    uint32_t NumThreads;               /* of all cores together */
    uint32_t CoreMaxFrequency;         /* MHz */
    uint32_t Load[COI_MAX_HW_THREADS]; /* percent, thread by thread */
    uint64_t PhysicalMemory;           /* bytes; so the next three */
    uint64_t PhysicalMemoryFree;
    uint64_t SwapMemory;
    uint64_t SwapMemoryFree;
    uint16_t VendorId; /* of the PCI function; so the next two */
    uint16_t DeviceId;
    uint16_t SubSystemId;
    uint16_t BoardStepping;
    uint16_t BoardSKU;
    COI_INTERCONNECTION_TYPE InterconnType;
    char CpuVendorId[CPU_VENDOR_ID_LEN];
    uint8_t CpuFamily;
    uint8_t CpuModel;
    uint8_t CpuStepping;
} COI_ENGINE_INFO;

/* The same as programs from before COI spoke over fabrics know it. */
typedef struct COI_ENGINE_INFO_SCIF {
    coi_wchar_t DriverVersion[COI_MAX_DRIVER_VERSION_STR_LEN];
    COI_DEVICE_TYPE ISA;
    uint32_t NumCores;
    coi_eng_misc MiscFlags;
    uint32_t NumThreads;
    uint32_t CoreMaxFrequency;
    uint32_t Load[COI_MAX_HW_THREADS];
    uint64_t PhysicalMemory;
    uint64_t PhysicalMemoryFree;
    uint64_t SwapMemory;
    uint64_t SwapMemoryFree;
    uint16_t VendorId;
    uint16_t DeviceId;
    uint16_t SubSystemId;
    uint16_t BoardStepping;
    uint16_t BoardSKU;
} COI_ENGINE_INFO_SCIF;

/* What an engine is. in_EngineInfoSize is the size of the caller's structure, one of the two above:
   else COI_SIZE_MISMATCH. COI_INVALID_HANDLE, COI_INVALID_POINTER. */
COIACCESSAPI
COIRESULT COIEngineGetInfo(COIENGINE in_EngineHandle, uint32_t in_EngineInfoSize, COI_ENGINE_INFO *out_pEngineInfo);

/* How many engines of a kind there are; COI_DEVICE_MIC counts all cards. COI_DOES_NOT_EXIST if that is no kind
   of card; COI_INVALID_POINTER. */
COIACCESSAPI
COIRESULT COIEngineGetCount(COI_DEVICE_TYPE in_DeviceType, uint32_t *out_pNumEngines);

/* The engine of this index among those of its kind. COI_OUT_OF_RANGE if there are not so many; COI_DOES_NOT_EXIST
   if that is no kind of card; COI_NOT_INITIALIZED if it is offline; COI_VERSION_MISMATCH; COI_INVALID_POINTER. */
COIACCESSAPI
COIRESULT COIEngineGetHandle(COI_DEVICE_TYPE in_DeviceType, uint32_t in_EngineIndex, COIENGINE *out_pEngineHandle);

/* The name of the card, with its NUL, at a place of 4096 bytes. COI_INVALID_HANDLE; COI_INVALID_POINTER; COI_ERROR
   if it cannot be asked. */
COIACCESSAPI
COIRESULT COIEngineGetHostname(COIENGINE in_EngineHandle, char *out_Hostname);

#ifdef __cplusplus
}
#endif

#endif
