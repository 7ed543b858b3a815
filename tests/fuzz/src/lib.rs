//! The bodies of the fuzz targets: each takes any bytes, and panics if what must stay true does not.

mod bytes;
pub mod ckpt_image;
pub mod coord;
pub mod driver;
mod grammar;
pub mod guest;
pub mod ppmr;
#[cfg(test)]
mod smoke;
pub mod verbs_cm;

use std::io::{ErrorKind, IoSlice, Read};
use std::os::{fd::AsFd, unix::net::UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, atomic::AtomicU64, atomic::Ordering};
use std::{mem::MaybeUninit, net::Shutdown, thread::JoinHandle, time::Duration};

use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::{Serialize, de::DeserializeOwned};
use snaprig_card_device::Device;
use snaprig_card_image::{
    chain,
    stream::{Decoder, PAGES_MAX, Piece},
};
use snaprig_card_kernel::elf as card_elf;
use snaprig_card_memory::CardMemory;
use snaprig_hca::wire;
use snaprig_image::Inbox;
use snaprig_offload_wire::{coi, snapify, snapify_io};
use snaprig_verbs_tcp::{Frame, Frames, frame as tcp};
use snaprig_wire::ring::{RING_BYTES, Ring};
use snaprig_wire::{dma, frame, scif};
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_64;

/// Process images and chains of them, in portions as the first byte says: as they come, and with their checksums put
/// right, which no mutation would.
pub fn image(bytes: &[u8]) {
    let Some((step, stream)) = bytes.split_first() else {
        return;
    };
    for stream in [stream, &with_checksums(stream)[..]] {
        decode(stream, 1 + usize::from(*step));
        // As the first of a chain, and as the second: whatever is said, it is said in order.
        let _ = chain::collapse(vec![stream], std::io::sink());
        let _ = chain::collapse(vec![stream, stream], std::io::sink());
    }
}

fn decode(mut stream: &[u8], step: usize) -> Option<()> {
    let (mut decoder, mut inbox) = (Decoder::default(), Inbox::default());
    while !decoder.is_complete() {
        if let Some(bytes) = inbox.take(decoder.wants()) {
            if let Some(Piece::Pages { address, bytes }) = decoder.take(bytes).ok()? {
                assert!(address % 4096 == 0 && bytes.len() % 4096 == 0 && bytes.len() <= PAGES_MAX);
            }
            continue;
        }
        let missing = decoder.certain() - inbox.len();
        let (now, later) = stream.split_at(missing.min(step).min(stream.len()));
        if now.is_empty() {
            break;
        }
        inbox.room(now.len()).copy_from_slice(now);
        inbox.filled(now.len());
        stream = later;
    }
    decoder.finish(inbox.len()).ok()
}

fn with_checksums(stream: &[u8]) -> Vec<u8> {
    let mut stream = stream.to_vec();
    // The checksum of a run of pages is the second word of its payload.
    grammar::seal(&mut stream, 1, |payload, body| {
        if let (Some(sum), true) = (payload.get_mut(8..16), !body.is_empty()) {
            sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
        }
    });
    stream
}

/// Executables for the card.
pub fn elf(bytes: &[u8]) {
    let mut end = 0;
    for segment in card_elf::parse(bytes).map_or(Vec::new(), |executable| executable.segments) {
        assert!(segment.offset + segment.file_bytes <= bytes.len() as u64);
        assert!(segment.file_bytes <= segment.memory_bytes && segment.address >= end);
        end = segment.address + segment.memory_bytes;
    }
}

/// Every message between host, card and guest.
pub fn messages(bytes: &[u8]) {
    macro_rules! all { ($($kind:ty)*) => { $(message::<$kind>(bytes);)* } }
    all!(coi::ToDaemon coi::FromDaemon coi::Channel coi::Command coi::Answer coi::RunFunction);
    all!(coi::RunResult snapify::Request snapify::Reply snapify::Hello scif::Message);
    all!(snapify_io::LocalOpen snapify_io::Message);
    if let Some(Ok(len)) = bytes.first_chunk().map(|prefix| frame::frame_len(*prefix)) {
        assert!(len <= frame::MESSAGE_MAX);
    }
    let decoded = bytes
        .first_chunk()
        .map(|bytes| dma::Descriptor::decode(bytes, 0));
    if let Some(Ok(copy)) = decoded
        && copy.len > 0
    {
        assert_eq!(dma::Descriptor::decode(&copy.encode(), 0), Ok(copy));
    }
}

fn message<T: Serialize + DeserializeOwned + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = frame::decode::<T>(bytes) {
        assert!(frame::decode(&frame::encode(&message)) == Ok(message));
    }
}

