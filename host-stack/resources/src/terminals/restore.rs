//! Pseudoterminals, with their numbers and what was in them; and the terminal of whoever restarts.

use std::{
    fs::File,
    io,
    os::{
        fd::{BorrowedFd, OwnedFd, RawFd},
        unix::fs::OpenOptionsExt,
    },
    path::Path,
    ptr,
};

use super::device;
use crate::{
    error::{Error, Result},
    event::{Event, Reporter},
    groups,
    opened::{Opened, damaged, duplicate, open_again, reopen, set_flags},
    state::{Kind, Process, Tree},
};
use snaprig_tracee::remote::{Call, call};

/// More terminals than this nobody opens to find one with a number.
const NUMBERS_MAX: u32 = 4096;

/// Terminals that are open: master, and slave if anybody has opened that.
pub type Pairs = Vec<(RawFd, Option<RawFd>)>;

/// Opens both sides of all terminals.
pub fn open(tree: &Tree, opened: &mut Opened, reporter: &Reporter) -> Result<Pairs> {
    let mut pairs = Pairs::new();
    let mut masters = masters(tree)?;
    let has_others = |masters: &[(OwnedFd, u32)]| {
        let mut pairs = masters.iter().zip(&tree.terminals);
        pairs.any(|((_, got), wanted)| *got != wanted.number)
    };
    // Names of the terminal that the tree is on would lead nowhere in a /dev/pts of its own.
    if has_others(&masters) && own_terminal().is_none() && mount_own() {
        masters = self::masters(tree)?;
    }
    for (number, (master, got)) in masters.into_iter().enumerate() {
        let terminal = &tree.terminals[number];
        let wanted = terminal.number;
        if got != wanted {
            let (was, is) = (wanted, got);
            reporter.tell(Event::TerminalRenumbered { was, is });
        }
        let failed = |source| Error::io(format!("the terminal /dev/pts/{wanted}"), source);
        device::prepare(&master, terminal).map_err(failed)?;
        let slave = match has_been_open(tree, number) {
            true => {
                let flags = libc::O_RDWR | libc::O_NONBLOCK;
                let slave = device::open_slave(&master, flags).map_err(failed)?;
                device::put(&master, &slave, terminal).map_err(failed)?;
                Some(opened.keep(slave)?)
            }
            false => None,
        };
        let master = opened.keep(master)?;
        pairs.push((master, slave));
    }
    for (number, file) in tree.files.iter().enumerate() {
        let Kind::Terminal { terminal, master } = file.kind else {
            continue;
        };
        let pair = pairs.get(terminal as usize).copied();
        let (of_master, _) = pair.ok_or_else(|| damaged("a terminal without a number"))?;
        let fd = match master {
            true => duplicate(of_master)?,
            false => device::open_slave(borrowed(of_master), file.flags)
                .map_err(|source| Error::io("the other side of a terminal", source))?,
        };
        set_flags(&fd, file.flags)?;
        opened.files[number] = opened.keep(fd)?;
    }
    Ok(pairs)
}

/// Whether anybody has opened a terminal's slave: its master would see that it is closed.
fn has_been_open(tree: &Tree, number: usize) -> bool {
    let is_slave = |kind: &Kind| matches!(kind, Kind::Terminal { terminal, master: false } if *terminal as usize == number);
    let terminal = &tree.terminals[number];
    terminal.hung_up
        || terminal.session.is_some()
        || tree.files.iter().any(|file| is_slave(&file.kind))
}

/// When all who had them have them again.
pub fn finish(tree: &Tree, pairs: &Pairs) -> Result<()> {
    for (terminal, (master, slave)) in tree.terminals.iter().zip(pairs) {
        device::finish(borrowed(*master), slave.map(borrowed), terminal)
            .map_err(|source| Error::io("a terminal", source))?;
    }
    Ok(())
}

fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the callers have the number from `Opened`, which keeps what it has open until all are closed, or it is a
    // standard descriptor, which is never closed here.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Masters, with the numbers that the terminals had where these are free.
fn masters(tree: &Tree) -> Result<Vec<(OwnedFd, u32)>> {
    let mut made: Vec<(OwnedFd, u32)> = Vec::new();
    // The kernel gives out the lowest number that is free.
    let highest = tree.terminals.iter().map(|terminal| terminal.number).max();
    let highest = highest.map_or(0, |number| number.min(NUMBERS_MAX));
    while !tree.terminals.is_empty() {
        let master = new_master()?;
        let got = device::number(&master).unwrap_or(u32::MAX);
        made.push((master, got));
        if got >= highest && made.len() >= tree.terminals.len() {
            break;
        }
    }
    let wanted = tree.terminals.iter().map(|terminal| terminal.number);
    let found: Vec<_> = wanted
        .map(|wanted| {
            let at = made.iter().position(|(_, got)| *got == wanted)?;
            Some(made.swap_remove(at))
        })
        .collect();
    // Whose number somebody else has gets one that nobody of the tree had.
    let mut spare = made.into_iter();
    let masters = found
        .into_iter()
        .map(|found| found.or_else(|| spare.next()));
    let masters: Option<Vec<_>> = masters.collect();
    masters.ok_or_else(|| damaged("the same terminal twice"))
}

