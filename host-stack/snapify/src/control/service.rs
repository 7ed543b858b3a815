//! The service in the host process: who connects, and which offload processes there are.
//!
//! What must stay true: it belongs to one process; a child of fork(2) has none of its parent's. In a program that was
//! restarted its socket is made again.

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use snaprig_coi::Process;
use snaprig_peers::lines;
use snaprig_scif::checkpoint::{self, RigDescriptor};

use super::{COMMAND_MAX, Command, Controlled, Report, Request, lock, socket};

/// Most clients at a time.
const CLIENTS_MAX: usize = 16;

/// The service, until it is dropped: then the commands under way are waited for.
pub struct Service(Arc<Shared>);

impl Service {
    /// For this process, whose rig it is, and its first offload process, which those find who connect at once.
    pub fn start(rig: &Path, first: &Arc<Controlled>) -> io::Result<Self> {
        let (path, listener) = Listener::bind(rig)?;
        let shared = Arc::new(Shared {
            owner: std::process::id(),
            rig: rig.to_owned(),
            path: Mutex::new(path),
            listener: Mutex::new(Arc::new(listener)),
            processes: Mutex::new([(first.process().id(), first.clone())].into()),
            clients: AtomicUsize::new(0),
        });
        let mut services = lock(&SERVICES);
        services.retain(|service| service.strong_count() > 0);
        services.push(Arc::downgrade(&shared));
        drop(services);
        let serving = shared.clone();
        thread::Builder::new()
            .name("snapify".into())
            .spawn(move || serving.serve())?;
        Ok(Self(shared))
    }

    /// Whether it is this process's, and not that of whom it is a child of fork(2).
    fn is_own(&self) -> bool {
        self.0.owner == std::process::id()
    }

    /// This offload process can be controlled, too.
    pub fn add(&self, controlled: &Arc<Controlled>) {
        let id = controlled.process().id();
        lock(&self.0.processes).insert(id, controlled.clone());
    }

    /// The offload process is not controlled any more, but for a command that is under way ([`Controlled::end`]).
    pub fn remove(&self, controlled: &Controlled) {
        let id = controlled.process().id();
        // Not under the lock: it may be the last that has the process.
        let removed = lock(&self.0.processes).remove(&id);
        drop(removed);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if !self.is_own() {
            return;
        }
        // It goes with the rig's directory at the latest.
        let _ = fs::remove_file(&*lock(&self.0.path));
        // The service's thread ends with the process, and must not be at work then.
        let processes = std::mem::take(&mut *lock(&self.0.processes));
        processes.values().for_each(|controlled| controlled.end());
    }
}

/// Serves commands for `process` in this host process.
pub fn serve(rig: &Path, process: &Process) -> io::Result<Service> {
    Service::start(rig, &Controlled::new(process))
}

/// Where commands come in, and what for.
struct Shared {
    owner: u32,
    rig: PathBuf,
    path: Mutex<PathBuf>,
    /// It leads to the rig: in a program that was restarted it is to be made again.
    listener: Mutex<Arc<Listener>>,
    processes: Mutex<BTreeMap<u64, Arc<Controlled>>>,
    clients: AtomicUsize,
}

struct Listener {
    _leads: RigDescriptor,
    socket: UnixListener,
}

impl Listener {
    /// In the directory of the rig as it is now.
    fn bind(rig: &Path) -> io::Result<(PathBuf, Self)> {
        let path = socket(&checkpoint::place(rig), std::process::id());
        // Of a program that this process was before execve(2), or of another one that had this number.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = UnixListener::bind(&path)?;
        let _leads = RigDescriptor::new(&socket);
        Ok((path, Self { _leads, socket }))
    }
}

/// The services that there are.
static SERVICES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The rig is another one: commands come in there.
pub(crate) fn serve_again() -> io::Result<()> {
    let services: Vec<_> = lock(&SERVICES).iter().filter_map(Weak::upgrade).collect();
    for service in services {
        if service.owner != std::process::id() {
            continue;
        }
        let (path, listener) = Listener::bind(&service.rig)?;
        *lock(&service.path) = path;
        *lock(&service.listener) = Arc::new(listener);
    }
    Ok(())
}

impl Shared {
    fn serve(self: Arc<Self>) {
        while let Some(client) = self.accept() {
            if self.clients.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX {
                self.clients.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let service = self.clone();
            let conversation = thread::Builder::new().spawn(move || {
                let _leads = RigDescriptor::new(&client);
                // A client that breaks off has its own reasons.
                let _ = service.converse(&client);
                service.clients.fetch_sub(1, Ordering::Relaxed);
            });
            if conversation.is_err() {
                self.clients.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The next client; none: there will be no more.
    fn accept(&self) -> Option<UnixStream> {
        loop {
            let listener = lock(&self.listener).clone();
            match listener.socket.accept() {
                Ok((client, _)) => return Some(client),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => {
                    // If the program was restarted, there is another one, or will be.
                    checkpoint::settled();
                    if Arc::ptr_eq(&listener, &lock(&self.listener)) {
                        return None;
                    }
                }
            }
        }
    }

    fn converse(&self, client: &UnixStream) -> io::Result<()> {
        let mut commands = lines::Receiver::new(client, COMMAND_MAX);
        while let Some(line) = commands.next_line()? {
            let report = match lines::parse(&line) {
                Ok(request) => self.answer(request),
                Err(error) => Report {
                    error: Some(error.to_string()),
                    ..Report::default()
                },
            };
            lines::send(&mut &*client, &report)?;
        }
        Ok(())
    }

    fn answer(&self, Request { process, command }: Request) -> Report {
        let answered = match command {
            Command::List => {
                let all: Vec<_> = lock(&self.processes).values().cloned().collect();
                Ok(Report {
                    processes: all.iter().map(|one| one.describe()).collect(),
                    ..Report::default()
                })
            }
            Command::Adopted(supervisor) => snaprig_ckpt_plugin::adopted_by(&supervisor)
                .map(|plugins| Report {
                    plugins,
                    ..Report::default()
                })
                .map_err(|error| error.to_string()),
            command => self
                .find(process)
                .map(|controlled| controlled.run(&self.rig, command)),
        };
        answered.unwrap_or_else(|error| Report {
            error: Some(error),
            ..Report::default()
        })
    }

    fn find(&self, number: Option<u64>) -> Result<Arc<Controlled>, String> {
        let processes = lock(&self.processes);
        let found = match number {
            Some(number) => processes.get(&number),
            None => processes.values().next(),
        };
        found.cloned().ok_or_else(|| match number {
            Some(number) => format!("the program has no offload process {number}"),
            None => "the program has no offload process".to_owned(),
        })
    }
}
