//! Pseudoterminals (pty(7)): their settings, and what is in them, which cannot be looked at but by taking it.
//!
//! ```text
//! master --write--> line discipline: lines, editing --read--> slave        (input)
//! master <--read--- bytes as they are <-----------------write-- slave        (output)
//! ```
//! All of it is put back at once, by a process of its own ([`contents`]). Taken input is put back under settings that have
//! no special characters, so that it is neither edited nor echoed nor answered with signals once more; lines are lines
//! again, and what was being edited can still be.

use std::{
    fs::File,
    io::{self, Read, Seek, Write},
    mem::size_of,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create},
    io::FdFlags,
};

use crate::{
    calls::{check, events, readable},
    detached::Detached,
    faults,
    state::{Line, Terminal, TerminalSettings},
};
use snaprig_tracee::faults::reached;

/// Most that a line discipline holds (N_TTY_BUF_SIZE).
const LINE_MAX: usize = 4096;
/// The kernel moves bytes from side to side in its own time; it takes no longer than this.
const PATIENCE: Duration = Duration::from_secs(2);
/// A look whether it has.
const LOOK: Duration = Duration::from_micros(50);
/// TCSETS2 (asm-generic/ioctls.h).
const TCSETS2: libc::Ioctl = 0x402c_542b;
/// What changes input: parity, newlines, case, and what starts the output again.
const CHANGES_INPUT: u32 = libc::IGNBRK
    | libc::BRKINT
    | libc::PARMRK
    | libc::INPCK
    | libc::ISTRIP
    | libc::INLCR
    | libc::IGNCR
    | libc::ICRNL
    | libc::IUCLC
    | libc::IXANY;

/// Settings, as the kernel has them.
#[derive(Clone, Copy)]
#[repr(C)]
struct Settings {
    input: u32,
    output: u32,
    control: u32,
    local: u32,
    discipline: u8,
    characters: [u8; 19],
    speeds: [u32; 2],
}

impl Settings {
    fn of(fd: impl AsFd) -> io::Result<Self> {
        get(fd, libc::TCGETS2)
    }

    fn set(&self, fd: impl AsFd) -> io::Result<()> {
        // SAFETY: TCSETS2 reads a struct termios2, whose layout `Settings` has.
        let set = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), TCSETS2, &raw const *self) };
        check(set).map(drop)
    }

    fn bytes(&self) -> Vec<u8> {
        let whole: &[u8] =
            // SAFETY: the structure is four words, 20 bytes and two words, without gaps between them, so each of its
            // bytes is initialised.
            unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) };
        whole.to_vec()
    }

    fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let bytes: [u8; size_of::<Self>()] = bytes
            .try_into()
            .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        // SAFETY: the structure has numbers alone, so any bytes of its size are a value.
        Ok(unsafe { std::mem::transmute::<[u8; size_of::<Self>()], Self>(bytes) })
    }

    fn is_canonical(&self) -> bool {
        self.local & libc::ICANON != 0
    }
}

/// An ioctl that writes a value.
fn get<T>(fd: impl AsFd, request: libc::Ioctl) -> io::Result<T> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: each caller asks for a request whose value is a `T`, as tty_ioctl(4) has it; the kernel writes no more
    // than that, into a place that is zeroed before, and a `T` is made of numbers.
    unsafe {
        check(libc::ioctl(
            fd.as_fd().as_raw_fd(),
            request,
            value.as_mut_ptr(),
        ))?;
        Ok(value.assume_init())
    }
}

/// An ioctl that reads a number.
fn set(fd: impl AsFd, request: libc::Ioctl, value: i32) -> io::Result<()> {
    // SAFETY: the callers ask for requests that read an int, as tty_ioctl(4) has it: `value`.
    check(unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, &raw const value) }).map(drop)
}

/// The device number of a terminal, whichever side or other name (/dev/tty) a descriptor is of; none: it is of none.
pub fn device(fd: impl AsFd) -> Option<(u32, u32)> {
    let device: u32 = get(fd, libc::TIOCGDEV).ok()?;
    Some(divide(device))
}

/// Major and minor number as the kernel packs them (also for /proc/PID/stat).
pub fn divide(device: u32) -> (u32, u32) {
    (
        (device >> 8) & 0xfff,
        (device & 0xff) | ((device >> 12) & 0xfff00),
    )
}

/// The number of a master's terminal; none: it is no master.
pub fn number(fd: impl AsFd) -> Option<u32> {
    get(fd, libc::TIOCGPTN).ok()
}

