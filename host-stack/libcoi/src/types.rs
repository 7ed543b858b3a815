//! The types and constants of the headers in `include/`.

use std::{ffi::c_void, fmt};

/// A handle. What it is one of, `handles` knows.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(pub usize);

impl Handle {
    pub const NULL: Self = Self(0);
    /// COI_PROCESS_SOURCE.
    pub const SOURCE: Self = Self(usize::MAX);
    /// COI_SINK_OWNERS.
    pub const SINK_OWNERS: Self = Self(usize::MAX - 1);
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NULL => f.write_str("NULL"),
            Self::SOURCE => f.write_str("SOURCE"),
            Self::SINK_OWNERS => f.write_str("SINK_OWNERS"),
            Self(number) => write!(f, "{number:#x}"),
        }
    }
}

/// COIEVENT: the number of an event, and its kind.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CoiEvent {
    pub number: u64,
    pub kind: u64,
}

impl CoiEvent {
    /// Kind of an operation's.
    pub const OPERATION: u64 = 0;
    /// Kind of a user event.
    pub const USER: u64 = 1;
    /// The last kind that there is.
    pub const KIND_MAX: u64 = 2;
}

impl fmt::Debug for CoiEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Self::USER => write!(f, "user event {}", self.number),
            u64::MAX => f.write_str("no event"),
            _ => write!(f, "event {}", self.number),
        }
    }
}

pub type EventCallback = unsafe extern "C" fn(CoiEvent, u32, *const c_void);
pub type NotificationCallback = unsafe extern "C" fn(u32, Handle, CoiEvent, *const c_void);

/// Kinds of engines (COI_DEVICE_TYPE).
pub mod device {
    pub const SOURCE: u32 = 1;
    pub const MIC: u32 = 2;
    pub const KNF: u32 = 3;
    pub const KNC: u32 = 4;
    pub const KNL: u32 = 5;
}

/// Types of buffers (COI_BUFFER_TYPE).
pub mod buffer {
    pub const NORMAL: u32 = 1;
    pub const STREAMING_TO_SINK: u32 = 2;
    pub const STREAMING_TO_SOURCE: u32 = 3;
    pub const PINNED: u32 = 4;
    pub const OPENCL: u32 = 5;
}

/// Flags of buffers.
pub mod flag {
    pub const SAME_ADDRESS_SINKS: u32 = 1;
    pub const SAME_ADDRESS_SINKS_AND_SOURCE: u32 = 2;
    pub const OPTIMIZE_SOURCE_READ: u32 = 4;
    pub const OPTIMIZE_SOURCE_WRITE: u32 = 8;
    pub const OPTIMIZE_SINK_READ: u32 = 0x10;
    pub const OPTIMIZE_SINK_WRITE: u32 = 0x20;
    pub const OPTIMIZE_NO_DMA: u32 = 0x40;
    pub const HUGE_PAGES: u32 = 0x80;
    pub const SINK_MEMORY: u32 = 0x100;
    /// All there are.
    pub const ALL: u32 = 0x1ff;
}

pub const FILE_NAME_MAX: usize = 256;
pub const FUNCTION_NAME_MAX: usize = 256;
/// COI_FAT_BINARY.
pub const FAT_BINARY: u64 = u64::MAX;
/// COI_LOADLIBRARY_V1_FLAGS: RTLD_GLOBAL | RTLD_NOW.
pub const LOAD_LIBRARY_V1: u32 = 0x102;
pub const HARDWARE_THREADS_MAX: usize = 1024;
/// COI_CPU_MASK.
pub type CpuMask = [u64; 16];

/// COI_ENGINE_INFO. COI_ENGINE_INFO_SCIF is what is before `interconnection`.
#[repr(C)]
#[derive(Clone)]
pub struct EngineInfo {
    pub driver_version: [u32; 255],
    pub isa: u32,
    pub cores: u32,
    pub flags: u32,
    pub threads: u32,
    pub frequency_mhz: u32,
    pub load: [u32; HARDWARE_THREADS_MAX],
    pub memory_bytes: u64,
    pub free_bytes: u64,
    pub swap_bytes: u64,
    pub swap_free_bytes: u64,
    pub vendor: u16,
    pub device: u16,
    pub subsystem: u16,
    pub board_stepping: u16,
    pub board_sku: u16,
    pub interconnection: u32,
    pub cpu_vendor: [u8; 13],
    pub cpu_family: u8,
    pub cpu_model: u8,
    pub cpu_stepping: u8,
}

/// Bytes of COI_ENGINE_INFO_SCIF.
pub const ENGINE_INFO_SCIF_BYTES: u32 = 5184;

/// `struct dim_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dimension {
    pub size: i64,
    pub first: i64,
    pub lower: i64,
    pub upper: i64,
    pub stride: i64,
}

/// `struct arr_desc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    pub base: i64,
    pub rank: i64,
    pub dimensions: [Dimension; 3],
}

const _: () = assert!(size_of::<EngineInfo>() == 5200);
const _: () = assert!(size_of::<Array>() == 136);
const _: () = assert!(size_of::<CoiEvent>() == 16);
const _: () = assert!(std::mem::offset_of!(EngineInfo, interconnection) < 5184);
