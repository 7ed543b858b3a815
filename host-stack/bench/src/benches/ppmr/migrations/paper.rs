//! What the PPMR paper's section V has of migrations: 64 processes on 8 nodes of 8 cores, InfiniBand DDR, disks, four servers of PVFS2.

/// Seconds of one migration of BT.C.64, 8 processes with 320 MB (Figure 9).
pub const PPMR_S: f64 = 3.1;
pub const LOCAL_S: f64 = 33.3;
pub const RDMA_LOCAL_S: f64 = 13.5;
pub const SHARED_S: f64 = 7.1;

/// MB, and seconds by PPMR and by the shared file system (Table I).
pub const SMALL: (u32, f64, f64) = (320, 3.5, 7.4);
pub const LARGE: (u32, f64, f64) = (3472, 9.1, 54.4);

/// By how much percent three migrations prolong LU.C.64 (Figure 10).
pub const LONGER_PPMR: f64 = 5.1;
pub const LONGER_SHARED: f64 = 9.2;
pub const LONGER_LOCAL: f64 = 38.0;