/// Settings and size.
pub fn look(fd: impl AsFd) -> io::Result<TerminalSettings> {
    let fd = fd.as_fd();
    Ok(TerminalSettings {
        settings: Settings::of(fd)?.bytes(),
        size: get(fd, libc::TIOCGWINSZ)?,
    })
}

/// Gives a terminal settings.
pub fn set_settings(fd: impl AsFd, look: &TerminalSettings) -> io::Result<()> {
    Settings::from_bytes(&look.settings)?.set(fd)
}

/// Gives a terminal a size.
pub fn set_size(fd: impl AsFd, look: &TerminalSettings) -> io::Result<()> {
    // SAFETY: TIOCSWINSZ reads a struct winsize, which is four 16-bit numbers, as `size` is.
    let set = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCSWINSZ, look.size.as_ptr()) };
    check(set).map(drop)
}

/// The slave of a master, opened with these flags.
pub fn open_slave(master: impl AsFd, flags: i32) -> io::Result<OwnedFd> {
    // With O_CLOEXEC among them, the kernel says of all who have it that it is closed by exec(2).
    let flags = flags & !libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: TIOCGPTPEER takes a number in place of an address; the descriptor that it returns is new, so nobody else
    // owns it.
    let slave = unsafe {
        let master = master.as_fd().as_raw_fd();
        OwnedFd::from_raw_fd(check(libc::ioctl(master, libc::TIOCGPTPEER, flags))?)
    };
    rustix::io::fcntl_setfd(&slave, FdFlags::CLOEXEC)?;
    Ok(slave)
}

/// The group in the foreground becomes another, as far as that is there.
pub fn set_foreground(fd: impl AsFd, group: i32) -> io::Result<()> {
    set(fd, libc::TIOCSPGRP, group)
}

/// What a terminal is set to; `slave`: one of its slaves, if there are.
pub fn describe(number: u32, master: impl AsFd, slave: Option<impl AsFd>) -> io::Result<Terminal> {
    let master = master.as_fd();
    let is = |request| get::<i32>(master, request).map(|value| value != 0);
    let exclusive = match &slave {
        Some(slave) => get::<i32>(slave, libc::TIOCGEXCL)? != 0,
        None => false,
    };
    Ok(Terminal {
        number,
        look: look(master)?,
        packets: is(libc::TIOCGPKT)?,
        locked: is(libc::TIOCGPTLCK)?,
        exclusive,
        hung_up: events(master, 0, 0)? & libc::POLLHUP != 0,
        session: None,
        input: Vec::new(),
        output: Vec::new(),
    })
}

/// Makes a terminal what it was but for its contents: it was just made.
pub fn prepare(master: impl AsFd, terminal: &Terminal) -> io::Result<()> {
    let master = master.as_fd();
    set(master, libc::TIOCSPTLCK, 0)?;
    set_settings(master, &terminal.look)?;
    set_size(master, &terminal.look)
}

/// What only matters when all who had it have it again.
pub fn finish(master: impl AsFd, slave: Option<impl AsFd>, terminal: &Terminal) -> io::Result<()> {
    set(master.as_fd(), libc::TIOCSPTLCK, i32::from(terminal.locked))?;
    set_packets(master, terminal.packets)?;
    match (terminal.exclusive, slave) {
        (true, Some(slave)) => set_exclusive(slave, true),
        _ => Ok(()),
    }
}

fn set_packets(master: impl AsFd, on: bool) -> io::Result<()> {
    set(master, libc::TIOCPKT, i32::from(on))
}

/// TIOCEXCL and TIOCNXCL.
pub fn set_exclusive(slave: impl AsFd, on: bool) -> io::Result<()> {
    let request = if on { libc::TIOCEXCL } else { libc::TIOCNXCL };
    // SAFETY: TIOCEXCL and TIOCNXCL take no argument.
    check(unsafe { libc::ioctl(slave.as_fd().as_raw_fd(), request) }).map(drop)
}

/// Whether output has been stopped (Ctrl-S): nothing could be put back. `slave` is one.
pub fn is_stopped(master: impl AsFd, slave: impl AsFd) -> io::Result<bool> {
    let can_write = events(slave, libc::POLLOUT, 0)? & libc::POLLOUT != 0;
    // The first look moves what is on its way to the master.
    events(master.as_fd(), libc::POLLIN, 0)?;
    Ok(!can_write && readable(master)? < LINE_MAX as u64 - 1)
}

