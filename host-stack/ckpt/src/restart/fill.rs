//! Fills memory, shared memory and files with what a chain of images has: for each page what the newest says.
//!
//! ```text
//! loader:  read, verify --> buffer --> filler: copy to where it belongs --> buffer, empty again
//! ```

use std::{
    collections::HashMap,
    fs::File,
    ops::Range,
    os::fd::FromRawFd,
    os::unix::fs::FileExt,
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
};

use libc::pid_t;
use snaprig_ckpt_image::{
    chain::{Chain, Part, Place},
    image::CHUNK_MAX,
};

use super::files::Opened;
use crate::{
    error::{Error, Result},
    memory,
    state::{Backing, Tree},
};

/// What a space of the images is of.
enum Target {
    /// A process's memory: where it is not zero before it is filled.
    Memory(pid_t, Vec<Range<u64>>),
    /// New shared memory, or a new file.
    New(i32),
}

/// Buffers between who loads and who fills.
const BUFFERS: usize = 3;

/// Parts that are loaded together, one behind the other in a buffer of [`CHUNK_MAX`] bytes.
#[derive(Default)]
struct Batch {
    parts: Vec<Part>,
    pages: Vec<u8>,
    used: usize,
}

/// Fills all spaces.
pub fn fill(tree: &Tree, chain: &mut Chain, opened: &Opened) -> Result<()> {
    let targets = targets(tree, opened);
    thread::scope(|scope| {
        // Whoever stops drops its ends, and the other one stops as well.
        let (loaded, to_fill) = sync_channel(BUFFERS);
        let (emptied, empty) = sync_channel(BUFFERS);
        for _ in 0..BUFFERS {
            let _ = emptied.send(Batch::default());
        }
        let loader = thread::Builder::new().name("loader".into());
        let loader = loader.spawn_scoped(scope, move || load(chain, &empty, &loaded));
        let loader = loader.map_err(|source| Error::io("a thread", source))?;
        for mut batch in to_fill {
            put_batch(&targets, &mut batch)?;
            let _ = emptied.send(batch);
        }
        loader
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Loads all parts, one after the other, as long as they are wanted.
fn load(chain: &mut Chain, empty: &Receiver<Batch>, loaded: &SyncSender<Batch>) -> Result<()> {
    let parts: Vec<_> = chain.parts().collect();
    let mut parts = parts.into_iter().peekable();
    while parts.peek().is_some() {
        let Ok(mut batch) = empty.recv() else { break };
        batch.pages.resize(CHUNK_MAX, 0);
        while let Some(part) = parts.next_if(|part| batch.used + stored(part) <= CHUNK_MAX) {
            let to = batch.used..batch.used + stored(&part);
            batch.used = to.end;
            if !to.is_empty() {
                chain.load(&part, &mut batch.pages[to])?;
            }
            batch.parts.push(part);
        }
        if loaded.send(batch).is_err() {
            break;
        }
    }
    Ok(())
}

/// Bytes of a part in a buffer.
fn stored(part: &Part) -> usize {
    match part.place {
        Place::Zeroes => 0,
        Place::Stored { .. } => part.run.bytes as usize,
    }
}

fn put_batch(targets: &HashMap<u32, Target>, batch: &mut Batch) -> Result<()> {
    let mut at = 0;
    for part in batch.parts.drain(..) {
        let pages = &batch.pages[at..at + stored(&part)];
        at += pages.len();
        // Of files that have not changed nothing is needed: but it has been checked.
        let Some(target) = targets.get(&part.run.space) else {
            continue;
        };
        let start = part.run.address;
        match part.place {
            Place::Zeroes => clear(target, start..start + part.run.bytes)?,
            Place::Stored { .. } => put(target, start, pages)?,
        }
    }
    batch.used = 0;
    Ok(())
}

fn targets(tree: &Tree, opened: &Opened) -> HashMap<u32, Target> {
    let mut targets = HashMap::new();
    for process in &tree.processes {
        let Some(body) = &process.body else { continue };
        let of_file = body
            .areas
            .iter()
            .filter(|area| !area.is_shared && matches!(area.backing, Backing::File { .. }));
        let of_file = of_file.map(|area| area.start..area.end).collect();
        targets.insert(process.space, Target::Memory(process.pid, of_file));
    }
    for (shared, (memory, _)) in tree.shared.iter().zip(&opened.shared) {
        targets.insert(shared.space, Target::New(*memory));
    }
    for (space, fd) in &opened.contents {
        if let Some(fd) = fd {
            targets.insert(*space, Target::New(*fd));
        }
    }
    targets
}

fn put(target: &Target, address: u64, bytes: &[u8]) -> Result<()> {
    match target {
        Target::Memory(pid, _) => memory::scatter(*pid, address, bytes),
        Target::New(fd) => write_at(*fd, bytes, address),
    }
}

/// Zeros, where there is something else.
fn clear(target: &Target, run: Range<u64>) -> Result<()> {
    let Target::Memory(_, of_file) = target else {
        return Ok(());
    };
    let zeros = [0; 64 << 10];
    for part in of_file {
        let (mut at, end) = (run.start.max(part.start), run.end.min(part.end));
        while at < end {
            let bytes = (end - at).min(zeros.len() as u64);
            put(target, at, &zeros[..bytes as usize])?;
            at += bytes;
        }
    }
    Ok(())
}

fn write_at(fd: i32, bytes: &[u8], at: u64) -> Result<()> {
    // SAFETY: it is open, and stays so: the file is not dropped.
    let file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let written = file.write_all_at(bytes, at);
    written.map_err(|source| Error::io("contents of a file", source))
}
