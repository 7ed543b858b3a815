//! Which platform a host gets, and why.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use snaprig_card_memory::{
    CardMemory, PAGE,
    paging::{Access, PageTables},
};

use crate::{
    error::PlatformError,
    interface::{Exit, Platform, Regs},
    kind::Kind,
    kvm::KvmPlatform,
    ptrace::PtracePlatform,
};

/// The platform asked for, or else the first that really runs a program: kvm, then ptrace.
pub fn choose(
    want: Option<Kind>,
    memory: &Arc<CardMemory>,
) -> Result<Arc<dyn Platform>, PlatformError> {
    let Some(kind) = want else {
        return make(Kind::Kvm, memory)
            .and_then(|platform| try_out(&platform, memory).map(|_| platform))
            .or_else(|error| {
                tracing::info!(%error, "no usable kvm, taking ptrace");
                make(Kind::Ptrace, memory)
            });
    };
    make(kind, memory)
}

/// Tries a platform: the time of one system call of a program, there and back.
pub fn probe(kind: Kind) -> Result<Duration, PlatformError> {
    let memory = CardMemory::new(256 * PAGE).map_err(|source| PlatformError::Host {
        call: "memfd_create".into(),
        source,
    })?;
    let memory = Arc::new(memory);
    try_out(&make(kind, &memory)?, &memory)
}

fn make(kind: Kind, memory: &Arc<CardMemory>) -> Result<Arc<dyn Platform>, PlatformError> {
    Ok(match kind {
        Kind::Kvm => Arc::new(KvmPlatform::new(memory)?),
        Kind::Ptrace => Arc::new(PtracePlatform::new(memory)?),
    })
}

/// Runs `syscall` in a loop and times it.
fn try_out(
    platform: &Arc<dyn Platform>,
    memory: &Arc<CardMemory>,
) -> Result<Duration, PlatformError> {
    const CALLS: u32 = 16;
    let full = || PlatformError::Exhausted("card memory is full".into());
    let tables = PageTables::new(memory.clone()).ok_or_else(full)?;
    let code = memory.alloc().ok_or_else(full)?;
    // 1: syscall; jmp 1b
    memory.write(code, &[0x0f, 0x05, 0xeb, 0xfc]);
    let access = Access {
        execute: true,
        ..Access::default()
    };
    tables.map(0x1_0000, code, access).map_err(|_| full())?;
    let space = platform.new_space(tables.root())?;
    let result = (|| {
        let mut cpu = platform.new_cpu(space.clone())?;
        let mut regs = Regs {
            rip: 0x1_0000,
            ..Regs::default()
        };
        let started = Instant::now();
        for _ in 0..CALLS {
            match cpu.run(&mut regs)? {
                Exit::Syscall => {}
                other => return Err(PlatformError::Guest(format!("syscall ended as {other:?}"))),
            }
        }
        Ok(started.elapsed() / CALLS)
    })();
    drop(space);
    memory.put(code);
    result
}
