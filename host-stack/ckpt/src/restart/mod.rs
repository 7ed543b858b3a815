//! From an image to processes.
//!
//! ```text
//! outside:    read the first section --> namespaces --> wait for the exit status
//! supervisor: open files --> plant processes --> lay out their memory --> fill it --> finish --> let all go
//! ```
//! What must stay true: none of the tree's code runs before the image has been read to its end; if anything is wrong
//! all processes end, and no file of the tree has been written to.

mod credentials;
mod files;
mod groups;
mod held;
mod layout;
mod namespaces;
mod paths;
mod pipes;
mod process;
mod seed;
mod sockets;
mod terminals;
mod timers;
mod vdso;

use std::{fs::File, io::Read, os::fd::FromRawFd, os::unix::fs::FileExt};

use snaprig_ckpt_image::image::{Piece, Reader};

use self::{files::Opened, process::Growing};
pub use self::{
    groups::place,
    namespaces::{Clocks, Complete, chain, exit_code, run},
};
use crate::{
    error::{Error, Result},
    state::{Process, Tree},
    steps::{self, Step},
    trace::Tracee,
};

/// Reads what an image says of its tree.
pub fn read_tree<R: Read>(reader: &mut Reader<R>) -> Result<Tree> {
    match reader.next()? {
        Some(Piece::State(state)) => Ok(state.decode()?),
        _ => Err(files::damaged("no tree of processes")),
    }
}

/// Makes the tree of an image whose first section has been read; the caller is its supervisor, and has one thread.
/// Returns when all processes run.
pub fn restore<R: Read>(
    tree: &Tree,
    reader: &mut Reader<R>,
    drops_privileges: bool,
    complete: Complete,
) -> Result<()> {
    check(tree)?;
    groups::lead(tree);
    let mut opened = Opened::open(tree)?;
    steps::reached(Step::RestartFiles);
    let result = grow(tree, reader, &mut opened, drops_privileges);
    let result = result.and_then(|threads| let_go(&threads, complete));
    if result.is_ok() {
        terminals::redraw(tree);
    } else {
        paths::withdraw(&opened);
        for process in &tree.processes {
            // SAFETY: no memory is involved; in this namespace the number is nobody else's.
            unsafe { libc::kill(process.pid, libc::SIGKILL) };
        }
    }
    opened.close();
    result
}

/// Numbers of an image that everything else relies on.
fn check(tree: &Tree) -> Result<()> {
    let is_known =
        |pid| pid == tree.supervisor || tree.processes.iter().any(|process| process.pid == pid);
    let lives = |process: &&Process| process.zombie.is_none();
    let is_sound = tree
        .processes
        .iter()
        .all(|process| process.pid > 1 && is_known(process.parent))
        && tree.processes.iter().filter(lives).all(|process| {
            let first = process.body.as_ref().and_then(|body| body.threads.first());
            first.is_some_and(|first| first.tid == process.pid)
        });
    match is_sound {
        true => Ok(()),
        false => Err(files::damaged("processes that do not belong together")),
    }
}

fn grow<R: Read>(
    tree: &Tree,
    reader: &mut Reader<R>,
    opened: &mut Opened,
    drops_privileges: bool,
) -> Result<Vec<Tracee>> {
    seed::plant(tree, opened)?;
    steps::reached(Step::RestartPlanted);
    let mut growing = Vec::new();
    for process in &tree.processes {
        if let Some(body) = &process.body {
            growing.push(Growing::lay_out(process, body, tree, opened)?);
        }
    }
    fill(tree, reader, opened)?;
    steps::reached(Step::RestartFilled);
    paths::commit(opened)?;
    let mut threads: Vec<Tracee> = Vec::new();
    for growing in growing {
        threads.extend(growing.finish(tree, opened, drops_privileges)?);
    }
    held::finish(tree, opened)?;
    terminals::finish(tree, opened)?;
    terminals::take_over(tree)?;
    groups::dismiss(tree);
    for process in &tree.processes {
        if let Some(signal) = process.stopped {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(process.pid, signal) };
        }
    }
    Ok(threads)
}

/// All of them run on, also if this process dies, from one moment on. Before that they end with it: those that it has
/// let go of already by the hand of process 1, which is a moment later.
fn let_go(threads: &[Tracee], complete: Complete) -> Result<()> {
    steps::reached(Step::RestartHeld);
    for thread in threads {
        thread.unbind()?;
    }
    complete.set();
    steps::reached(Step::RestartComplete);
    for thread in threads {
        match thread.detach(0) {
            // Somebody has killed it.
            Err(Error::Gone { .. }) | Ok(()) => steps::reached(Step::RestartLetGo),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads the rest of the image into memory and files.
fn fill<R: Read>(tree: &Tree, reader: &mut Reader<R>, opened: &Opened) -> Result<()> {
    let shared = tree.processes.len();
    let contents = shared + tree.shared.len();
    while let Some(piece) = reader.next()? {
        let Piece::Pages {
            space,
            address,
            bytes,
        } = piece
        else {
            continue;
        };
        let index = space as usize;
        if let Some(process) = tree.processes.get(index) {
            crate::memory::scatter(process.pid, address, bytes)?;
        } else if index < contents {
            let (memory, _) = opened.shared[index - shared];
            write_at(memory, bytes, address)?;
        } else if let Some(Some(file)) = opened.contents.get(&space) {
            write_at(*file, bytes, address)?;
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
