//! The card's processors, as its kernel tells them.

use std::{fs, sync::OnceLock};

/// How many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Cores.
    pub cores: u32,
    /// Hardware threads of all of them.
    pub threads: u32,
}

impl Counts {
    /// Of this card.
    pub fn of_card() -> Self {
        static COUNTS: OnceLock<Counts> = OnceLock::new();
        *COUNTS.get_or_init(|| parse(&fs::read_to_string("/proc/cpuinfo").unwrap_or_default()))
    }

    /// Hardware threads of each core.
    pub fn threads_per_core(self) -> u32 {
        (self.threads / self.cores).max(1)
    }
}

/// Of /proc/cpuinfo; where that does not say what is a core, each thread is one.
fn parse(cpuinfo: &str) -> Counts {
    let lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let lines = lines.map(|(name, value)| (name.trim(), value.trim()));
    let threads = lines.clone().filter(|(name, _)| *name == "processor");
    let threads = (threads.count() as u32).max(1);
    let number = |wanted: &str| {
        let value = lines.clone().find(|(name, _)| *name == wanted);
        value.and_then(|(_, value)| value.parse::<u32>().ok())
    };
    let of_each = match (number("siblings"), number("cpu cores")) {
        (Some(threads), Some(cores @ 1..)) => (threads / cores).max(1),
        _ => 1,
    };
    Counts {
        cores: (threads / of_each).max(1),
        threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_told_from_their_threads() {
        let entry = "processor\t: 0\nsiblings\t: 8\ncpu cores\t: 2\n\n";
        let (cores, threads) = (2, 8);
        assert_eq!(parse(&entry.repeat(8)), Counts { cores, threads });
        assert_eq!(parse(&entry.repeat(8)).threads_per_core(), 4);
        let (cores, threads) = (3, 3);
        assert_eq!(
            parse(&"processor: 1\n".repeat(3)),
            Counts { cores, threads }
        );
        let (cores, threads) = (1, 1);
        assert_eq!(parse("cpu cores: 0"), Counts { cores, threads });
    }
}
