//! Threads that talk at once, in real time: every message arrives once and in order, and nobody
//! waits for a timer.

use std::{
    cell::UnsafeCell,
    collections::BTreeSet,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use snaprig_hca::{
    Atomic, Event, Hca, Host, Memory, Opcode, Packet, Path, Segment, SendFlags, Status, Transport,
    post::{Data, PostError},
    queue::{Send, Sge},
    testing::{BASE, End, Link, Node, World},
    types::completed,
};

const MEMORY: usize = 1 << 20;
const MESSAGES: u64 = 100_000;
/// Messages that somebody waits for.
const WAITS: u32 = 5_000;
/// Far more than it takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A machine with real time, whose processes are threads.
struct Machine {
    memory: Memory,
    bytes: Vec<UnsafeCell<Vec<u8>>>,
    wanted: Mutex<BTreeSet<u32>>,
    start: Instant,
    ends: AtomicBool,
    /// Deadlines that passed.
    late: AtomicU32,
    /// Notifications of completion queues.
    told: AtomicU32,
}

// SAFETY: the queue pairs order who touches which bytes; that is what is tested here.
unsafe impl Sync for Machine {}

impl Machine {
    fn new(memory: Memory) -> Self {
        Self {
            memory,
            bytes: (0..2).map(|_| UnsafeCell::new(vec![0; MEMORY])).collect(),
            wanted: Mutex::default(),
            start: Instant::now(),
            ends: AtomicBool::new(false),
            late: AtomicU32::new(0),
            told: AtomicU32::new(0),
        }
    }

    fn at(&self, segment: Segment) -> *mut u8 {
        let first = (segment.address - BASE) as usize;
        assert!(first + segment.length as usize <= MEMORY);
        // SAFETY: inside the vector, which is never resized.
        unsafe {
            (*self.bytes[segment.process as usize].get())
                .as_mut_ptr()
                .add(first)
        }
    }
}

impl Host for Machine {
    fn copy(&self, from: Segment, to: Segment) -> bool {
        // SAFETY: `at` has checked that both ranges are inside their memory, which is never resized; `ptr::copy` allows
        // them to overlap. The queue pairs order who touches which bytes.
        unsafe { std::ptr::copy(self.at(from), self.at(to), from.length as usize) };
        true
    }

    fn read(&self, from: Segment, into: &mut [u8]) -> bool {
        // SAFETY: `at` has checked that the range is inside the memory, which is never resized; the buffer is as long.
        // The queue pairs order who touches which bytes.
        unsafe { std::ptr::copy(self.at(from), into.as_mut_ptr(), into.len()) };
        true
    }

    fn write(&self, bytes: &[u8], to: Segment) -> bool {
        // SAFETY: `at` has checked that the range is inside the memory, which is never resized; the bytes are as many.
        // The queue pairs order who touches which bytes.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.at(to), bytes.len()) };
        true
    }

    fn atomic(&self, _: Segment, _: Atomic) -> Option<u64> {
        None
    }

    fn notify(&self, _: u32) {
        self.told.fetch_add(1, Ordering::Release);
    }

    fn event(&self, _: Event, _: u32) {}

    fn attention(&self, qp: u32) {
        self.wanted.lock().expect("no panic").insert(qp);
    }

    fn srq_attention(&self, _: u32) {}

    fn path(&self, _: u32, _: u32) -> Path {
        Path::Whole
    }

    fn transmit(&self, _: &Packet<'_>) {}

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// One side: sends numbers, and checks those that come.
fn talk(machine: &Machine, node: &Node, end: &End) {
    let hca = Hca::new(&machine.memory, machine, node.process);
    let cq = machine.memory.cq(node.cq).expect("a queue");
    let (mut sent, mut done, mut posted, mut came) = (0, 0, 0, 0);
    let place = |at: u64| Sge {
        address: BASE + at,
        length: 64,
        key: node.key,
    };
    let slot = |id: u64| 64 * (id % 64);
    while done < MESSAGES || came < MESSAGES {
        // Fewer receives than sends, so that many have to wait.
        while posted < MESSAGES && posted - came < 8 {
            let list = [place(MEMORY as u64 / 2 + slot(posted))];
            assert_eq!(hca.post_receive(end.index, posted, &list), Ok(()));
            posted += 1;
        }
        while sent < MESSAGES && sent - done < 32 {
            let at = machine.at(Segment {
                process: node.process,
                pooled: false,
                address: BASE + slot(sent),
                length: 8,
            });
            // SAFETY: the request that used it last is complete.
            unsafe { at.cast::<u64>().write_unaligned(sent) };
            let request = Send::new(sent, Opcode::Send, SendFlags::SIGNALED);
            match hca.post_send(end.index, &request, Data::List(&[place(slot(sent))])) {
                Ok(()) => sent += 1,
                Err(PostError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        let Some(entry) = hca.poll(cq) else {
            assert!(
                machine.start.elapsed() < PATIENCE,
                "{sent} {done} {posted} {came}"
            );
            thread::yield_now();
            continue;
        };
        assert_eq!(entry.status, Status::Success);
        if entry.opcode == completed::RECEIVE {
            assert_eq!(entry.wr_id, came);
            let mut number = [0; 8];
            let from = Segment {
                process: node.process,
                pooled: false,
                address: BASE + MEMORY as u64 / 2 + slot(came),
                length: 8,
            };
            machine.read(from, &mut number);
            assert_eq!(u64::from_ne_bytes(number), came);
            came += 1;
        } else {
            assert_eq!(entry.wr_id, done);
            done += 1;
        }
    }
}

fn daemon(machine: &Machine) {
    let hca = Hca::new(&machine.memory, machine, 1000);
    let mut waits = BTreeSet::new();
    while !machine.ends.load(Ordering::Relaxed) {
        waits.append(&mut machine.wanted.lock().expect("no panic"));
        waits.retain(|index| {
            let qp = machine.memory.qp(*index).expect("a queue pair");
            let deadline_ns = qp.requester.deadline_ns.get();
            if machine.now_ns() >= deadline_ns {
                let late = u32::from(deadline_ns > 0);
                machine.late.fetch_add(late, Ordering::Relaxed);
                hca.run(*index);
            }
            qp.requester.deadline_ns.get() != 0
        });
        thread::sleep(Duration::from_micros(100));
    }
}

/// Ends the other threads, whatever happens.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn both_sides_talk_at_once() {
    let world = World::new(2, 1);
    let link = Link {
        min_rnr_timer: 0,
        timeout: 20,
        ..Link::default()
    };
    let nodes = [world.node(0, 0), world.node(1, 1)];
    let ends = world.pair(&nodes[0], &nodes[1], Transport::Rc, &link);
    let machine = Machine::new(world.memory);
    thread::scope(|scope| {
        let machine = &machine;
        let _ends = Ends(&machine.ends);
        scope.spawn(|| daemon(machine));
        let (node, end) = (&nodes[1], &ends.1);
        let other = scope.spawn(move || talk(machine, node, end));
        talk(machine, &nodes[0], &ends.0);
        other.join().expect("the other side");
    });
    let took = machine.start.elapsed();
    println!(
        "{} ns a message",
        took.as_nanos() / u128::from(2 * MESSAGES)
    );
    assert!(took < PATIENCE);
    // A wake-up that is lost costs a timer each time; a machine that is slow, one or two.
    assert!(machine.late.load(Ordering::Relaxed) < 5);
}

/// Sends a message whenever the one before was taken.
fn send_one_by_one(machine: &Machine, node: &Node, end: &End, taken: &AtomicU32) {
    let hca = Hca::new(&machine.memory, machine, node.process);
    let cq = machine.memory.cq(node.cq).expect("a queue");
    let send = Send::new(0, Opcode::Send, SendFlags::SIGNALED);
    for number in 0..WAITS {
        while taken.load(Ordering::Acquire) < number {
            if machine.ends.load(Ordering::Relaxed) {
                return;
            }
            thread::yield_now();
        }
        assert_eq!(hca.post_send(end.index, &send, Data::EMPTY), Ok(()));
        while hca.poll(cq).is_none() {
            assert!(machine.start.elapsed() < PATIENCE);
        }
    }
}

/// Takes what is there, does something else for a while, arms, and waits to be told.
fn take_when_told(machine: &Machine, node: &Node, end: &End, taken: &AtomicU32) {
    let hca = Hca::new(&machine.memory, machine, node.process);
    let cq = machine.memory.cq(node.cq).expect("a queue");
    let mut told = 0;
    while taken.load(Ordering::Relaxed) < WAITS {
        while hca.poll(cq).is_some() {
            assert_eq!(hca.post_receive(end.index, 0, &[]), Ok(()));
            taken.fetch_add(1, Ordering::Release);
        }
        if taken.load(Ordering::Relaxed) == WAITS {
            break;
        }
        for _ in 0..taken.load(Ordering::Relaxed) % 500 * 4 {
            std::hint::spin_loop();
        }
        hca.request_notification(node.cq, false);
        while machine.told.load(Ordering::Acquire) == told {
            let waited = machine.start.elapsed();
            assert!(
                waited < PATIENCE,
                "not told of message {}",
                taken.load(Ordering::Relaxed)
            );
            thread::yield_now();
        }
        told = machine.told.load(Ordering::Acquire);
    }
}

/// A message may come between the last look and the arming.
#[test]
fn who_looks_arms_and_waits_is_told_of_every_message() {
    let world = World::new(2, 1);
    let nodes = [world.node(0, 0), world.node(1, 1)];
    let ends = world.pair(&nodes[0], &nodes[1], Transport::Rc, &Link::default());
    for _ in 0..2 {
        assert_eq!(world.hca(1).post_receive(ends.1.index, 0, &[]), Ok(()));
    }
    let machine = Machine::new(world.memory);
    let taken = AtomicU32::new(0);
    thread::scope(|scope| {
        let _ends = Ends(&machine.ends);
        scope.spawn(|| send_one_by_one(&machine, &nodes[0], &ends.0, &taken));
        take_when_told(&machine, &nodes[1], &ends.1, &taken);
    });
}
