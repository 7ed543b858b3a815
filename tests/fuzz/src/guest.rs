//! A card kernel and a hostile guest. The bytes are what a processor in ring 3 does: system calls with any
//! number and arguments, writes to its memory, faults, exceptions, forks; and what a hostile driver writes to card
//! memory meanwhile, page tables and rings among it. The kernel is the real one, on a platform that runs no code.
//!
//! What must be true of all that: no panic and no hang, whatever process is left can be killed, all memory comes back
//! (unless the driver has scribbled), and nothing of this process's own memory is in card memory.

use std::{
    any::Any,
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, Once, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    time::Duration,
};

use snaprig_card_device::Device;
use snaprig_card_fs::{
    Topology,
    console::{Input, Output},
};
use snaprig_card_kernel::{Config, Kernel, Spawn, checkpoint::CheckpointDevice};
use snaprig_card_memory::{CardMemory, PAGE, USER_END, paging};
use snaprig_card_platform::{Cpu, Exit, Kick, Kind, Platform, PlatformError, Regs, Space, xstate};
use snaprig_scif::card as scif;
use snaprig_wire::checkpoint;

use crate::bytes::Bytes;

const CARD_BYTES: u64 = 8 << 20;
/// Guest threads at a time.
const CPUS: usize = 12;
const IMAGE: u64 = 0x40_0000;
const IMAGE_BYTES: u64 = 0x1_0000;
/// How long a program may wait for what will never come.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long a killed card may take to end.
const HANG: Duration = Duration::from_secs(60);
/// Bytes that only this process has.
const SECRET: &[u8; 32] = b"\x9bsnaprig: of the VMM, not a card";
const PATHS: [&str; 16] = [
    "/",
    "/tmp/a",
    "/tmp/b/c",
    "/bin/program",
    "/dev/null",
    "/dev/zero",
    "/dev/card/scif",
    "/dev/card/checkpoint",
    "/proc/self/maps",
    "/proc/self/fd/3",
    "/proc/self/mem",
    "/dev/shm/x",
    "..",
    "a",
    "/tmp/../../..",
    "",
];
const PATH_BYTES: u64 = 32;

