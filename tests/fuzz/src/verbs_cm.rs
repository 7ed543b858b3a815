//! The connection manager of a process, whose program writes anything to its device, and with which other processes
//! exchange anything. Whatever they say, it does not panic, a channel is readable exactly while events wait on it, an
//! answer has the size of one of the kernel's, and what is sent can be read again.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use rustix::io::Errno;
use snaprig_verbs_cm::{
    Call, Channel, Command, Host, LinkId, Manager, NotConnected, Output, Port, Reply, Service,
    abi::{EventAnswer, QueryAddrAnswer},
    wire::{Endpoint, Message},
};
use snaprig_wire::frame;

use crate::bytes::Bytes;

/// What happens at most in one run.
const STEPS_MAX: usize = 200;
const CHANNELS: [Channel; 2] = [Channel(3), Channel(4)];

/// A machine on which all that is asked succeeds, or fails, as its next byte says.
struct AnyHost<'a, 'b> {
    bytes: &'a mut Bytes<'b>,
    next_link: &'a mut u64,
}

impl AnyHost<'_, '_> {
    fn link<E>(&mut self, error: E) -> Result<LinkId, E> {
        if self.bytes.u8() % 4 == 1 {
            return Err(error);
        }
        *self.next_link += 1;
        Ok(LinkId(*self.next_link))
    }
}

impl Host for AnyHost<'_, '_> {
    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || address.is_unspecified()
    }

    fn source_for(&self, target: SocketAddr) -> Option<IpAddr> {
        (target.port() % 8 != 7).then(|| target.ip())
    }

    fn port_at(&self, address: IpAddr) -> Result<Port, Errno> {
        if address.is_multicast() {
            return Err(Errno::NODEV);
        }
        Ok(Port {
            hca: 0,
            node_guid: 1,
            endpoint: Endpoint {
                lid: 1,
                gid: [1; 16],
            },
        })
    }

    fn mtu_bytes(&self) -> u32 {
        2048
    }

    fn is_taken(&self, service: &Service) -> bool {
        service.address.port() % 8 == 5
    }

    fn listen(&mut self, _service: &Service, _ipv6_only: bool) -> Result<LinkId, Errno> {
        self.link(Errno::ADDRINUSE)
    }

    fn connect(&mut self, _service: &Service, first: &Message) -> Result<LinkId, NotConnected> {
        can_be_read_again(first);
        let error = self
            .bytes
            .one_of(&[NotConnected::Refused, NotConnected::Failed]);
        self.link(error)
    }
}

fn can_be_read_again(message: &Message) {
    let bytes = frame::encode(message);
    assert!(frame::decode(&bytes).as_ref() == Ok(message));
}

/// Does what the manager says is to be done.
fn carry_out(manager: &mut Manager, readable: &mut BTreeSet<Channel>) {
    for output in manager.outputs() {
        match output {
            Output::Send(_, message) => can_be_read_again(&message),
            Output::Close(_) => {}
            Output::Readable(channel) => assert!(readable.insert(channel), "readable twice"),
            Output::Empty(channel) => assert!(readable.remove(&channel), "empty twice"),
        }
    }
}

/// What a program writes, behind its length (u16).
fn command(manager: &mut Manager, now_ns: u64, channel: Channel, host: &mut AnyHost<'_, '_>) {
    let bytes = host.bytes.u16().into();
    let written = host.bytes.some(bytes);
    let Ok(call) = Call::read(&written) else {
        return;
    };
    let option = call.command.option_address().map(|_| 1);
    match manager.command(now_ns, channel, &call.command, option, host) {
        Ok(Reply::Answer(answer)) => {
            let bytes_max = size_of::<EventAnswer>().max(size_of::<QueryAddrAnswer>());
            assert!(answer.len() <= bytes_max);
        }
        Ok(Reply::Wait) => assert!(matches!(call.command, Command::GetEvent(_))),
        Ok(Reply::Done) | Err(_) => {}
    }
}

/// Steps of a choice (u8), a time (u8, in milliseconds) and what the choice needs: a command, a message, a link.
pub fn verbs_cm(bytes: &[u8]) {
    let mut manager = Manager::new(1);
    let mut bytes = Bytes(bytes);
    let (mut readable, mut next_link, mut now_ns) = (BTreeSet::new(), 0, 0);
    for channel in CHANNELS {
        manager.open(channel);
    }
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        let choice = bytes.u8();
        now_ns += u64::from(bytes.u8()) * 1_000_000;
        let channel = CHANNELS[usize::from(choice / 64 % 2)];
        let link = LinkId(u64::from(choice / 8 % 8));
        let mut host = AnyHost {
            bytes: &mut bytes,
            next_link: &mut next_link,
        };
        match choice % 8 {
            0..=3 => command(&mut manager, now_ns, channel, &mut host),
            4 => {
                let bytes = host.bytes.u16().into();
                if let Ok(message) = frame::decode(&host.bytes.some(bytes)) {
                    manager.received(now_ns, link, message, &mut host);
                }
            }
            5 => {
                if let Ok(new) = host.link(()) {
                    manager.accepted(link, new);
                }
            }
            6 => manager.hung_up(now_ns, link),
            _ => {
                manager.expire(now_ns, &mut host);
                assert!(manager.next_timeout_ns().is_none_or(|due| due > now_ns));
            }
        }
        carry_out(&mut manager, &mut readable);
    }
    for channel in CHANNELS {
        manager.close(channel);
        carry_out(&mut manager, &mut readable);
    }
    assert!(readable.is_empty(), "events of nobody: {readable:?}");
    assert_eq!(manager.next_timeout_ns(), None, "timers of nobody");
}