/// A terminal that is looked into.
pub struct Looked<'a> {
    pub master: OwnedFd,
    /// Its own open file, which does not block.
    pub slave: OwnedFd,
    pub terminal: &'a mut Terminal,
}

/// What a process of its own says: what was in a terminal, and errno, or 0.
type Contents = (Vec<Line>, Vec<u8>, i32);

/// Finds out what is in terminals, and leaves it there; an error: of which. It must be taken out for that: a process of its own
/// does so, and puts it back, to the end, if this one is killed meanwhile. A program that runs on then may write to a terminal
/// before all is there again.
pub fn contents(looked: &mut [Looked<'_>]) -> Result<(), (usize, io::Error)> {
    if looked.is_empty() {
        return Ok(());
    }
    let all = read_apart(looked).map_err(|error| (0, error))?;
    for (number, (looked, (input, output, errno))) in looked.iter_mut().zip(all).enumerate() {
        (looked.terminal.input, looked.terminal.output) = (input, output);
        if errno != 0 {
            return Err((number, io::Error::from_raw_os_error(errno)));
        }
    }
    Ok(())
}

fn read_apart(looked: &mut [Looked<'_>]) -> io::Result<Vec<Contents>> {
    let mut said = File::from(memfd_create("terminal", MemfdFlags::CLOEXEC)?);
    let (taken, has_taken) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let ends = looked.iter().flat_map(|it| [&it.master, &it.slave]);
    let keeps = ends.chain([&has_taken]).map(AsRawFd::as_raw_fd);
    let keeps = keeps.chain([said.as_raw_fd()]).collect();
    let apart = Detached::begin(keeps, || {
        let errno = |result: io::Result<()>| {
            result.map_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO), |()| 0)
        };
        let take = |it: &mut Looked<'_>| errno(take(&it.master, &it.slave, it.terminal));
        let took: Vec<_> = looked.iter_mut().map(take).collect();
        // SAFETY: this process is one of its own, with a copy of the owner's memory that is never dropped, so nobody
        // uses the number any more.
        unsafe { libc::close(has_taken.as_raw_fd()) };
        let put = |(it, took): (&Looked<'_>, i32)| -> Contents {
            let put = errno(put(&it.master, &it.slave, it.terminal));
            let failed = if took == 0 { put } else { took };
            let terminal = &it.terminal;
            (terminal.input.clone(), terminal.output.clone(), failed)
        };
        let contents: Vec<_> = looked.iter().zip(took).map(put).collect();
        let bytes = postcard::to_stdvec(&contents).unwrap_or_default();
        let _ = said.write_all(&bytes);
    })?;
    drop(has_taken);
    // Nothing comes; that it ends is what is waited for.
    let _ = File::from(taken).read_exact(&mut [0]);
    reached(&faults::TERMINAL_TAKEN);
    apart.wait();
    let mut bytes = Vec::new();
    said.rewind()?;
    said.read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map_err(io::Error::other)
}

