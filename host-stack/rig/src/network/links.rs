//! The link between the host and its cards: virtual Ethernet, whose other end is in a network namespace that all cards of a
//! rig share. So a card has ports of its own, whatever the host's programs are bound to, and cards reach each other there.
//!
//! The namespace is held by the brokers' threads and by sockets that cards have; the kernel removes it with the last of them,
//! and the link with it.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    process::{Command, Stdio},
    thread,
};

use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe},
};

use super::{HOST_ADDRESS, NetworkError, PREFIX, card_address};

/// Where the namespace of a thread is found.
const OWN_NAMESPACE: &str = "/proc/thread-self/ns/net";
/// What both ends are called.
const INTERFACE: &str = "micbr0";

/// The namespace of the cards.
pub(super) struct Namespace(OwnedFd);

/// The host's end.
pub(super) struct Link(());

impl Namespace {
    /// A new one, with nothing in it.
    pub(super) fn new() -> Result<Self, NetworkError> {
        // In a thread of its own, for it is the thread that goes there.
        let made = thread::spawn(|| {
            // SAFETY: `unshare_unsafe` is unsafe as a thread may lose the files or the memory that others count on; a
            // network is neither.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            Ok::<_, io::Error>(File::open(OWN_NAMESPACE)?.into())
        });
        let made = made.join().unwrap_or_else(|_| Err(Errno::IO.into()));
        made.map(Self)
            .map_err(|error: io::Error| match error.kind() {
                io::ErrorKind::PermissionDenied => NetworkError::NotAllowed,
                _ => NetworkError::Namespace(error),
            })
    }

    /// Has the calling thread, and what it starts, be there.
    pub(super) fn enter(&self) -> io::Result<()> {
        let kind = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(self.0.as_fd(), kind)?)
    }

    /// Its name for other programs, for as long as it is open here.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }
}

impl Link {
    /// The one from this namespace, which is the host's, to the one of so many cards.
    pub(super) fn make(cards: u16, namespace: &Namespace) -> Result<Self, NetworkError> {
        // Who has it is not asked to give it up.
        if ip(&["link", "show", "dev", INTERFACE], "").is_ok() {
            let interface = INTERFACE;
            return Err(NetworkError::Taken { interface });
        }
        // What there is of it goes with this, also if there is not to be more.
        let link = Self(());
        batch(&end_of_host(&namespace.path()))?;
        let entered = thread::scope(|scope| {
            let thread = scope.spawn(|| {
                namespace.enter().map_err(NetworkError::Namespace)?;
                batch(&end_of_cards(cards))
            });
            let panicked = |_| Err(NetworkError::Namespace(Errno::IO.into()));
            thread.join().unwrap_or_else(panicked)
        });
        entered.map(|()| link)
    }
}

/// The host's end, whose other is `there`. In a namespace that is as new as the cards' lo is down, by which the host's programs
/// reach its addresses.
fn end_of_host(there: &str) -> String {
    format!(
        "link set lo up\n\
         link add {INTERFACE} type veth peer name {INTERFACE} netns {there}\n\
         address add {HOST_ADDRESS}/{PREFIX} dev {INTERFACE}\n\
         link set {INTERFACE} up\n"
    )
}

/// The cards' end. What is for another card stays there.
fn end_of_cards(cards: u16) -> String {
    let address = |node| {
        let card = card_address(node);
        format!("address add {card}/{PREFIX} dev {INTERFACE}\n")
    };
    let addresses: String = (1..=cards).map(address).collect();
    format!("link set lo up\n{addresses}link set {INTERFACE} up\n")
}

impl Drop for Link {
    /// The kernel would remove it by and by; who starts another rig at once finds it gone.
    fn drop(&mut self) {
        // One that was not made is not there.
        let _ = ip(&["link", "delete", "dev", INTERFACE], "");
    }
}

fn batch(commands: &str) -> Result<(), NetworkError> {
    ip(&["-batch", "-"], commands)
}

fn ip(arguments: &[&str], input: &str) -> Result<(), NetworkError> {
    let mut child = Command::new("ip")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(NetworkError::NoIp)?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that ends before it has read all says why.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(NetworkError::NoIp)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(NetworkError::Ip { said })
        }
    }
}
