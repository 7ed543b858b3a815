//! COISysInfo: the cores, hardware threads and caches of this machine, as sysfs tells.

use std::{arch::x86_64::__cpuid, collections::BTreeSet, fs, sync::OnceLock};

/// Where processors are described.
const PROCESSORS: &str = "/sys/devices/system/cpu";
/// What is said if it cannot be told.
const UNKNOWN: u32 = u32::MAX;

/// A hardware thread: what it is part of, by names that are equal for equal parts.
#[derive(Clone, Debug, Default)]
struct Thread {
    number: u32,
    core: (u32, u32),
    l2: String,
}

/// The hardware threads that are online, in order.
fn threads() -> &'static [Thread] {
    static THREADS: OnceLock<Vec<Thread>> = OnceLock::new();
    THREADS.get_or_init(|| {
        let online = fs::read_to_string(format!("{PROCESSORS}/online")).unwrap_or_default();
        let numbers = online.trim().split(',').flat_map(range);
        numbers.map(thread).collect()
    })
}

/// The numbers of `2-5`, or of `7`.
fn range(text: &str) -> std::ops::Range<u32> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (from.parse::<u32>(), to.parse::<u32>()) {
        (Ok(from), Ok(to)) if to < 1 << 20 => from..to + 1,
        _ => 0..0,
    }
}

fn thread(number: u32) -> Thread {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("{PROCESSORS}/cpu{number}/{name}"));
        text.unwrap_or_default().trim().to_owned()
    };
    let id = |name: &str| read(name).parse().unwrap_or(number);
    let l2 = (0..8).find(|index| read(&format!("cache/index{index}/level")) == "2");
    Thread {
        number,
        core: (
            read("topology/physical_package_id").parse().unwrap_or(0),
            id("topology/core_id"),
        ),
        l2: l2.map_or_else(
            || number.to_string(),
            |index| read(&format!("cache/index{index}/shared_cpu_list")),
        ),
    }
}

/// How many different ones there are, and which is the caller's.
fn among<T: Ord>(what: impl Fn(&'static Thread) -> T) -> (u32, u32) {
    // SAFETY: sched_getcpu(3) takes nothing, and returns a number.
    let here = unsafe { libc::sched_getcpu() };
    let all: BTreeSet<T> = threads().iter().map(&what).collect();
    let here = threads()
        .iter()
        .find(|t| i32::try_from(t.number) == Ok(here));
    let here = here.map(what);
    let index = here.and_then(|here| all.iter().position(|one| *one == here));
    (
        all.len() as u32,
        index.map_or(UNKNOWN, |index| index as u32),
    )
}

pub extern "C" fn COISysGetAPICID() -> u32 {
    // Leaf 1: the initial APIC id is the upper byte of EBX.
    __cpuid(1).ebx >> 24
}

pub extern "C" fn COISysGetCoreCount() -> u32 {
    among(|thread| thread.core).0
}

pub extern "C" fn COISysGetCoreIndex() -> u32 {
    among(|thread| thread.core).1
}

pub extern "C" fn COISysGetHardwareThreadCount() -> u32 {
    threads().len() as u32
}

pub extern "C" fn COISysGetHardwareThreadIndex() -> u32 {
    among(|thread| thread.number).1
}

pub extern "C" fn COISysGetL2CacheCount() -> u32 {
    match among(|thread| &thread.l2).0 {
        0 => UNKNOWN,
        count => count,
    }
}

pub extern "C" fn COISysGetL2CacheIndex() -> u32 {
    among(|thread| &thread.l2).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_processors() {
        assert_eq!(range("2-5"), 2..6);
        assert_eq!(range("7"), 7..8);
        assert!(range("").is_empty());
    }

    #[test]
    fn the_caller_is_on_one_of_the_cores_that_there_are() {
        assert!(COISysGetHardwareThreadCount() > 0);
        assert!(COISysGetCoreIndex() < COISysGetCoreCount());
        assert!(COISysGetL2CacheIndex() < COISysGetL2CacheCount());
    }
}
