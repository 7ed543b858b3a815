//! The terminals of a tree: pseudoterminals both of whose sides it has, and the one that it is on with its supervisor.
//!
//! What must stay true: what is in one is there again before anything else is done, whoever is killed
//! ([`device::contents`]).

use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
};

use libc::pid_t;
use procfs::process::Process as Proc;

use super::device::{self, Looked};
use crate::{
    calls,
    descriptor::FoundDescriptor,
    error::{Error, Result},
    state::{Console, Kind, OpenFile, Terminal},
};

/// Major number of the slaves.
const SLAVES: u32 = 136;

/// A terminal as it is met.
#[derive(Debug)]
struct FoundTerminal {
    /// Who has it first: as it is said to people.
    pid: pid_t,
    what: String,
    master: Option<OwnedFd>,
    slave: Option<OwnedFd>,
    /// Its files, and whether they are of the master.
    files: Vec<(u32, bool)>,
}

/// All terminals of a tree.
#[derive(Debug, Default)]
pub struct Terminals {
    met: BTreeMap<(u32, u32), FoundTerminal>,
}

impl Terminals {
    /// An open file that is one; `copy` is of it.
    pub fn meet(&mut self, file: u32, seen: &FoundDescriptor, copy: OwnedFd) -> Result<()> {
        let device = device::device(&copy);
        let device = device.ok_or_else(|| seen.refused("a terminal that does not answer"))?;
        let met = self.met.entry(device).or_insert_with(|| FoundTerminal {
            pid: seen.pid,
            what: format!("{} (descriptor {})", seen.name.display(), seen.fd),
            master: None,
            slave: None,
            files: Vec::new(),
        });
        let is_master = device::number(&copy).is_some();
        met.files.push((file, is_master));
        let side = match is_master {
            true => &mut met.master,
            false => &mut met.slave,
        };
        side.get_or_insert(copy);
        Ok(())
    }

    /// When all are known: says of files which terminals they are of.
    pub fn join(&mut self, open: &mut [OpenFile], processes: &[pid_t]) -> Result<Vec<Terminal>> {
        let own = own_devices();
        let sessions = sessions(processes);
        let mut terminals = Vec::new();
        for (device, met) in &self.met {
            let kind = |master| match &met.master {
                Some(_) => Kind::Terminal {
                    terminal: terminals.len() as u32,
                    master,
                },
                None => Kind::Console,
            };
            for (file, is_master) in &met.files {
                open[*file as usize].kind = kind(*is_master);
            }
            match &met.master {
                Some(master) => {
                    let failed = |source| Error::Process {
                        pid: met.pid,
                        what: format!("the terminal {}", met.what),
                        source,
                    };
                    let described = device::describe(device.1, master, met.slave.as_ref());
                    terminals.push(Terminal {
                        session: sessions.get(device).copied(),
                        ..described.map_err(failed)?
                    });
                }
                None if own.contains(device) => {}
                None => {
                    let what = format!("{}, a terminal that a process outside serves", met.what);
                    return Err(Error::refused(met.pid, what));
                }
            }
        }
        Ok(terminals)
    }

    /// Finds out what is in them, when nothing can be refused any more.
    pub fn contents(&mut self, terminals: &mut [Terminal]) -> Result<()> {
        let served = self.met.values_mut().filter(|met| met.master.is_some());
        let (mut looked, mut failures) = (Vec::new(), Vec::new());
        for (met, terminal) in served.zip(terminals) {
            let Some(master) = met.master.take() else {
                continue;
            };
            let failed = |source| Error::Process {
                pid: met.pid,
                what: format!("what is in the terminal {}", met.what),
                source,
            };
            if met.slave.is_none() && !terminal.hung_up {
                // Nobody has opened its other side yet: to do so would be seen when it is closed.
                let found = calls::events(&master, libc::POLLIN, 0).map_err(failed)?;
                if found & libc::POLLIN != 0 {
                    let what = format!("{}, a terminal that echoes to nobody", met.what);
                    return Err(Error::refused(met.pid, what).for_now());
                }
                continue;
            }
            if let Some(slave) = met.slave.as_ref().filter(|_| terminal.exclusive) {
                device::set_exclusive(slave, false).map_err(failed)?;
            }
            let slave = device::open_slave(&master, libc::O_RDWR | libc::O_NONBLOCK);
            if let Some(slave) = met.slave.as_ref().filter(|_| terminal.exclusive) {
                device::set_exclusive(slave, true).map_err(failed)?;
            }
            let slave = slave.map_err(failed)?;
            if device::is_stopped(&master, &slave).map_err(failed)? {
                let what = format!("{}, a terminal whose output is stopped (Ctrl-S)", met.what);
                return Err(Error::refused(met.pid, what).for_now());
            }
            looked.push(Looked {
                master,
                slave,
                terminal,
            });
            failures.push(failed);
        }
        device::contents(&mut looked).map_err(|(number, source)| failures[number](source))
    }
}

/// Terminals that this process is on.
fn own_devices() -> Vec<(u32, u32)> {
    let stdio = (0..3).filter_map(|fd| {
        // SAFETY: the number is used for one fstat(2) or ioctl(2), which fails if nothing is open there.
        device::device(unsafe { BorrowedFd::borrow_raw(fd) })
    });
    let stat = Proc::myself().and_then(|process| process.stat());
    let controlling = stat.ok().filter(|stat| stat.tty_nr != 0);
    let controlling = controlling.map(|stat| device::divide(stat.tty_nr as u32));
    stdio.chain(controlling).collect()
}

/// Which sessions have which terminals, and their foreground groups.
fn sessions(processes: &[pid_t]) -> BTreeMap<(u32, u32), (i32, i32)> {
    let stats = processes
        .iter()
        .filter_map(|pid| Proc::new(*pid).ok()?.stat().ok());
    let leaders = stats.filter(|stat| stat.session == stat.pid && stat.tty_nr != 0);
    let known = leaders.map(|stat| {
        let device = device::divide(stat.tty_nr as u32);
        (device, (stat.session, stat.tpgid))
    });
    known.filter(|((major, _), _)| *major == SLAVES).collect()
}

/// The terminal that the tree is on with its supervisor, if any of its files is of it.
pub fn console(open: &[OpenFile]) -> Option<Console> {
    let look = |fd| {
        // SAFETY: the number is used for a few ioctl(2), which fail if nothing is open there.
        device::look(unsafe { BorrowedFd::borrow_raw(fd) }).ok()
    };
    let look = open.iter().find_map(|file| match file.kind {
        Kind::Stdio(own) => look(own),
        Kind::Console => (0..3).find_map(look),
        _ => None,
    })?;
    let stat = Proc::myself().and_then(|process| process.stat()).ok()?;
    Some(Console {
        look,
        group: stat.tpgid,
    })
}
