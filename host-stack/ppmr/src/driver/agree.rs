//! Which way the chunks of a connection go: both sides say what they can, and try it before anything depends on it.
//!
//! ```text
//! source                                          target
//!   | -- Offer { mode, tcp, its end of a pair } --> |
//!   |                                               |   its queue pair knows the source's
//!   | <- Answer { tcp, its end of a pair } -------- |
//!   |    its queue pair knows the target's          |
//!   |    tries to put nothing there                 |
//!   | -- Tried --------------------------------->   |
//!   |                                               |   tries to pull nothing from there
//!   | <- Tried ------------------------------------ |
//! ```
//!
//! Whoever is to move chunks tries it. What is not possible is said, and why, so that the source can say what to do.

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use snaprig_peers::frame::{receive, send};

use super::{
    memory::Memory,
    rdma::{Device, Pair},
    transport::{Port, Transport},
};
use crate::Mode;

/// No message of an agreement is longer.
const BYTES_MAX: usize = 1024;
/// More is not said of why something is not possible.
const WHY_MAX: usize = 200;

/// One end of two queue pairs that are to be connected, and what the other one needs to know of it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct End {
    /// The queue pair's number.
    pub number: u32,
    /// Of its first packet.
    pub psn: u32,
    /// Its port's.
    pub lid: u16,
    /// Its port's, if packets are to have one.
    pub gid: Option<[u8; 16]>,
    /// Its port's, as verbs have it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// How many RDMA reads it answers at one time.
    pub reads: u8,
    /// Where the pool is, whose first byte has address 0 in messages.
    pub address: u64,
    /// Its key.
    pub rkey: u32,
}

/// Which side of a connection a node is, and so what the other one may do to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Source(Mode),
    Target(Mode),
}

/// What a node can.
#[derive(Debug)]
pub struct Ways {
    is_tcp: bool,
    device: Result<Arc<Device>, String>,
}

#[derive(Serialize, Deserialize)]
struct Offer {
    mode: Mode,
    is_tcp: bool,
    rdma: Option<End>,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    is_tcp: bool,
    rdma: Result<End, String>,
}

impl Ways {
    /// What a node can that is to be these sides of connections. If it is to be RDMA, and cannot be, that is an error.
    pub fn new(
        transport: Transport,
        port: &Port,
        memory: &Arc<Memory>,
        sides: &[Side],
    ) -> io::Result<Self> {
        let device = match transport {
            Transport::Tcp => Err("this side takes TCP".into()),
            Transport::Auto | Transport::Rdma => Device::open(port, memory, sides),
        };
        match (transport, &device) {
            (Transport::Rdma, Err(why)) => Err(impossible(why)),
            _ => Ok(Self {
                is_tcp: transport != Transport::Rdma,
                device,
            }),
        }
    }

    /// A source's part: a queue pair that is connected; none: chunks go over a socket.
    pub fn offer(&self, with: &mut (impl Read + Write), mode: Mode) -> io::Result<Option<Pair>> {
        let own = self.pair(Side::Source(mode));
        let offer = Offer {
            mode,
            is_tcp: self.is_tcp,
            rdma: own.as_ref().ok().map(Pair::end),
        };
        send(with, &offer)?;
        let answer: Answer = receive(with, BYTES_MAX)?;
        let other = answer.rdma.map_err(|why| format!("the target: {why}"));
        let pair = match (own, other) {
            (Ok(pair), Ok(end)) => {
                let pair = pair.connect(&end).and_then(|pair| match mode {
                    Mode::Push => pair.probe(),
                    Mode::Pull => Ok(pair),
                });
                send(with, &pair.is_ok())?;
                agreed(pair, receive(with, BYTES_MAX)?)
            }
            (Err(why), _) | (_, Err(why)) => Err(why),
        };
        self.decide(pair, answer.is_tcp)
    }

    /// A target's part.
    pub fn answer(&self, with: &mut (impl Read + Write)) -> io::Result<Option<Pair>> {
        let offer: Offer = receive(with, BYTES_MAX)?;
        let pair = match offer.rdma {
            Some(end) => self
                .pair(Side::Target(offer.mode))
                .and_then(|pair| pair.connect(&end)),
            None => Err("the source has no device".into()),
        };
        let short = |why: &String| why.chars().take(WHY_MAX).collect();
        let answer = Answer {
            is_tcp: self.is_tcp,
            rdma: pair.as_ref().map(Pair::end).map_err(short),
        };
        send(with, &answer)?;
        let pair = match pair {
            Ok(pair) => {
                let could: bool = receive(with, BYTES_MAX)?;
                let pair = match offer.mode {
                    Mode::Pull if could => pair.probe(),
                    _ => Ok(pair),
                };
                send(with, &pair.is_ok())?;
                agreed(pair, could)
            }
            Err(why) => Err(why),
        };
        self.decide(pair, offer.is_tcp)
    }

    fn pair(&self, side: Side) -> Result<Pair, String> {
        let device = self.device.as_ref().map_err(Clone::clone)?;
        Pair::new(device, side)
    }

    fn decide(&self, pair: Result<Pair, String>, is_tcp: bool) -> io::Result<Option<Pair>> {
        match pair {
            Ok(pair) => Ok(Some(pair)),
            Err(_) if self.is_tcp && is_tcp => Ok(None),
            Err(why) => Err(impossible(&why)),
        }
    }
}

fn agreed(pair: Result<Pair, String>, other_could: bool) -> Result<Pair, String> {
    pair.and_then(|pair| match other_could {
        true => Ok(pair),
        false => Err("the other side does not reach this one".into()),
    })
}

fn impossible(why: &str) -> io::Error {
    let what = format!(
        "chunks cannot go by RDMA: {why}; look for a port that is active (ibv_devinfo) at both sides, or let both take TCP"
    );
    io::Error::new(io::ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::net::UnixStream, thread};

    fn agree(tcp: [bool; 2]) -> [io::Result<Option<Pair>>; 2] {
        let [source, target] = tcp.map(|is_tcp| Ways {
            is_tcp,
            device: Err("no device".into()),
        });
        let (mut own, mut peer) = UnixStream::pair().unwrap();
        let target = thread::spawn(move || target.answer(&mut peer));
        [source.offer(&mut own, Mode::Pull), target.join().unwrap()]
    }

    #[test]
    fn without_a_device_it_is_tcp_or_both_say_why_not() {
        assert!(agree([true; 2]).iter().all(|way| matches!(way, Ok(None))));
        for tcp in [[true, false], [false, true], [false, false]] {
            for way in agree(tcp) {
                let error = way.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
                assert!(error.to_string().contains("device"), "{error}");
            }
        }
    }
}
