//! A queue pair of a reliable connection: it is made, knows the other one, moves chunks, and is in error and drained at its
//! end.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use sideway::ibverbs::{
    address::{AddressHandleAttribute, Gid},
    completion::{
        BasicCompletionQueue, CompletionChannel, PollCompletionQueueError, WorkCompletionStatus,
    },
    device_context::Mtu,
    queue_pair::{
        BasicQueuePair, PostSendGuard, QueuePair, QueuePairAttribute, QueuePairState,
        WorkRequestFlags,
    },
};
use snaprig_peers::token::random;

use super::{
    device::{Device, access, text},
    raw,
};
use crate::driver::{
    agree::{End, Side},
    connection::Piece,
};

/// Most chunks that are under way at one time; all others wait for their turn.
const REQUESTS_MAX: u32 = 128;
/// Most RDMA reads that are under way at one time, if both devices have as many.
const READS_MAX: u8 = 16;
/// How long a packet waits for its acknowledgement: 4.096 us * 2^14, which is 67 ms.
const TIMEOUT: u8 = 14;
/// How often it is sent again: the most that there is. A link that is down is noticed in seconds.
const RETRIES: u8 = 7;
/// Nobody receives, so nobody is ever not ready.
const RNR_TIMER: u8 = 12;
/// How long it may take until it is known whether the other side is reached.
const PROBE_MAX: Duration = Duration::from_secs(3);
/// How long a device may take to give up what is under way. One that does not is broken, and its queue pair is destroyed.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// The completion of what is no chunk.
const PROBE: u64 = u64::MAX;
/// `WorkCompletionStatus::Success`, as completions have it.
const SUCCESS: u32 = WorkCompletionStatus::Success as u32;

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    // Before the others: a field is dropped before those after it.
    pair: BasicQueuePair,
    completions: Arc<BasicCompletionQueue>,
    channel: Arc<CompletionChannel>,
    device: Arc<Device>,
    side: Side,
    psn: u32,
    /// Where the other one's pool is, and its key.
    remote: (u64, u32),
    requests_max: u32,
    /// Work requests that are not completed yet.
    posted: u32,
}

impl Pair {
    /// A new one, for this side of a connection.
    pub fn new(device: &Arc<Device>, side: Side) -> Result<Self, String> {
        let requests_max = device.requests_max.min(REQUESTS_MAX);
        let channel = device.context.create_comp_channel().map_err(text)?;
        channel.set_nonblocking(true).map_err(text)?;
        let mut builder = device.context.create_cq_builder();
        builder.setup_cqe(requests_max);
        builder.setup_comp_channel(&channel, 0);
        let completions = builder.build().map_err(text)?;
        let mut builder = device.domain.create_qp_builder();
        builder
            .setup_max_send_wr(requests_max)
            .setup_max_recv_wr(1)
            .setup_send_cq(completions.clone())
            .setup_recv_cq(completions.clone());
        let mut pair = builder.build().map_err(text)?;
        let mut attributes = QueuePairAttribute::new();
        attributes
            .setup_state(QueuePairState::Init)
            .setup_pkey_index(0)
            .setup_port(device.port.number)
            .setup_access_flags(access(side));
        pair.modify(&attributes).map_err(text)?;
        let [a, b, c] = random().map_err(text)?;
        Ok(Self {
            pair,
            completions,
            channel,
            device: device.clone(),
            side,
            psn: u32::from_le_bytes([a, b, c, 0]),
            remote: (0, 0),
            requests_max,
            posted: 0,
        })
    }

    /// What the other side needs to know.
    pub fn end(&self) -> End {
        let Device {
            region,
            port,
            reads: [_, answered],
            ..
        } = &*self.device;
        End {
            number: self.pair.qp_number(),
            psn: self.psn,
            lid: port.lid,
            gid: port.gid.map(|(_, gid)| gid),
            mtu: port.mtu as u8,
            reads: READS_MAX.min(*answered),
            address: region.get_ptr() as u64,
            rkey: region.rkey(),
        }
    }

    /// Connects it with the other one.
    pub fn connect(mut self, other: &End) -> Result<Self, String> {
        let Device { port, reads, .. } = &*self.device;
        let mut address = AddressHandleAttribute::new();
        address.setup_dest_lid(other.lid).setup_port(port.number);
        match (port.gid, other.gid) {
            (Some((index, _)), Some(raw)) => {
                address.setup_grh(&Gid { raw }, 0, index, u8::MAX, 0);
            }
            (None, None) => {}
            _ => return Err("one side's packets have GIDs, and the other's have none".into()),
        }
        let [asked, answered] = *reads;
        let mut attributes = QueuePairAttribute::new();
        attributes
            .setup_state(QueuePairState::ReadyToReceive)
            .setup_path_mtu(mtu(other.mtu)?.min(port.mtu))
            .setup_dest_qp_num(other.number)
            .setup_rq_psn(other.psn)
            .setup_max_dest_read_atomic(READS_MAX.min(answered))
            .setup_min_rnr_timer(RNR_TIMER)
            .setup_address_vector(&address);
        self.pair.modify(&attributes).map_err(text)?;
        let mut attributes = QueuePairAttribute::new();
        attributes
            .setup_state(QueuePairState::ReadyToSend)
            .setup_sq_psn(self.psn)
            .setup_timeout(TIMEOUT)
            .setup_retry_cnt(RETRIES)
            .setup_rnr_retry(RETRIES)
            .setup_max_read_atomic(READS_MAX.min(asked).min(other.reads));
        self.pair.modify(&attributes).map_err(text)?;
        self.remote = (other.address, other.rkey);
        Ok(self)
    }