/// Takes what is in a terminal.
fn take(master: &OwnedFd, slave: &OwnedFd, terminal: &mut Terminal) -> io::Result<()> {
    let settings = Settings::of(master)?;
    if settings.is_canonical() {
        while let Some(bytes) = read(slave)? {
            let is_pushed = !bytes.ends_with(b"\n");
            terminal.input.push(Line { bytes, is_pushed });
        }
        // What is being edited is no line yet.
        let local = settings.local & !libc::ICANON;
        Settings { local, ..settings }.set(master)?;
    }
    let rest = all(slave);
    settings.set(master)?;
    let rest = rest?;
    if !rest.is_empty() {
        terminal.input.push(Line {
            bytes: rest,
            is_pushed: false,
        });
    }
    // Also what reading has had echoed.
    set_packets(master, false)?;
    let mut output = Vec::new();
    let taken = loop {
        match events(master, libc::POLLIN, 0) {
            Ok(found) if found & libc::POLLIN == 0 => break Ok(()),
            Ok(_) => {}
            Err(error) => break Err(error),
        }
        match read(master) {
            Ok(Some(bytes)) => output.extend(bytes),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    set_packets(master, terminal.packets)?;
    terminal.output = output;
    taken
}

/// Reads once; none: there is nothing.
fn read(fd: &OwnedFd) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; LINE_MAX];
    let file = std::mem::ManuallyDrop::new(
        // SAFETY: `fd` keeps it open for the call, and the file is not dropped, so it is not closed here.
        unsafe { File::from_raw_fd(fd.as_raw_fd()) },
    );
    match (&*file).read(&mut bytes) {
        Ok(count) => {
            bytes.truncate(count);
            Ok(Some(bytes))
        }
        // EIO of a master: its slave is closed.
        Err(error) if [Some(libc::EAGAIN), Some(libc::EIO)].contains(&error.raw_os_error()) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// All that a terminal without lines has.
fn all(slave: &OwnedFd) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(bytes) = read(slave)? {
        if bytes.is_empty() {
            break;
        }
        all.extend(bytes);
    }
    Ok(all)
}

/// Puts into a terminal what was taken of it, or of the one that it was; `slave` as above.
pub fn put(master: &OwnedFd, slave: &OwnedFd, terminal: &Terminal) -> io::Result<()> {
    if terminal.input.is_empty() && terminal.output.is_empty() {
        return Ok(());
    }
    let settings = Settings::from_bytes(&terminal.look.settings)?;
    let plain = plain(&settings, &terminal.input)?;
    let flags = fcntl_getfl(master)?;
    fcntl_setfl(master, flags | OFlags::NONBLOCK)?;
    set_packets(master, false)?;
    plain.set(master)?;
    let put =
        put_input(master, slave, terminal, plain).and_then(|()| write_all(slave, &terminal.output));
    settings.set(master)?;
    set_packets(master, terminal.packets)?;
    fcntl_setfl(master, flags)?;
    put
}

/// Settings with no special characters but the end of a line, and one that ends a line without being in it (VEOF):
/// if possible the one that does anyway.
fn plain(settings: &Settings, input: &[Line]) -> io::Result<Settings> {
    let is_free = |byte: &u8| {
        ![0, b'\n'].contains(byte) && input.iter().all(|line| !line.bytes.contains(byte))
    };
    let own = settings.characters[libc::VEOF];
    let end = [own].into_iter().chain(1..=u8::MAX).find(is_free);
    let is_needed = input.iter().any(|line| line.is_pushed);
    let mut characters = [0; 19];
    characters[libc::VEOF] = match (end, is_needed) {
        (Some(end), true) => end,
        (None, true) => return Err(io::Error::other("input of all characters")),
        (_, false) => 0,
    };
    Ok(Settings {
        input: settings.input & !CHANGES_INPUT,
        output: settings.output & !libc::OPOST,
        // What has been stopped stays so (IXON).
        local: settings.local & (libc::ICANON | libc::EXTPROC),
        characters,
        ..*settings
    })
}

fn put_input(
    master: &OwnedFd,
    slave: &OwnedFd,
    terminal: &Terminal,
    plain: Settings,
) -> io::Result<()> {
    let mut readable_bytes = 0;
    for line in &terminal.input {
        let is_whole = line.is_pushed || line.bytes.ends_with(b"\n") || !plain.is_canonical();
        if !is_whole {
            return put_edited(master, &line.bytes, plain);
        }
        write_all(master, &line.bytes)?;
        if line.is_pushed {
            write_all(master, &[plain.characters[libc::VEOF]])?;
        }
        readable_bytes += line.bytes.len() as u64;
        wait(|| Ok(readable(slave)? >= readable_bytes))?;
    }
    Ok(())
}

/// What is being edited cannot be counted: it is there when it has been echoed.
fn put_edited(master: &OwnedFd, bytes: &[u8], plain: Settings) -> io::Result<()> {
    let local = plain.local | libc::ECHO;
    Settings { local, ..plain }.set(master)?;
    write_all(master, bytes)?;
    let mut echoed = 0;
    wait(|| {
        if events(master, libc::POLLIN, 0)? & libc::POLLIN != 0 {
            echoed += read(master)?.map_or(0, |bytes| bytes.len());
        }
        Ok(echoed >= bytes.len())
    })?;
    plain.set(master)
}

fn write_all(fd: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let file = std::mem::ManuallyDrop::new(
        // SAFETY: `fd` keeps it open for the call, and the file is not dropped, so it is not closed here.
        unsafe { File::from_raw_fd(fd.as_raw_fd()) },
    );
    let mut left = bytes;
    wait(|| {
        match left.is_empty() {
            true => {}
            false => match (&*file).write(left) {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            },
        }
        Ok(left.is_empty())
    })
}

fn wait(mut is_so: impl FnMut() -> io::Result<bool>) -> io::Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > PATIENCE {
            return Err(io::ErrorKind::TimedOut.into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}
