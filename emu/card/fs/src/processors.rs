//! The card's processors as programs find them: /proc/cpuinfo, and topology and caches in /sys/devices/system/cpu.
//!
//! One package of equal cores, with the caches of a Knights Corner. Threads of a core have numbers in a row, as there.
//! What a program can ask the processor itself (cpuid) is as the host has it: it runs the card.

use std::{fs::File, io::Read, ops::Range, sync::OnceLock};

/// Where Linux has them.
pub const DIRECTORY: &str = "/sys/devices/system/cpu";
const HOST: &str = "/proc/cpuinfo";
/// The first entry of that is shorter.
const ENTRY_BYTES_MAX: u64 = 4096;
/// Bytes of a line of any cache.
const CACHE_LINE: usize = 64;

/// How many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Cores.
    pub cores: usize,
    /// Hardware threads of each.
    pub threads_per_core: usize,
}

/// Processors that have something in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Those of a core.
    Core,
    /// All.
    Package,
}

/// One text about a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text {
    /// Number of its core.
    CoreId,
    /// Number of its package, and of its die.
    PackageId,
    /// A group, as a mask.
    Mask(Group),
    /// A group, as a list.
    List(Group),
    /// One of its caches.
    Cache(usize, CacheText),
}

/// One text about a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheText {
    /// 1, 2.
    Level,
    /// What it is for.
    Kind,
    /// In KiB.
    Size,
    /// Bytes of a line.
    Line,
    /// Sets of lines.
    Sets,
    /// Lines of a set.
    Ways,
    /// Lines with a tag of their own.
    Partition,
}

struct Cache {
    level: usize,
    kind: &'static str,
    kib: usize,
    ways: usize,
}

const CACHES: [Cache; 3] = [
    Cache {
        level: 1,
        kind: "Data",
        kib: 32,
        ways: 8,
    },
    Cache {
        level: 1,
        kind: "Instruction",
        kib: 32,
        ways: 8,
    },
    Cache {
        level: 2,
        kind: "Unified",
        kib: 512,
        ways: 8,
    },
];

/// Files of a processor's `topology`; some have an older name and a newer one.
const TOPOLOGY: [(&str, Text); 11] = [
    ("core_id", Text::CoreId),
    ("physical_package_id", Text::PackageId),
    ("die_id", Text::PackageId),
    ("thread_siblings", Text::Mask(Group::Core)),
    ("thread_siblings_list", Text::List(Group::Core)),
    ("core_cpus", Text::Mask(Group::Core)),
    ("core_cpus_list", Text::List(Group::Core)),
    ("core_siblings", Text::Mask(Group::Package)),
    ("core_siblings_list", Text::List(Group::Package)),
    ("package_cpus", Text::Mask(Group::Package)),
    ("package_cpus_list", Text::List(Group::Package)),
];

/// Files of each of its caches, beside who shares it.
const CACHE: [(&str, CacheText); 7] = [
    ("level", CacheText::Level),
    ("type", CacheText::Kind),
    ("size", CacheText::Size),
    ("coherency_line_size", CacheText::Line),
    ("number_of_sets", CacheText::Sets),
    ("ways_of_associativity", CacheText::Ways),
    ("physical_line_partition", CacheText::Partition),
];

