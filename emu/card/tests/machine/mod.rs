//! A machine of one address space, with little programs.

use std::sync::Arc;

use snaprig_card::{
    memory::CardMemory,
    paging::{Access, PageTables},
    platform::{self, Cpu, Exit, Kind, Platform, Regs, Space},
};

pub const CODE: u64 = 0x40_0000;
pub const DATA: u64 = 0x60_0000;

pub struct Machine {
    pub memory: Arc<CardMemory>,
    pub space: Arc<dyn Space>,
    pub tables: PageTables,
    pub platform: Arc<dyn Platform>,
}

impl Machine {
    pub fn new(kind: Kind, code: &[u8]) -> Self {
        let memory = Arc::new(CardMemory::new(16 << 20).unwrap());
        let platform = platform::choose(Some(kind), &memory).unwrap();
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

    pub fn page(&self, va: u64, access: Access) -> u64 {
        let frame = self.memory.alloc().unwrap();
        self.tables.map(va, frame, access).unwrap();
        frame
    }

    pub fn cpu(&self) -> Box<dyn Cpu> {
        self.platform.new_cpu(self.space.clone()).unwrap()
    }

    /// Runs the code once, from the start.
    pub fn run(&self, regs: &mut Regs) -> Exit {
        regs.rip = CODE;
        self.cpu().run(regs).unwrap()
    }
}

pub const WRITE: Access = Access {
    write: true,
    execute: false,
    none: false,
    copied: false,
};
