//! The texts of /proc and /sys that programs ask for.

use crate::processors::{Text, Topology};

/// What /proc/self says of the calling process, but for its memory.
pub trait ProcInfo {
    /// Path of the program.
    fn exe(&self) -> String;
    /// Arguments, each with its zero byte.
    fn cmdline(&self) -> Vec<u8>;
    /// /proc/self/status.
    fn status(&self) -> String;
    /// /proc/self/stat.
    fn stat(&self) -> String;
    /// The card's processors.
    fn topology(&self) -> Topology;
}

/// One text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcFile {
    /// A symbolic link to the program.
    Exe,
    /// The memory map.
    Maps,
    /// Status for people.
    Status,
    /// Status for programs.
    Stat,
    /// Arguments.
    Cmdline,
    /// The card's memory.
    Meminfo,
    /// Seconds since the card's clock started, and of doing nothing.
    Uptime,
    /// The card's processors.
    Cpuinfo,
    /// Numbers of the processors.
    Online,
    /// The largest of them.
    Last,
    /// One of them.
    Processor(usize, Text),
    /// What is mounted where.
    Mounts,
    /// How much the card has to do, which it does not count.
    Loadavg,
    /// The card as a whole.
    Machine,
}

/// The directory with a link for each descriptor of the process that looks.
pub const DESCRIPTORS: &str = "/proc/self/fd";
/// Where they are.
pub const FILES: &[(&str, ProcFile)] = &[
    ("/proc/self/exe", ProcFile::Exe),
    ("/proc/self/maps", ProcFile::Maps),
    ("/proc/self/status", ProcFile::Status),
    ("/proc/self/stat", ProcFile::Stat),
    ("/proc/self/cmdline", ProcFile::Cmdline),
    ("/proc/meminfo", ProcFile::Meminfo),
    ("/proc/uptime", ProcFile::Uptime),
    ("/proc/cpuinfo", ProcFile::Cpuinfo),
    ("/proc/self/mounts", ProcFile::Mounts),
    ("/proc/mounts", ProcFile::Mounts),
    ("/proc/loadavg", ProcFile::Loadavg),
    ("/proc/stat", ProcFile::Machine),
    ("/sys/devices/system/cpu/online", ProcFile::Online),
    ("/sys/devices/system/cpu/possible", ProcFile::Online),
    ("/sys/devices/system/cpu/present", ProcFile::Online),
    ("/sys/devices/system/cpu/kernel_max", ProcFile::Last),
];
