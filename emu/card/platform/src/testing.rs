//! For tests of whatever runs on a platform: both platforms, and a machine of one address space with little programs.

use std::sync::Arc;

use snaprig_card_memory::{
    CardMemory,
    paging::{Access, PageTables},
};

use crate::{Cpu, Exit, Kind, Platform, Regs, Space, choose};

/// The platforms that there are.
pub const BOTH: [Kind; 2] = [Kind::Kvm, Kind::Ptrace];

/// Makes a test for kvm and one for ptrace of each of the functions. The crate's build script says whether there is kvm
/// (`snaprig_test_needs::tell`).
#[macro_export]
macro_rules! on_both {
    ($($name:ident)*) => {
        mod kvm {$(
            #[test]
            #[cfg_attr(not(has_kvm), ignore = "/dev/kvm does not open")]
            fn $name() {
                super::$name($crate::Kind::Kvm);
            }
        )*}
        mod ptrace {$(
            #[test]
            fn $name() {
                super::$name($crate::Kind::Ptrace);
            }
        )*}
    };
}

/// Where the code of a machine is.
pub const CODE: u64 = 0x40_0000;
/// Where its data may be.
pub const DATA: u64 = 0x60_0000;

/// Card memory with one address space.
pub struct Machine {
    /// The memory.
    pub memory: Arc<CardMemory>,
    /// The space.
    pub space: Arc<dyn Space>,
    /// Its page tables.
    pub tables: PageTables,
    /// What runs it.
    pub platform: Arc<dyn Platform>,
}

impl Machine {
    /// One whose program is `code`.
    pub fn new(kind: Kind, code: &[u8]) -> Self {
        let memory = Arc::new(CardMemory::new(16 << 20).unwrap());
        let platform = choose(Some(kind), &memory).unwrap();
        let tables = PageTables::new(memory.clone()).unwrap();
        let space = platform.new_space(tables.root()).unwrap();
        let machine = Self {
            memory,
            space,
            tables,
            platform,
        };
        let frame = machine.page(
            CODE,
            Access {
                execute: true,
                ..Access::default()
            },
        );
        machine.memory.write(frame, code);
        machine
    }

    /// Maps a new page.
    pub fn page(&self, va: u64, access: Access) -> u64 {
        let frame = self.memory.alloc().unwrap();
        self.tables.map(va, frame, access).unwrap();
        frame
    }

    /// A CPU in its space.
    pub fn cpu(&self) -> Box<dyn Cpu> {
        self.platform.new_cpu(self.space.clone()).unwrap()
    }

    /// Runs the code once, from the start.
    pub fn run(&self, regs: &mut Regs) -> Exit {
        regs.rip = CODE;
        self.cpu().run(regs).unwrap()
    }
}

/// What may be read and written.
pub const WRITE: Access = Access {
    write: true,
    execute: false,
    none: false,
    copied: false,
};