/// Directories of each processor, and what is in them.
pub fn directories() -> Vec<(String, Vec<(&'static str, Text)>)> {
    let caches = (0..CACHES.len()).map(|index| {
        let texts = CACHE.map(|(name, text)| (name, Text::Cache(index, text)));
        let shared = [
            ("shared_cpu_map", Text::Mask(Group::Core)),
            ("shared_cpu_list", Text::List(Group::Core)),
        ];
        (
            format!("cache/index{index}"),
            texts.into_iter().chain(shared).collect(),
        )
    });
    let topology = ("topology".to_owned(), TOPOLOGY.to_vec());
    std::iter::once(topology).chain(caches).collect()
}

impl Topology {
    /// Cores of one hardware thread each.
    pub fn of_cores(cores: usize) -> Self {
        Self {
            cores,
            threads_per_core: 1,
        }
    }

    /// Processors: how many threads run at once.
    pub fn processors(&self) -> usize {
        self.cores * self.threads_per_core
    }

    /// All processors, as a list.
    pub fn all(&self) -> String {
        list(0..self.processors())
    }

    /// What a text says of a processor.
    pub fn text(&self, processor: usize, text: Text) -> String {
        match text {
            Text::CoreId => self.core(processor).to_string(),
            Text::PackageId => 0.to_string(),
            Text::Mask(group) => mask(self.group(processor, group), self.processors()),
            Text::List(group) => list(self.group(processor, group)),
            Text::Cache(index, text) => CACHES[index].text(text),
        }
    }

    fn core(&self, processor: usize) -> usize {
        processor / self.threads_per_core
    }

    fn group(&self, processor: usize, group: Group) -> Range<usize> {
        let first = self.core(processor) * self.threads_per_core;
        match group {
            Group::Core => first..first + self.threads_per_core,
            Group::Package => 0..self.processors(),
        }
    }

    /// /proc/cpuinfo: the host's entry, with what is the card's own in its place.
    pub fn cpuinfo(&self) -> String {
        let entry = |processor| self.entry(host_entry(), processor);
        (0..self.processors()).map(entry).collect()
    }

    fn entry(&self, host: &str, processor: usize) -> String {
        let own = [
            ("processor", processor.to_string()),
            ("model name", "snaprig card core".into()),
            ("cache size", format!("{} KB", CACHES[2].kib)),
            ("physical id", 0.to_string()),
            ("siblings", self.processors().to_string()),
            ("core id", self.core(processor).to_string()),
            ("cpu cores", self.cores.to_string()),
            ("apicid", processor.to_string()),
            ("initial apicid", processor.to_string()),
        ];
        let of_host = host.lines().filter_map(|line| line.split_once(':'));
        let of_host = of_host.map(|(name, value)| (name.trim(), value.trim()));
        let is_own = |name: &str| own.iter().any(|(own, _)| *own == name);
        let mut entry: String = own.iter().map(|(name, value)| line(name, value)).collect();
        for (name, value) in of_host.filter(|(name, _)| !is_own(name)) {
            match name {
                // A card has no such registers.
                "flags" => {
                    let flags = value.split(' ').filter(|flag| !flag.starts_with("amx"));
                    entry.push_str(&line(name, &flags.collect::<Vec<_>>().join(" ")));
                }
                _ => entry.push_str(&line(name, value)),
            }
        }
        entry + "\n"
    }
}

impl Cache {
    fn text(&self, text: CacheText) -> String {
        match text {
            CacheText::Level => self.level.to_string(),
            CacheText::Kind => self.kind.into(),
            CacheText::Size => format!("{}K", self.kib),
            CacheText::Line => CACHE_LINE.to_string(),
            CacheText::Sets => (self.kib * 1024 / CACHE_LINE / self.ways).to_string(),
            CacheText::Ways => self.ways.to_string(),
            CacheText::Partition => 1.to_string(),
        }
    }
}

/// As Linux aligns them.
fn line(name: &str, value: &str) -> String {
    let tabs = if name.len() < 8 { "\t\t" } else { "\t" };
    format!("{name}{tabs}: {value}").trim_end().to_owned() + "\n"
}

/// What the host says of its first processor. Read when the card is made: later it may read no files.
pub fn host_entry() -> &'static str {
    static ENTRY: OnceLock<String> = OnceLock::new();
    ENTRY.get_or_init(|| {
        let mut text = Vec::new();
        // A host without it has cards that say what they know themselves.
        if let Ok(file) = File::open(HOST) {
            let _ = file.take(ENTRY_BYTES_MAX).read_to_end(&mut text);
        }
        let text = String::from_utf8_lossy(&text).into_owned();
        let end = text.find("\n\n").unwrap_or(text.len());
        text[..end].to_owned()
    })
}

/// As in `0-3`.
fn list(processors: Range<usize>) -> String {
    match processors.len() {
        1 => processors.start.to_string(),
        _ => format!("{}-{}", processors.start, processors.end - 1),
    }
}

/// As Linux prints a mask of so many processors: words of 32 bits, the highest first.
fn mask(processors: Range<usize>, count: usize) -> String {
    let word = |index: usize| -> u32 {
        let bits = (0..32).filter(|bit| processors.contains(&(index * 32 + bit)));
        bits.map(|bit| 1 << bit).sum()
    };
    let highest = count.saturating_sub(1) / 32;
    let digits = (count - highest * 32).div_ceil(4);
    let mut text = format!("{:0digits$x}", word(highest));
    for index in (0..highest).rev() {
        text.push_str(&format!(",{:08x}", word(index)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_lists_are_as_linux_prints_them() {
        assert_eq!(mask(0..8, 8), "ff");
        assert_eq!(
            mask(4..8, 240),
            "0000,00000000,00000000,00000000,00000000,00000000,00000000,000000f0"
        );
        assert_eq!(mask(32..36, 36), "f,00000000");
        assert_eq!(mask(0..1, 1), "1");
        assert_eq!((list(0..1), list(4..8)), ("0".into(), "4-7".into()));
    }

    #[test]
    fn a_processor_has_its_core_and_its_siblings() {
        let topology = Topology {
            cores: 2,
            threads_per_core: 4,
        };
        let of_fifth = |text| topology.text(5, text);
        assert_eq!(of_fifth(Text::CoreId), "1");
        assert_eq!(of_fifth(Text::List(Group::Core)), "4-7");
        assert_eq!(of_fifth(Text::Mask(Group::Core)), "f0");
        assert_eq!(of_fifth(Text::Mask(Group::Package)), "ff");
        assert_eq!(of_fifth(Text::Cache(2, CacheText::Sets)), "1024");
        assert_eq!(topology.all(), "0-7");
    }

    #[test]
    fn an_entry_is_the_hosts_with_the_cards_numbers() {
        let host = "processor\t: 9\nvendor_id\t: AnyVendor\ncpu cores\t: 64\nflags\t\t: sse amx_tile avx\nbugs\t\t:\n";
        let topology = Topology {
            cores: 3,
            threads_per_core: 2,
        };
        let entry = topology.entry(host, 5);
        let expected = "processor\t: 5\nmodel name\t: snaprig card core\ncache size\t: 512 KB\nphysical id\t: 0\n\
                        siblings\t: 6\ncore id\t\t: 2\ncpu cores\t: 3\napicid\t\t: 5\ninitial apicid\t: 5\n\
                        vendor_id\t: AnyVendor\nflags\t\t: sse avx\nbugs\t\t:\n\n";
        assert_eq!(entry, expected);
    }
}
