//! One of the two processes that `snaprig bench verbs` measures: a program that uses the C functions
//! of libibverbs, and does what it is told line by line.
//!
//! ```text
//!   us:    Hello                  Done  f64..        Done ...
//!   them:        Hello of the peer     Order   Order
//! ```
//!
//! Both get the same orders. The one on side 0 measures, and says what came out; the other says
//! nothing but that it is done.

use std::{
    ffi::{c_int, c_void},
    io::{BufRead, Write, stdin, stdout},
    mem::zeroed,
    process::ExitCode,
    ptr::{self, null_mut},
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
// Linked for its C functions, which are declared below as any program has them.
use snaprig_verbs as _;
use snaprig_verbs_abi::*;

use crate::{AnyError, baselines::STREAM_BYTES};

/// Queue pairs that two processes have between them.
pub const QPS: usize = 1024;
/// Bytes before those, for words that are polled and for messages of 8 bytes.
const HEAD_BYTES: usize = 4096;
const DEPTH: u32 = 64;
/// Sends under way when bandwidth is measured.
const WINDOW: usize = 16;
/// Receives that wait when bandwidth is measured.
const RECEIVES: usize = 32;
/// Receives of small messages that are posted before they are needed, of each queue pair, as
/// ib_send_lat does.
const AHEAD: usize = 8;
/// Of so many requests without completion, the last has one.
const UNSIGNALED: u32 = 32;
/// RDMA reads of a queue pair that are under way at one time: every model has as many.
const READS: u8 = 8;
/// What the peer may do to the memory.
const ACCESS: u32 = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
/// An order that takes longer has failed.
const SECONDS_MAX: u32 = 120;

/// What a process tells its peer first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    lid: u16,
    qps: Vec<u32>,
    address: u64,
    key: u32,
}

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// 8 bytes there and back by RDMA writes, found by polling memory.
    WriteLatency {
        /// Round trips.
        count: usize,
    },
    /// 8 bytes there and back by sends, over so many queue pairs in turn.
    SendLatency {
        /// Queue pairs.
        qps: usize,
        /// Round trips.
        count: usize,
    },
    /// One way, many under way.
    Bandwidth {
        /// By what.
        verb: Verb,
        /// Of one message.
        bytes: usize,
        /// Through [`STREAM_BYTES`] instead of one buffer.
        streams: bool,
        /// Messages.
        count: usize,
    },
}

/// What moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// The peer receives them.
    Send,
    /// RDMA write.
    Write,
    /// RDMA read: from the peer.
    Read,
}

impl Verb {
    fn opcode(self) -> u32 {
        match self {
            Self::Send => IBV_WR_SEND,
            Self::Write => IBV_WR_RDMA_WRITE,
            Self::Read => IBV_WR_RDMA_READ,
        }
    }
}

/// What came out: of latency, median and mean of half a round trip in microseconds; of bandwidth,
/// GB/s.
pub type Outcome = Vec<f64>;