    /// Reads or writes nothing at the other side: fails if that is not reached.
    pub fn probe(mut self) -> Result<Self, String> {
        let (address, rkey) = self.remote;
        let mut requests = self.pair.start_post_send();
        let request = requests.construct_wr(PROBE, WorkRequestFlags::Signaled);
        match self.side {
            Side::Target(_) => request.setup_read(rkey, address),
            Side::Source(_) => request.setup_write(rkey, address),
        };
        requests.post().map_err(text)?;
        self.posted += 1;
        let until = Instant::now() + PROBE_MAX;
        match self.next(until).map_err(text)?.first() {
            Some((_, SUCCESS)) => Ok(self),
            Some((_, status)) => {
                let status = WorkCompletionStatus::from(*status);
                Err(format!("the other side's port is not reached: {status:?}"))
            }
            None => Err("the other side's port does not answer".into()),
        }
    }

    /// How many more chunks may be under way now.
    pub fn room(&self) -> usize {
        (self.requests_max - self.posted) as usize
    }

    /// A chunk is to be moved.
    pub fn post(&mut self, piece: Piece) -> io::Result<()> {
        let device = self.device.clone();
        let (base, rkey) = self.remote;
        let there = base.checked_add(piece.address);
        let here = match piece.lent {
            Some(address) => device.memory.at(address, piece.bytes),
            None => device.memory.part(piece.slot, 0, piece.bytes),
        };
        let (Some(there), Some(here)) = (there, here) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let mut requests = self.pair.start_post_send();
        let request = requests.construct_wr(piece.slot.into(), WorkRequestFlags::Signaled);
        let request = match self.side {
            Side::Target(_) => request.setup_read(rkey, there),
            Side::Source(_) => request.setup_write(rkey, there),
        };
        raw::use_part(request, &device.region, &here);
        requests.post().map_err(io::Error::other)?;
        self.posted += 1;
        Ok(())
    }

    /// Chunks that have been moved, or could not be.
    pub fn poll(&mut self) -> io::Result<Vec<(u32, bool)>> {
        let all = self.completed()?;
        let chunks = all.into_iter();
        Ok(chunks
            .map(|(slot, status)| (slot as u32, status == SUCCESS))
            .collect())
    }

    fn completed(&mut self) -> io::Result<Vec<(u64, u32)>> {
        let all: Vec<_> = match self.completions.start_poll() {
            Ok(all) => all.map(|one| (one.wr_id(), one.status())).collect(),
            Err(PollCompletionQueueError::CompletionQueueEmpty) => Vec::new(),
            Err(error) => return Err(io::Error::other(error)),
        };
        self.posted -= all.len() as u32;
        Ok(all)
    }

    /// What is completed from now on ends [`Self::wait`].
    pub fn arm(&self) -> io::Result<()> {
        raw::arm(&self.completions)
    }

    /// Waits until something may be completed, or somebody wakes.
    pub fn wait(&self, wakes: &OwnedFd) -> io::Result<()> {
        let both = [raw::descriptor(&self.channel), wakes.as_fd()];
        let mut both = both.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
        self.sleep(&mut both, None)
    }

    fn sleep(&self, on: &mut [PollFd<'_>], max: Option<Duration>) -> io::Result<()> {
        let max = max
            .map(Timespec::try_from)
            .transpose()
            .map_err(io::Error::other)?;
        match poll(on, max.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        raw::take_event(&self.channel, &self.completions);
        Ok(())
    }

    /// What is completed next; nothing, if that takes too long.
    fn next(&mut self, until: Instant) -> io::Result<Vec<(u64, u32)>> {
        loop {
            self.arm()?;
            let done = self.completed()?;
            let left = until.saturating_duration_since(Instant::now());
            if !done.is_empty() || left.is_zero() {
                return Ok(done);
            }
            let channel = raw::descriptor(&self.channel);
            self.sleep(&mut [PollFd::new(&channel, PollFlags::IN)], Some(left))?;
        }
    }

    /// It is in error, and drained: nothing is under way any more.
    pub fn close(mut self) {
        let mut attributes = QueuePairAttribute::new();
        attributes.setup_state(QueuePairState::Error);
        let until = Instant::now() + DRAIN_MAX;
        let mut is_well = self.pair.modify(&attributes).is_ok();
        while is_well && self.posted > 0 {
            is_well = self.next(until).is_ok_and(|done| !done.is_empty());
        }
    }
}

/// Packets of so many bytes, as a peer says it.
fn mtu(code: u8) -> Result<Mtu, String> {
    match code {
        1..=5 => Ok(u32::from(code).into()),
        _ => Err(format!("{code} is no size of packets")),
    }
}