/// Runs the guest.
pub fn guest(bytes: &[u8]) {
    static HOOK: Once = Once::new();
    // A guest thread that panics would end quietly.
    HOOK.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            std::process::abort();
        }));
    });
    let memory = Arc::new(CardMemory::new(CARD_BYTES).expect("memory"));
    let device = Device::new(memory.clone(), 1, 1).expect("a device");
    let free = memory.free_bytes();
    let script = Arc::new(Script {
        memory: memory.clone(),
        state: Mutex::new(State {
            bytes: bytes.to_vec().into(),
            results: VecDeque::from([0; 8]),
            scribbled: false,
        }),
    });
    let kernel = Kernel::new(Config {
        memory: memory.clone(),
        platform: Arc::new(Scripted(script.clone())),
        topology: Topology::of_cores(2),
        node: 1,
    });
    let kernel = kernel.expect("a kernel");
    let driver = scif::Driver::new(device.clone(), 1, kernel.waker());
    kernel.register_device(scif::PATH, Arc::new(scif::ScifDevice(driver)));
    kernel.register_device(checkpoint::PATH, Arc::new(CheckpointDevice));
    kernel
        .write_file("/bin/program", &image(), 0o755)
        .expect("room");
    kernel
        .write_file("/tmp/a", &[7; 5000], 0o644)
        .expect("room");
    let output = || Output::new(|_: &[u8]| ());
    let pid = kernel.spawn(Spawn {
        path: "/bin/program".into(),
        argv: vec!["program".into()],
        env: vec!["A=b".into()],
        stdio: [Input::closed(), output(), output()],
    });
    if let Ok(pid) = pid {
        let (ended, waiting) = (channel(), kernel.clone());
        let waiter = std::thread::spawn(move || {
            waiting.wait_exit(pid);
            // Nobody may be waiting any more.
            let _ = ended.0.send(());
        });
        if ended.1.recv_timeout(PATIENCE).is_err() {
            kernel.kill(pid);
            ended.1.recv_timeout(HANG).expect("a killed process ends");
        }
        waiter.join().expect("it does not panic");
    }
    let (ended, ending) = (channel(), kernel.clone());
    let shutdown = std::thread::spawn(move || {
        ending.shutdown();
        drop(ending);
        ended.0.send(()).expect("it is waited for");
    });
    ended.1.recv_timeout(HANG).expect("a card ends");
    shutdown.join().expect("it does not panic");
    drop(kernel);
    let secret = std::hint::black_box(*SECRET);
    let mut all = vec![0; CARD_BYTES as usize];
    memory.read(0, &mut all);
    let found = memchr::memmem::find(&all, &secret);
    assert_eq!(found, None, "the guest has the VMM's secret");
    if !lock(&script.state).scribbled {
        assert_eq!(memory.free_bytes(), free, "memory is lost");
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An executable (elf(5)) of one segment that may be read, written and executed; paths are in it.
fn image() -> Vec<u8> {
    let words = [
        [0x0001_0102_464c_457f, 0, 0x1_003e_0002, IMAGE + 128].as_slice(),
        &[64, 0, 56 << 48 | 64 << 32, 1],
        &[7 << 32 | 1, 0, IMAGE, IMAGE, 4096, IMAGE_BYTES, 4096, 0],
    ]
    .concat();
    let mut image: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    image.resize(4096, 0);
    for (index, path) in PATHS.iter().enumerate() {
        let at = path_address(index as u64) - IMAGE;
        image[at as usize..at as usize + path.len()].copy_from_slice(path.as_bytes());
    }
    image
}

fn path_address(index: u64) -> u64 {
    IMAGE + 0x800 + index * PATH_BYTES
}

/// What the guest does, whichever of its threads comes next.
struct Script {
    memory: Arc<CardMemory>,
    state: Mutex<State>,
}

struct State {
    bytes: VecDeque<u8>,
    /// What the last calls returned, the latest last.
    results: VecDeque<u64>,
    /// Card memory was written to behind the kernel's back.
    scribbled: bool,
}

enum Op {
    Exit(Exit),
    Call(u64, [u64; 6]),
    Poke(u64, Vec<u8>),
    Registers(u64, u64, u64),
    Again,
}

impl Script {
    /// The next thing to do; in the end, to exit.
    fn next(&self) -> Op {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.bytes.is_empty() {
            return Op::Call(libc::SYS_exit_group as u64, [0; 6]);
        }
        let mut bytes = Bytes(state.bytes.make_contiguous());
        let op = match bytes.u8() % 16 {
            0..10 => {
                let number = match bytes.u8() {
                    255 => bytes.u64(),
                    number @ 224..255 => u64::from(number) + u64::from(bytes.u8()),
                    number => u64::from(number) * 2 % 448 + u64::from(bytes.u8() & 1),
                };
                let mut arguments = [0; 6];
                let count = bytes.below(7) as usize;
                for argument in &mut arguments[..count] {
                    *argument = value(&mut bytes, &state.results);
                }
                Op::Call(number, arguments)
            }
            10 | 11 => {
                let address = value(&mut bytes, &state.results);
                let words = 1 + bytes.below(8);
                let words = (0..words).map(|_| value(&mut bytes, &state.results).to_le_bytes());
                Op::Poke(address, words.collect::<Vec<_>>().concat())
            }
            12 => Op::Exit(Exit::PageFault {
                address: value(&mut bytes, &state.results),
                write: bytes.u8() & 1 != 0,
                execute: bytes.u8() & 1 != 0,
            }),
            13 => Op::Exit(Exit::Exception {
                vector: bytes.u8() % 32,
                error_code: bytes.u8().into(),
            }),
            14 => {
                let mut one = || value(&mut bytes, &state.results);
                Op::Registers(one(), one(), one())
            }
            _ => {
                let at = u64::from(bytes.u32()) * 8 % CARD_BYTES;
                let word = match bytes.u8() % 2 {
                    0 => bytes.u64(),
                    _ => self.memory.load(at) ^ 1 << bytes.below(64),
                };
                self.memory.store(at, word);
                state.scribbled = true;
                Op::Again
            }
        };
        let left = bytes.0.len();
        state.bytes.drain(..state.bytes.len() - left);
        op
    }

    fn returned(&self, value: u64) {
        let results = &mut lock(&self.state).results;
        results.pop_front();
        results.push_back(value);
    }
}

/// A number that is likely to mean something to a call.
fn value(bytes: &mut Bytes<'_>, results: &VecDeque<u64>) -> u64 {
    const SPECIAL: [u64; 16] = [
        u64::MAX,
        u64::MAX - 4095,
        1 << 63,
        i64::MAX as u64,
        USER_END,
        USER_END - 1,
        USER_END - 4096,
        0xffff_ffff,
        0x8000_0000,
        0x7fff_ffff,
        1 << 32,
        4096,
        4097,
        libc::AT_FDCWD as u64,
        0xffff_ffff_ff60_0000,
        IMAGE + IMAGE_BYTES - 1,
    ];
    match bytes.u8() {
        0..64 => bytes.u8().into(),
        64..96 => bytes.below(8),
        96..128 => results[bytes.below(8) as usize],
        128..160 => IMAGE + 0x1000 + bytes.below(IMAGE_BYTES - 0x1000),
        160..184 => path_address(bytes.below(PATHS.len() as u64)),
        184..216 => bytes.one_of(&SPECIAL),
        216..224 => 1 << bytes.below(64),
        224..236 => u64::from(bytes.u16()) << 12,
        236..246 => bytes.u32().into(),
        _ => bytes.u64(),
    }
}

/// Makes CPUs that follow the script.
struct Scripted(Arc<Script>);

impl Platform for Scripted {
    fn kind(&self) -> Kind {
        Kind::Ptrace
    }

    fn new_space(&self, root: u64) -> Result<Arc<dyn Space>, PlatformError> {
        Ok(Arc::new(ScriptSpace(root)))
    }

    fn new_cpu(&self, space: Arc<dyn Space>) -> Result<Box<dyn Cpu>, PlatformError> {
        Ok(Box::new(ScriptCpu {
            script: self.0.clone(),
            root: root(&space),
            called: false,
            poke: None,
            kick: Arc::default(),
        }))
    }

    fn cpus_max(&self) -> usize {
        CPUS
    }

    fn has_host_counter(&self) -> bool {
        true
    }

    fn xstate_bytes(&self) -> usize {
        xstate::bytes()
    }
}

struct ScriptSpace(u64);

impl Space for ScriptSpace {
    fn flush(&self, _: Option<&mut dyn Cpu>, _start: u64, _end: u64) -> Result<(), PlatformError> {
        Ok(())
    }

    fn end(&self) -> Result<(), PlatformError> {
        Ok(())
    }

    fn has_own_mapping(&self) -> bool {
        false
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn root(space: &Arc<dyn Space>) -> u64 {
    let space = space.as_any().downcast_ref::<ScriptSpace>();
    space.expect("spaces of this platform are its own").0
}

struct ScriptCpu {
    script: Arc<Script>,
    root: u64,
    /// It left with a system call.
    called: bool,
    /// What it was about to write when it left with a page fault.
    poke: Option<(u64, Vec<u8>)>,
    kick: Arc<ScriptKick>,
}

#[derive(Default)]
struct ScriptKick(AtomicBool);

impl Kick for ScriptKick {
    fn kick(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl ScriptCpu {
    /// Writes to the program's memory what is in one page of it; a fault if it may not.
    fn poke(&mut self, address: u64, bytes: &[u8]) -> Option<Exit> {
        let len = bytes.len().min((PAGE - address % PAGE) as usize);
        let memory = &self.script.memory;
        let found = paging::lookup(memory, self.root, address & !(PAGE - 1));
        match found.filter(|(_, access)| access.allows(true, false)) {
            Some((frame, _)) => {
                memory.write(frame + address % PAGE, &bytes[..len]);
                None
            }
            None => Some(Exit::PageFault {
                address,
                write: true,
                execute: false,
            }),
        }
    }
}

impl Cpu for ScriptCpu {
    fn run(&mut self, regs: &mut Regs) -> Result<Exit, PlatformError> {
        if std::mem::take(&mut self.called) {
            self.script.returned(regs.rax);
        }
        if let Some((address, bytes)) = self.poke.take() {
            // The fault may have been the program's own.
            let _ = self.poke(address, &bytes);
        }
        loop {
            if self.kick.0.swap(false, Ordering::SeqCst) {
                return Ok(Exit::Kicked);
            }
            match self.script.next() {
                Op::Again => {}
                Op::Exit(exit) => return Ok(exit),
                Op::Call(number, [a, b, c, d, e, f]) => {
                    (regs.rax, regs.rdi, regs.rsi, regs.rdx) = (number, a, b, c);
                    (regs.r10, regs.r8, regs.r9) = (d, e, f);
                    self.called = true;
                    return Ok(Exit::Syscall);
                }
                Op::Poke(address, bytes) => {
                    if let Some(fault) = self.poke(address, &bytes) {
                        self.poke = Some((address, bytes));
                        return Ok(fault);
                    }
                }
                Op::Registers(rip, rsp, fs_base) => {
                    (regs.rip, regs.rsp, regs.fs_base) = (rip, rsp, fs_base);
                }
            }
        }
    }

    fn xstate(&mut self) -> Result<Vec<u8>, PlatformError> {
        Ok(xstate::initial())
    }

    fn set_xstate(&mut self, state: &[u8]) -> Result<(), PlatformError> {
        xstate::check(state)
    }

    fn set_space(&mut self, space: Arc<dyn Space>) -> Result<(), PlatformError> {
        self.root = root(&space);
        Ok(())
    }

    fn kicker(&self) -> Arc<dyn Kick> {
        self.kick.clone()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
