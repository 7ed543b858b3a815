//! The DMA engine without a card: copies that are queued at once, beside pread(2) of the same memfd.

use std::{
    fs::File,
    os::unix::fs::FileExt,
    sync::mpsc,
    time::{Duration, Instant},
};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use snaprig_dma::{Copy, CopyError, Engine, RegionId};

use crate::AnyError;

const REGION_BYTES: u64 = 64 << 20;
/// Copied of each size.
const BYTES: f64 = (1u64 << 30) as f64;
const SIZES: [(&str, u64); 4] = [
    ("64K", 64 << 10),
    ("1M", 1 << 20),
    ("16M", 16 << 20),
    ("64M", REGION_BYTES),
];

/// Lines as the C program has them: `name|unit|ours|baseline|theirs`.
pub(super) fn measure(scale: f64) -> Result<Vec<String>, AnyError> {
    let mut memory = vec![1; REGION_BYTES as usize];
    let engine = Engine::new(1)?;
    let (file, from) = region(&engine, &memory)?;
    let (_, to) = region(&engine, &memory)?;
    let mut lines = Vec::new();
    for (name, len) in SIZES {
        let count = ((BYTES * scale) as u64 / len).max(2);
        let copy = Copy {
            src: (from, 0),
            dst: (to, 0),
            len,
        };
        queued(&engine, copy, 2)?;
        let ours = queued(&engine, copy, count)?;
        let begun = Instant::now();
        for _ in 0..count {
            file.read_exact_at(&mut memory[..len as usize], 0)?;
        }
        let theirs = begun.elapsed();
        let rate = |time: Duration| (len * count) as f64 / time.as_secs_f64() / 1e9;
        let (ours, theirs) = (rate(ours), rate(theirs));
        lines.push(format!("engine alone {name}|GB/s|{ours}|pread|{theirs}"));
    }
    Ok(lines)
}

/// A memfd with these bytes, as a region.
fn region(engine: &Engine, bytes: &[u8]) -> Result<(File, RegionId), AnyError> {
    let fd = memfd_create("bench", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, REGION_BYTES)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK)?;
    let file = File::from(fd);
    file.write_all_at(bytes, 0)?;
    let id = engine.add_region(file.try_clone()?.into(), 0, REGION_BYTES)?;
    Ok((file, id))
}

/// How long it takes until the last of so many has ended. Nobody is woken for the others.
fn queued(engine: &Engine, copy: Copy, count: u64) -> Result<Duration, AnyError> {
    let (ended, results) = mpsc::channel();
    let begun = Instant::now();
    for i in 1..=count {
        let ended = ended.clone();
        let done = move |result: Result<(), CopyError>| {
            if i == count || result.is_err() {
                let _ = ended.send(result);
            }
        };
        engine.submit(0, &[copy], Box::new(done));
    }
    results.recv()??;
    Ok(begun.elapsed())
}
