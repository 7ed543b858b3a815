//! The card's process is killed while DMA is pending: the host's driver reports every job as failed,
//! and nobody waits for an answer that cannot come.
//!
//! The card is this program again, as a process of its own: [`card`] with [`SOCKET`] set. Its
//! function never completes a descriptor and says on standard output what it was asked.

use std::{
    io::{BufRead, BufReader, Read},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
};
use snaprig_pci::{
    mic::{DmaError, Event, Mic, MicError},
    server::{Errnum, Function, Listener, serve},
    vfio_user_client::VfioUserClient,
};
use snaprig_wire::{
    bar4::{self, spad},
    dma::Descriptor,
    ring::RING_BYTES,
    scif,
};

const SOCKET: &str = "SNAPRIG_TEST_CARD_SOCKET";
const MEMORY_BYTES: u64 = 4 << 20;
const DESCRIPTORS: u32 = 16;
/// How long is for ever.
const HANG: Duration = Duration::from_secs(60);

fn memory() -> OwnedFd {
    let fd = memfd_create("card", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, MEMORY_BYTES).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    fd
}

/// A card that takes work and does none.
struct Idle;

impl Function for Idle {
    fn attach(&self) {}
    fn detach(&self) {}
    fn bar_read(&self, _bar: u32, offset: u64, to: &mut [u8]) -> Result<(), Errnum> {
        let ring_pages = RING_BYTES as u32 / 4096;
        let value = match (offset.wrapping_sub(bar4::SPAD0)) / 4 {
            spad::NODE => 1,
            spad::SCIF_VERSION => scif::VERSION,
            spad::RING_TO_CARD => 1,
            spad::RING_TO_HOST => 1 + ring_pages,
            spad::RING_PAGES => ring_pages,
            spad::DMA_RINGS => 1 + 2 * ring_pages,
            spad::DMA_RING_LEN => DESCRIPTORS,
            _ => 0,
        };
        to.copy_from_slice(&value.to_le_bytes());
        Ok(())
    }
    fn bar_write(&self, _bar: u32, offset: u64, _from: &[u8]) -> Result<(), Errnum> {
        if (0..4).any(|c| offset == bar4::dma_register(c, bar4::DHPR)) {
            println!("descriptors");
        }
        Ok(())
    }
    /// Never answers.
    fn dma_map(&self, _: u64, _: u64, _: OwnedFd, _: u64) -> Result<(), Errnum> {
        println!("map");
        loop {
            thread::park();
        }
    }
    fn dma_unmap(&self, _: u64, _: u64) -> Result<(), Errnum> {
        Ok(())
    }
    fn dma_unmap_all(&self) {}
    fn set_vector(&self, _: u32, _: Option<OwnedFd>) {}
    fn mask_vectors(&self, _is_masked: bool) {}
    fn reset(&self) {}
}

/// Not a test, but the card's process.
#[test]
fn card() {
    let Some(socket) = std::env::var_os(SOCKET) else {
        return;
    };
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let aperture = (memory(), MEMORY_BYTES);
    let listener = Listener::bind(Path::new(&socket)).unwrap();
    serve(listener, aperture, Arc::new(Idle), stop).unwrap();
    println!("ready");
    // Until the test ends, if it does not kill us before.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

fn start_card(socket: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "card", "--nocapture", "--test-threads=1"])
        .env(SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    (child, stdout)
}

/// Waits until the card has said `what` this many times.
fn hear(card: &mut BufReader<ChildStdout>, what: &str, times: usize) {
    let lines = card.lines().map(Result::unwrap);
    let heard = lines.filter(|line| line.ends_with(what)).take(times);
    assert_eq!(heard.count(), times, "{what}");
}

fn all<T>(receiver: &Receiver<T>) -> Vec<T> {
    let mut got = Vec::new();
    loop {
        match receiver.recv_timeout(HANG) {
            Ok(one) => got.push(one),
            Err(RecvTimeoutError::Disconnected) => return got,
            Err(RecvTimeoutError::Timeout) => panic!("hangs after {} results", got.len()),
        }
    }
}

fn kill_with_pending_jobs(in_a_call: bool) {
    const JOBS: usize = 40;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("card");
    let (mut child, mut card) = start_card(&socket);
    hear(&mut card, "ready", 1);

    let (send, events) = mpsc::channel();
    let device = Arc::new(VfioUserClient::connect(&socket).unwrap());
    let mic = Mic::open(device, Box::new(move |event| send.send(event).unwrap())).unwrap();
    let (send, online) = mpsc::channel();
    let waiter = mic.clone();
    let waiter = thread::spawn(move || send.send(waiter.wait_online(2 * HANG)).unwrap());

    // More than the descriptor rings hold.
    let (send, results) = mpsc::channel();
    let copy = Descriptor {
        src: 0,
        dst: 4096,
        len: 64,
        interrupt: false,
    };
    for job in 0..JOBS {
        let send = send.clone();
        let done = Box::new(move |result| send.send((job, result)).unwrap());
        mic.dma(vec![copy; 5], done).unwrap();
    }
    drop(send);
    hear(&mut card, "descriptors", JOBS);
    let mut mapping = None;
    if in_a_call {
        let (mic, (send, mapped)) = (mic.clone(), mpsc::channel());
        let map = move || send.send(mic.map(memory().as_fd(), 0, 4096)).unwrap();
        mapping = Some((thread::spawn(map), mapped));
        hear(&mut card, "map", 1);
    }

    child.kill().unwrap();
    let mut failed = all(&results);
    failed.sort_by_key(|(job, _)| *job);
    let expected: Vec<_> = (0..JOBS).map(|job| (job, Err(DmaError::Dead))).collect();
    assert_eq!(failed, expected);
    assert!(matches!(events.recv_timeout(HANG).unwrap(), Event::Dead(_)));
    assert!(matches!(all(&online)[..], [Err(MicError::Dead)]));
    waiter.join().unwrap();
    if let Some((thread, mapped)) = mapping {
        assert!(matches!(all(&mapped)[..], [Err(MicError::Device(_))]));
        thread.join().unwrap();
    }

    assert!(mic.is_dead() && mic.doorbell().is_err());
    let late = mic.dma(vec![copy], Box::new(|_| panic!("told twice")));
    assert!(matches!(late, Err(MicError::Dead)));
    drop(mic);
    assert!(all(&events).is_empty());
    child.wait().unwrap();
}

#[test]
fn every_pending_job_fails_when_the_card_is_killed() {
    kill_with_pending_jobs(false);
}

#[test]
fn whoever_waits_for_an_answer_fails_when_the_card_is_killed() {
    kill_with_pending_jobs(true);
}