/// Packets of the fabric: as they come, and with length and CRCs put right, which no mutation would.
pub fn packets(bytes: &[u8]) {
    packet(bytes);
    let words = bytes.len().saturating_sub(2) / 4;
    let mut bytes = bytes.to_vec();
    bytes.truncate(words * 4 + 2);
    if let Some(length) = bytes.get_mut(4..6) {
        length.copy_from_slice(&(words as u16).to_be_bytes());
    }
    wire::seal(&mut bytes);
    packet(&bytes);
}

fn packet(bytes: &[u8]) {
    if let Ok(packet) = wire::decode(bytes) {
        let mut again = Vec::new();
        wire::encode(&packet, &mut again).expect("what was decoded can be encoded");
        assert_eq!(wire::decode(&again), Ok(packet));
    }
}

/// A stream of another node's daemon: frames, as they come; and as one frame, of either kind.
pub fn verbs_tcp(bytes: &[u8]) {
    let mut frames = Frames::default();
    frames.push(bytes);
    while let Ok(Some(frame)) = frames.next_frame(tcp::FRAME_BYTES_MAX) {
        comes_again(&frame);
    }
    if let Ok(frame) = tcp::decode(bytes) {
        comes_again(&frame);
    }
}

fn comes_again(frame: &Frame) {
    let mut bytes = Vec::new();
    match frame {
        Frame::Message(message) => tcp::put_message(message, &mut bytes),
        Frame::Packet(packet) => {
            tcp::put_packet(packet, &mut bytes).expect("what was decoded can be encoded");
        }
    }
    assert!(tcp::decode(&bytes[4..]).as_ref() == Ok(frame));
}

/// Byte rings, either side hostile: pairs of an operation (u8) and a number (u64).
pub fn rings(bytes: &[u8]) {
    let mut memory = vec![0u64; RING_BYTES / 8 + 8];
    let base = memory.as_mut_ptr().cast::<u8>();
    let base = base.wrapping_add(base.align_offset(64));
    // SAFETY: aligned; `RING_BYTES` from there are inside `memory`, which outlives the ring.
    let ring = unsafe { Ring::new(base) };
    for pair in bytes.chunks_exact(9) {
        let number = u64::from_le_bytes(pair[1..].try_into().expect("8 bytes"));
        match pair[0] % 8 {
            // Head, tail, and where a length will be looked for.
            at @ 0..3 => {
                // SAFETY: inside `memory` and aligned; the ring, too, uses atomics only.
                let word = unsafe { AtomicU64::from_ptr(base.add(usize::from(at) * 64).cast()) };
                word.store(number, Ordering::Relaxed);
            }
            3..6 => drop(
                ring.pop()
                    .map(|r| assert!(r.is_none_or(|r| r.len() < RING_BYTES))),
            ),
            _ => drop(ring.push(&vec![1; number as usize % RING_BYTES])),
        }
    }
}

/// A card that serves vfio-user clients at a socket, until it is told to stop.
pub struct Card {
    device: Arc<Device>,
    server: JoinHandle<()>,
    /// Where the socket is. libFuzzer never drops it: `ci/fuzz` removes what is left.
    directory: TempDir,
}

impl Card {
    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("card")
    }

    /// Ends it.
    pub fn stop(self) {
        self.device.stop();
        self.server.join().expect("the server lives");
    }
}

/// Starts such a card.
pub fn card() -> Card {
    let directory = TempDir::with_prefix("snaprig-fuzz-").expect("a directory");
    let memory = CardMemory::new(8 << 20).expect("memory");
    let device = Device::new(Arc::new(memory), 1, 1).expect("a device");
    let socket = directory.path().join("card");
    let server = device.serve(&socket).expect("a server");
    Card {
        device,
        server,
        directory,
    }
}

/// A client of the card: sends all bytes but the first, and a memfd or an eventfd as the first says.
/// It is answered until it is dropped, and the next one is served.
pub fn vfio_user(socket: &Path, bytes: &[u8]) {
    let Some((choice, requests)) = bytes.split_first() else {
        return;
    };
    let mut client = UnixStream::connect(socket).expect("a connection");
    client
        .set_read_timeout(Some(Duration::from_secs(60)))
        .expect("a timeout");
    let memory = CardMemory::new(128 << 10).expect("memory");
    let event = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let fds = [[memory.memfd(), event.as_fd()][usize::from(choice % 2)]];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(&fds));
    // What the socket's buffer does not hold is left out.
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = sendmsg(&client, &[IoSlice::new(requests)], &mut rights, flags);
    let _ = client.shutdown(Shutdown::Write);
    let ended = client.read_to_end(&mut Vec::new()).map_err(|e| e.kind());
    assert!(
        matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)),
        "{ended:?}"
    );
}