unsafe extern "C" {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int;
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_reg_mr(pd: *mut ibv_pd, at: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        user: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
}

/// Runs the process.
pub fn run(side: u8) -> Result<ExitCode, AnyError> {
    let mut lines = stdin().lock().lines();
    let mut process = Process::new(side)?;
    say(&process.hello)?;
    let peer = lines.next().ok_or("nobody said whom to connect to")??;
    process.connect(serde_json::from_str(&peer)?)?;
    say(&Outcome::new())?;
    for line in lines {
        let order = serde_json::from_str(&line?)?;
        // SAFETY: alarm(2) takes a number. Its signal has no handler: it ends this process if a peer is gone, instead
        // of a wait that never ends.
        unsafe { libc::alarm(SECONDS_MAX) };
        say(&process.obey(order)?)?;
        // SAFETY: alarm(2) takes a number.
        unsafe { libc::alarm(0) };
    }
    Ok(ExitCode::SUCCESS)
}

fn say(what: &impl Serialize) -> Result<(), AnyError> {
    let mut out = stdout().lock();
    writeln!(out, "{}", serde_json::to_string(what)?)?;
    Ok(out.flush()?)
}

/// What a line says.
pub fn heard<T: DeserializeOwned>(line: &str) -> Result<T, AnyError> {
    Ok(serde_json::from_str(line)?)
}

struct Process {
    first: bool,
    hello: Hello,
    peer: Option<Hello>,
    memory: *mut u8,
    key: u32,
    sends: *mut ibv_cq,
    receives: *mut ibv_cq,
    qps: Vec<*mut ibv_qp>,
    /// Requests without completion, by queue pair.
    quiet: Vec<u32>,
    meetings: u64,
}

fn made<T>(pointer: *mut T, what: &str) -> Result<*mut T, AnyError> {
    if pointer.is_null() {
        let error = std::io::Error::last_os_error();
        return Err(format!("{what}: {error}").into());
    }
    Ok(pointer)
}

fn zero(errno: c_int, what: &str) -> Result<(), AnyError> {
    match errno {
        0 => Ok(()),
        errno => Err(format!("{what}: {}", std::io::Error::from_raw_os_error(errno)).into()),
    }
}

/// Places in the words that are polled, 64 bytes apart.
const PING: usize = 0;
const MEET: usize = 8;
/// Where messages of 8 bytes are sent from, and come to.
const OUT: usize = 2048;
const IN: usize = 2112;

impl Process {
    fn new(side: u8) -> Result<Self, AnyError> {
        let length = HEAD_BYTES + STREAM_BYTES;
        // SAFETY: each call gets what the call before it has made, which was checked not to be null or an error, and
        // structures of this function, all of which have numbers and pointers alone, for which zero is a value. The
        // list has an HCA, for the fabric was started with some. Without MAP_FIXED the kernel chooses addresses that
        // nothing is at.
        unsafe {
            let list = made(ibv_get_device_list(null_mut()), "ibv_get_device_list")?;
            let context = made(ibv_open_device(*list), "ibv_open_device")?;
            let mut port: _compat_ibv_port_attr = zeroed();
            zero(ibv_query_port(context, 1, &mut port), "ibv_query_port")?;
            let pd = made(ibv_alloc_pd(context), "ibv_alloc_pd")?;
            let memory = libc::mmap(
                null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
                -1,
                0,
            );
            if memory == libc::MAP_FAILED {
                return Err(std::io::Error::last_os_error().into());
            }
            let access = ACCESS as c_int;
            let mr = made(ibv_reg_mr(pd, memory, length, access), "ibv_reg_mr")?;
            let cq = || {
                let cq = ibv_create_cq(context, (QPS * 8) as c_int, null_mut(), null_mut(), 0);
                made(cq, "ibv_create_cq")
            };
            let (sends, receives) = (cq()?, cq()?);
            let mut qps = Vec::new();
            for _ in 0..QPS {
                let mut attr: ibv_qp_init_attr = zeroed();
                (attr.send_cq, attr.recv_cq) = (sends, receives);
                attr.cap = ibv_qp_cap {
                    max_send_wr: DEPTH,
                    max_recv_wr: DEPTH,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_data: 32,
                };
                attr.qp_type = IBV_QPT_RC;
                qps.push(made(ibv_create_qp(pd, &mut attr), "ibv_create_qp")?);
            }
            let hello = Hello {
                lid: port.lid,
                qps: qps.iter().map(|qp| (**qp).qp_num).collect(),
                address: memory.expose_provenance() as u64,
                key: (*mr).rkey,
            };
            Ok(Self {
                first: side == 0,
                hello,
                peer: None,
                memory: memory.cast(),
                key: (*mr).lkey,
                sends,
                receives,
                quiet: vec![0; QPS],
                qps,
                meetings: 0,
            })
        }
    }

    fn connect(&mut self, peer: Hello) -> Result<(), AnyError> {
        for (qp, number) in self.qps.iter().zip(&peer.qps) {
            // SAFETY: the structure has numbers alone, for which zero is a value.
            let mut attr: ibv_qp_attr = unsafe { zeroed() };
            attr.qp_state = IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qp_access_flags = ACCESS;
            let init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
            // SAFETY: the queue pair was made in `new` and is destroyed by nobody; ibv_modify_qp(3) reads the
            // attributes that the mask names, which are all set.
            zero(unsafe { ibv_modify_qp(*qp, &mut attr, init) }, "to INIT")?;
            attr.qp_state = IBV_QPS_RTR;
            attr.path_mtu = IBV_MTU_4096;
            attr.dest_qp_num = *number;
            attr.max_dest_rd_atomic = READS;
            attr.min_rnr_timer = 1;
            attr.ah_attr.dlid = peer.lid;
            attr.ah_attr.port_num = 1;
            let rtr = IBV_QP_STATE
                | IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER;
            // SAFETY: the queue pair was made in `new` and is destroyed by nobody; ibv_modify_qp(3) reads the
            // attributes that the mask names, which are all set.
            zero(unsafe { ibv_modify_qp(*qp, &mut attr, rtr) }, "to RTR")?;
            attr.qp_state = IBV_QPS_RTS;
            (attr.timeout, attr.retry_cnt, attr.rnr_retry) = (14, 7, 7);
            attr.max_rd_atomic = READS;
            let rts = IBV_QP_STATE
                | IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC;
            // SAFETY: the queue pair was made in `new` and is destroyed by nobody; ibv_modify_qp(3) reads the
            // attributes that the mask names, which are all set.
            zero(unsafe { ibv_modify_qp(*qp, &mut attr, rts) }, "to RTS")?;
        }
        self.peer = Some(peer);
        Ok(())
    }

    fn obey(&mut self, order: Order) -> Result<Outcome, AnyError> {
        match order {
            Order::WriteLatency { count } => self.write_latency(count),
            Order::SendLatency { qps, count } => self.send_latency(qps.clamp(1, QPS), count),
            Order::Bandwidth {
                verb,
                bytes,
                streams,
                count,
            } => {
                let rate = match verb {
                    Verb::Send => self.send_bandwidth(bytes, streams, count),
                    Verb::Write | Verb::Read => self.rdma_bandwidth(verb, bytes, streams, count),
                };
                Ok(vec![rate?])
            }
        }
    }

    /// A word of one's own memory that the peer writes.
    fn word(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the words are inside the memory, which is mapped for as long as this process lives, and 64 bytes
        // apart from a page's start on, so they are aligned; they are used as atomics alone.
        unsafe { AtomicU64::from_ptr(self.memory.add(index * 64).cast()) }
    }

    fn sge(&self, at: usize, bytes: usize) -> ibv_sge {
        ibv_sge {
            addr: self.hello.address + at as u64,
            length: bytes as u32,
            lkey: self.key,
        }
    }

    fn post(
        &self,
        qp: usize,
        (verb, there): (Verb, usize),
        (at, bytes): (usize, usize),
        signaled: bool,
    ) -> Result<(), AnyError> {
        let mut sge = self.sge(at, bytes);
        // SAFETY: ibv_post_send(3) reads the request and its list, which are variables of this function, before it
        // returns; the queue pair was made in `new` and is destroyed by nobody. The structure has numbers and pointers
        // alone, for which zero is a value.
        unsafe {
            let mut wr: ibv_send_wr = zeroed();
            (wr.sg_list, wr.num_sge) = (&mut sge, 1);
            wr.opcode = verb.opcode();
            if let (Verb::Write | Verb::Read, Some(peer)) = (verb, &self.peer) {
                wr.wr.rdma = ibv_send_wr_rdma {
                    remote_addr: peer.address + there as u64,
                    rkey: peer.key,
                };
            }
            if signaled {
                wr.send_flags |= IBV_SEND_SIGNALED;
            }
            if bytes <= 32 && verb != Verb::Read {
                wr.send_flags |= IBV_SEND_INLINE;
            }
            let (mut bad, qp) = (null_mut(), self.qps[qp]);
            let post = (*(*qp).context).ops.post_send.ok_or("no ibv_post_send")?;
            zero(post(qp, &mut wr, &mut bad), "ibv_post_send")
        }
    }

    /// Posts 8 bytes; a completion comes, and is taken, now and then.
    fn post_small(&mut self, qp: usize, write_to: Option<usize>) -> Result<(), AnyError> {
        self.quiet[qp] += 1;
        let signaled = self.quiet[qp] == UNSIGNALED;
        let what = write_to.map_or((Verb::Send, 0), |to| (Verb::Write, to));
        self.post(qp, what, (OUT, 8), signaled)?;
        if signaled {
            self.quiet[qp] = 0;
            self.take(self.sends)?;
        }
        Ok(())
    }

    fn post_receive(&self, qp: usize, at: usize, bytes: usize) -> Result<(), AnyError> {
        let mut sge = self.sge(at, bytes);
        let mut wr = ibv_recv_wr {
            wr_id: 0,
            next: null_mut(),
            sg_list: &mut sge,
            num_sge: 1,
        };
        // SAFETY: ibv_post_recv(3) reads the request and its list, which are variables of this function, before it
        // returns; the queue pair was made in `new` and is destroyed by nobody.
        unsafe {
            let (mut bad, qp) = (null_mut(), self.qps[qp]);
            let post = (*(*qp).context).ops.post_recv.ok_or("no ibv_post_recv")?;
            zero(post(qp, &mut wr, &mut bad), "ibv_post_recv")
        }
    }

    /// Waits for a completion.
    fn take(&self, cq: *mut ibv_cq) -> Result<(), AnyError> {
        // SAFETY: the queue was made in `new` and is destroyed by nobody; there is room for one completion, as
        // ibv_poll_cq(3) is told. The structure has numbers alone, for which zero is a value.
        unsafe {
            let poll = (*(*cq).context).ops.poll_cq.ok_or("no ibv_poll_cq")?;
            let mut wc: ibv_wc = zeroed();
            loop {
                match poll(cq, 1, &mut wc) {
                    0 => std::hint::spin_loop(),
                    1 if wc.status == IBV_WC_SUCCESS => return Ok(()),
                    1 => return Err(format!("a request ended with status {}", wc.status).into()),
                    _ => return Err("ibv_poll_cq failed".into()),
                }
            }
        }
    }

    /// Writes a number into a word of the peer.
    fn tell(&mut self, word: usize, value: u64) -> Result<(), AnyError> {
        // SAFETY: the place is inside the memory, which is mapped for as long as this process lives; nobody but this
        // thread and the HCA, after this, touches it.
        unsafe { ptr::write_volatile(self.memory.add(OUT).cast(), value) };
        self.post_small(0, Some(word * 64))
    }

    /// Waits for a number; the peer may be further by the time that it is looked at.
    fn await_word(&self, word: usize, value: u64) {
        while self.word(word).load(Ordering::Acquire) < value {
            std::hint::spin_loop();
        }
    }

    /// Waits until both are here.
    fn meet(&mut self) -> Result<(), AnyError> {
        self.meetings += 1;
        self.tell(MEET, self.meetings)?;
        self.await_word(MEET, self.meetings);
        Ok(())
    }

    fn write_latency(&mut self, count: usize) -> Result<Outcome, AnyError> {
        self.word(PING).store(0, Ordering::Release);
        self.meet()?;
        let mut laps = Laps::new(count);
        for turn in 1..=count as u64 {
            if self.first {
                self.tell(PING, turn)?;
                self.await_word(PING, turn);
                laps.lap();
            } else {
                self.await_word(PING, turn);
                self.tell(PING, turn)?;
            }
        }
        self.meet()?;
        Ok(laps.outcome())
    }

    fn send_latency(&mut self, qps: usize, count: usize) -> Result<Outcome, AnyError> {
        for qp in (0..qps).cycle().take(qps * AHEAD) {
            self.post_receive(qp, IN, 8)?;
        }
        self.meet()?;
        let mut laps = Laps::new(count);
        for qp in (0..qps).cycle().take(count) {
            if self.first {
                self.post_small(qp, None)?;
                self.take(self.receives)?;
                self.post_receive(qp, IN, 8)?;
                laps.lap();
            } else {
                self.take(self.receives)?;
                self.post_receive(qp, IN, 8)?;
                self.post_small(qp, None)?;
            }
        }
        // The receives that were posted for messages that do not come.
        for _ in 0..AHEAD {
            for qp in 0..qps {
                self.post_small(qp, None)?;
            }
            for _ in 0..qps {
                self.take(self.receives)?;
            }
        }
        self.meet()?;
        Ok(laps.outcome())
    }

    fn send_bandwidth(
        &mut self,
        bytes: usize,
        streams: bool,
        count: usize,
    ) -> Result<f64, AnyError> {
        if self.first {
            self.meet()?;
            return self.stream(Verb::Send, bytes, streams, count);
        }
        let mut places = places(bytes, streams);
        let mut post = |of: &Self| of.post_receive(0, places.next().unwrap_or(HEAD_BYTES), bytes);
        for _ in 0..RECEIVES.min(count) {
            post(self)?;
        }
        self.meet()?;
        for taken in 0..count {
            self.take(self.receives)?;
            if taken + RECEIVES < count {
                post(self)?;
            }
        }
        self.meet()?;
        Ok(0.0)
    }

    fn rdma_bandwidth(
        &mut self,
        verb: Verb,
        bytes: usize,
        streams: bool,
        count: usize,
    ) -> Result<f64, AnyError> {
        self.meet()?;
        if self.first {
            return self.stream(verb, bytes, streams, count);
        }
        self.meet()?;
        Ok(0.0)
    }

    fn stream(
        &mut self,
        verb: Verb,
        bytes: usize,
        streams: bool,
        count: usize,
    ) -> Result<f64, AnyError> {
        let begun = Instant::now();
        for (sent, at) in places(bytes, streams).take(count).enumerate() {
            if sent >= WINDOW {
                self.take(self.sends)?;
            }
            self.post(0, (verb, at), (at, bytes), true)?;
        }
        for _ in 0..WINDOW.min(count) {
            self.take(self.sends)?;
        }
        let seconds = begun.elapsed().as_secs_f64();
        self.meet()?;
        Ok((bytes * count) as f64 / seconds / 1e9)
    }
}

/// Where messages are, one after the other.
fn places(bytes: usize, streams: bool) -> impl Iterator<Item = usize> {
    let slots = if streams { STREAM_BYTES / bytes } else { 1 };
    (0..slots.max(1))
        .cycle()
        .map(move |slot| HEAD_BYTES + slot * bytes)
}

/// Times of round trips.
struct Laps {
    begun: Instant,
    last: Instant,
    nanoseconds: Vec<u64>,
}

impl Laps {
    fn new(count: usize) -> Self {
        let now = Instant::now();
        // Touched now: page faults are nobody's latency.
        let mut nanoseconds = vec![1; count];
        nanoseconds.clear();
        Self {
            begun: now,
            last: now,
            nanoseconds,
        }
    }

    fn lap(&mut self) {
        let now = Instant::now();
        self.nanoseconds.push((now - self.last).as_nanos() as u64);
        self.last = now;
    }

    fn outcome(mut self) -> Outcome {
        self.nanoseconds.sort_unstable();
        let Some(median) = self.nanoseconds.get(self.nanoseconds.len() / 2) else {
            return Vec::new();
        };
        let mean = (self.last - self.begun).as_nanos() as f64 / self.nanoseconds.len() as f64;
        vec![*median as f64 / 2e3, mean / 2e3]
    }
}