fn new_master() -> Result<OwnedFd> {
    let path = "/dev/ptmx";
    let master = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path);
    let master = master.map_err(|source| Error::io(path, source))?;
    Ok(master.into())
}

/// A /dev/pts that nobody else uses, in the mount namespace of the tree; whether it could be had.
fn mount_own() -> bool {
    let (kind, options) = (c"devpts", c"newinstance,ptmxmode=0666,mode=0620");
    // SAFETY: the five strings end with a zero, and mount(2) only reads them.
    let mounted = unsafe {
        libc::mount(
            kind.as_ptr(),
            c"/dev/pts".as_ptr(),
            kind.as_ptr(),
            libc::MS_NOSUID | libc::MS_NOEXEC,
            options.as_ptr().cast(),
        )
    };
    if mounted != 0 {
        tracing::warn!(error = %io::Error::last_os_error(), "no /dev/pts of its own for a restarted tree");
    }
    mounted == 0
}

/// The leader of a session, which has just made it, gets its terminal.
pub fn control(tree: &Tree, pairs: &Pairs, session: i32) -> Result<()> {
    for (terminal, (_, slave)) in tree.terminals.iter().zip(pairs) {
        let is_its = terminal.session.is_some_and(|(of, _)| of == session);
        if let Some(slave) = slave.filter(|_| is_its) {
            // SAFETY: TIOCSCTTY takes a number in place of an address, so the kernel reads and writes no memory of this
            // process.
            if unsafe { libc::ioctl(slave, libc::TIOCSCTTY, 0) } != 0 {
                let error = io::Error::last_os_error();
                return Err(Error::io("a session's terminal", error));
            }
        }
    }
    Ok(())
}

/// The calls by which the leader of a session says who is in the foreground: the last argument is the address of the
/// group's number.
pub fn foreground(tree: &Tree, pairs: &Pairs, process: &Process) -> Vec<(Call, i32)> {
    let terminals = tree.terminals.iter().zip(pairs);
    let led = terminals.filter_map(|(terminal, (_, slave))| {
        let (session, group) = terminal.session?;
        let set = call(libc::SYS_ioctl, [(*slave)? as u64, libc::TIOCSPGRP, 0]);
        (session == process.pid && group > 0).then_some((set, group))
    });
    led.collect()
}

/// A standard descriptor that is a terminal.
fn own_terminal() -> Option<RawFd> {
    (0..3).find(|fd| device::device(borrowed(*fd)).is_some())
}

/// The terminal of whoever restarts, opened anew.
pub fn console(flags: i32) -> Result<OwnedFd> {
    reopen(Path::new("/dev/tty"), flags).or_else(|_| match own_terminal() {
        Some(fd) => open_again(fd, flags),
        None => Err(Error::Missing {
            what: "the program is on a terminal: restart it on one".into(),
        }),
    })
}

/// The terminal of whoever restarts looks as that of the tree did, and its foreground group is the tree's.
pub fn take_over(tree: &Tree) -> Result<()> {
    let (Some(console), Some(fd)) = (&tree.console, own_terminal()) else {
        return Ok(());
    };
    let failed = |source| Error::io("the terminal", source);
    let group = console.group;
    // The group that the supervisor was launched in is that of whoever restarts, and in the foreground already.
    let is_in = |process: &Process| {
        process.group == group
            && (process.pid == group || groups::joins(tree, process) == Some(group))
    };
    let is_there = tree.processes.iter().any(is_in);
    // Who is not in the foreground may do so when it does not listen to the objection (tty_ioctl(4)).
    // SAFETY: a set has numbers alone, for which zero is a value; sigprocmask(2) reads the one and writes the other,
    // and this process has one thread.
    let before = unsafe {
        let (mut set, mut before) = std::mem::zeroed::<(libc::sigset_t, libc::sigset_t)>();
        libc::sigaddset(&raw mut set, libc::SIGTTOU);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
        before
    };
    let set = device::set_settings(borrowed(fd), &console.look);
    if is_there {
        // Who restarts in the background stays there.
        let _ = device::set_foreground(borrowed(fd), group);
    }
    // SAFETY: sigprocmask(2) has written the set above, and reads it here.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
    set.map_err(failed)
}

/// Whoever draws on a terminal draws again: it may be another one, of another size.
pub fn redraw(tree: &Tree) {
    let Some(console) = tree.console.as_ref().filter(|_| own_terminal().is_some()) else {
        return;
    };
    let drawing = tree
        .processes
        .iter()
        .filter(|one| one.group == console.group);
    for process in drawing {
        // SAFETY: kill(2) takes numbers alone; in this PID namespace, which is the tree's, the number is nobody else's.
        unsafe { libc::kill(process.pid, libc::SIGWINCH) };
    }
}
