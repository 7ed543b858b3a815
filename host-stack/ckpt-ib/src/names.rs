//! Virtual names and real ones (section 3.2): what the program calls things, and what the libibverbs below calls them now.
//!
//! A name is what the thing was called below when it was made. So until the first restart both are the same, and what is in
//! no table is called what it is called. After a restart, what is made new may be called below as something older is called
//! above: then it is made again, until its name is free ([`Names::is_given`]). So nobody has to ask anybody about a name
//! outside of a checkpoint's phases.
//!
//! Keys of memory are names within a protection domain of a process alone (3.2.2); numbers of queue pairs are names at a
//! port. A queue pair that was made after a restart is in no table, and so neither is its domain: then memory is looked for by
//! its key among all at the port, for in practice an HCA gives a key once at a time, and what is made after a restart is made
//! so.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Canary;

/// A queue pair as all of a job call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Name {
    /// The port that the program believes it is at: its GUID. A peer's is its LID or a part of its GID, as its address says
    /// it, until all have said whose those are ([`Aliases`]).
    pub port: u64,
    /// Its number there.
    pub number: u32,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "queue pair {:#x} at port {:#x}", self.number, self.port)
    }
}

/// Whom a message goes to: a queue pair, or, by one that receives for XRC, a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Receiver {
    /// The queue pair.
    pub qp: Name,
    /// The number of a shared receive queue at its port.
    pub shared: Option<u32>,
}

impl Receiver {
    /// What the job calls the shared receive queue, if it is one.
    pub fn shared_name(&self) -> Option<Name> {
        let port = self.qp.port;
        self.shared.map(|number| Name { port, number })
    }
}

impl From<Name> for Receiver {
    fn from(qp: Name) -> Self {
        Self { qp, shared: None }
    }
}

/// A GID, as it is sent.
pub type Gid = [u8; 16];

/// What of a GID names a port, where there is no LID: its interface.
pub fn interface_of(gid: Gid) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = gid;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

/// GUIDs of ports by what else they are called: LIDs, and interfaces of GIDs.
#[derive(Clone, Debug, Default)]
pub struct Aliases(BTreeMap<u64, u64>);

impl Aliases {
    /// From what all processes say of ports that they use.
    pub fn new(all: impl IntoIterator<Item = (u64, u64)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// What all call a queue pair.
    pub fn canonical(&self, name: Name) -> Name {
        let port = self.0.get(&name.port).copied().unwrap_or(name.port);
        Name { port, ..name }
    }
}

/// A protection domain of a process; no two of a job have one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Domain(pub u64);

/// What a process tells the others when it has made everything again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Published {
    /// Ports: GUID that the program knows, LID, GUID, and LID now.
    pub ports: Vec<Port>,
    /// GUIDs of ports, their GIDs that the program knows, and what each is now.
    pub gids: Vec<(u64, Gid, Gid)>,
    /// Queue pairs, where they are now, and their domains.
    pub queue_pairs: Vec<(Name, Name, Domain)>,
    /// Shared receive queues of XRC, their numbers now, and their domains.
    pub shared: Vec<(Name, u32, Domain)>,
    /// Memory.
    pub keys: Vec<Key>,
    /// Windows: a key of each, and what that is now, or will be when the window is bound again.
    pub windows: Vec<Key>,
}

/// Memory that a program has registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Its protection domain.
    pub domain: Domain,
    /// GUID of the first port of its HCA, as the program knows it.
    pub port: u64,
    /// What others call it.
    pub key: u32,
    /// What it is called now.
    pub real: u32,
}

/// The bits of a window's key that change with each binding.
const CHANGING: u32 = 0xff;

/// The others.
fn staying(key: u32) -> u32 {
    key & !CHANGING
}

/// What a key of a window is, if its key `of` is `now`: each binding changes both alike.
pub fn window_key(key: u32, of: u32, now: u32) -> u32 {
    staying(now) | now.wrapping_add(key.wrapping_sub(of)) & CHANGING
}

/// A port that a program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// GUID, as the program knows it.
    pub guid: u64,
    /// LID, as the program knows it.
    pub lid: u16,
    /// GUID of the port that is used for it now.
    pub real_guid: u64,
    /// Its LID.
    pub real_lid: u16,
    /// What it can carry (`enum ibv_mtu`).
    pub mtu: u32,
}

/// Names of one kind: what each is now, and what that is called. Where several have become one, the first is what it is called.
#[derive(Clone, Debug)]
struct Both<T> {
    real: BTreeMap<T, T>,
    called: BTreeMap<T, T>,
}

impl<T> Default for Both<T> {
    fn default() -> Self {
        Self {
            real: BTreeMap::new(),
            called: BTreeMap::new(),
        }
    }
}

impl<T: Ord + Copy> Both<T> {
    fn insert(&mut self, name: T, real: T) {
        self.real.insert(name, real);
        self.called.entry(real).or_insert(name);
    }

    fn real(&self, name: T) -> T {
        self.real.get(&name).copied().unwrap_or(name)
    }

    fn called(&self, real: T) -> T {
        self.called.get(&real).copied().unwrap_or(real)
    }
}

/// What all of a job have published.
#[derive(Clone, Debug, Default)]
pub struct Names {
    ports: BTreeMap<u64, Port>,
    lids: Both<u16>,
    gids: Both<Gid>,
    aliases: Aliases,
    queue_pairs: BTreeMap<Name, (Name, Domain)>,
    called: BTreeMap<Name, Name>,
    shared: BTreeMap<Name, (u32, Domain)>,
    keys: BTreeMap<(Domain, u32), u32>,
    /// Windows, by the bits of their keys that stay: a key of each, and what that is now.
    windows: BTreeMap<(Domain, u32), (u32, u32)>,
    /// By port; none where it is not known which of several.
    windows_at: BTreeMap<(u64, u32), Option<(u32, u32)>>,
    /// By port; none where it is not known which of several.
    keys_at: BTreeMap<(u64, u32), Option<u32>>,
    given: BTreeSet<(u64, u32)>,
    canary: Option<Canary>,
}

impl Names {
    /// Names of all processes.
    pub fn new(all: impl IntoIterator<Item = Published>, canary: Option<Canary>) -> Self {
        let mut names = Self {
            canary,
            ..Self::default()
        };
        for one in all {
            for port in &one.ports {
                names.ports.insert(port.guid, *port);
                names.aliases.0.insert(port.lid.into(), port.guid);
                names.lids.insert(port.lid, port.real_lid);
            }
            for (guid, gid, real) in one.gids {
                names.aliases.0.insert(interface_of(gid), guid);
                names.gids.insert(gid, real);
            }
            for (name, real, domain) in one.queue_pairs {
                names.queue_pairs.insert(name, (real, domain));
                names.called.insert(real, name);
                names.given.insert((name.port, name.number));
            }
            for (name, real, domain) in one.shared {
                names.shared.insert(name, (real, domain));
            }
            for key in one.keys {
                let domain = names.of(key.domain);
                names.keys.insert((domain, key.key), key.real);
                let at = names.keys_at.entry((key.port, key.key));
                at.and_modify(|real| *real = None).or_insert(Some(key.real));
            }
            for window in one.windows {
                let both = (window.key, window.real);
                let domain = names.of(window.domain);
                let bits = staying(window.key);
                names.windows.insert((domain, bits), both);
                let at = names.windows_at.entry((window.port, bits));
                at.and_modify(|both| *both = None).or_insert(Some(both));
            }
        }
        names
    }

    fn of(&self, domain: Domain) -> Domain {
        match self.canary {
            Some(Canary::KeyWithoutDomain) => Domain(0),
            _ => domain,
        }
    }

    /// What all call a queue pair.
    pub fn canonical(&self, name: Name) -> Name {
        self.aliases.canonical(name)
    }

    /// What a LID is now.
    pub fn lid(&self, lid: u16) -> u16 {
        self.lids.real(lid)
    }

    /// What the program calls a LID.
    pub fn called_lid(&self, real: u16) -> u16 {
        self.lids.called(real)
    }

    /// What a GID is now.
    pub fn gid(&self, gid: Gid) -> Gid {
        self.gids.real(gid)
    }

    /// What the program calls a GID.
    pub fn called_gid(&self, real: Gid) -> Gid {
        self.gids.called(real)
    }

    /// What the job calls a queue pair that is there now, and the LID of its port.
    pub fn called(&self, real_lid: u16, number: u32) -> Option<(Name, u16)> {
        let port = self.ports.values().find(|port| port.real_lid == real_lid)?;
        let real = Name {
            port: port.real_guid,
            number,
        };
        let name = self.called.get(&real)?;
        Some((*name, self.ports.get(&name.port)?.lid))
    }

    /// What a port can carry now, if it is known.
    pub fn mtu(&self, port: u64) -> Option<u32> {
        self.ports.get(&port).map(|port| port.mtu)
    }

    /// Whether a queue pair is there now.
    pub fn has(&self, name: Name) -> bool {
        self.queue_pairs.contains_key(&self.aliases.canonical(name))
    }

    /// Where a queue pair is now.
    pub fn queue_pair(&self, name: Name) -> Name {
        let name = self.aliases.canonical(name);
        if let Some((real, _)) = self.queue_pairs.get(&name) {
            return *real;
        }
        let port = self.ports.get(&name.port);
        Name {
            port: port.map_or(name.port, |port| port.real_guid),
            ..name
        }
    }

    /// What the job calls a queue pair with this number now, at a port that the program calls so.
    pub fn called_at(&self, port: u64, number: u32) -> Name {
        let real_port = self.ports.get(&port).map_or(port, |port| port.real_guid);
        let real = Name {
            port: real_port,
            number,
        };
        let called = self.called.get(&real).copied();
        called.unwrap_or(Name { port, number })
    }

    /// What the number of a shared receive queue of XRC is now.
    pub fn shared(&self, name: Name) -> u32 {
        let name = self.aliases.canonical(name);
        self.shared
            .get(&name)
            .map_or(name.number, |(real, _)| *real)
    }

    /// Whether a number that a new shared receive queue of XRC has below is what another one is called at this port.
    pub fn is_shared_given(&self, port: u64, number: u32) -> bool {
        self.canary != Some(Canary::NameGivenTwice)
            && self.shared.contains_key(&Name { port, number })
    }

    /// What a peer's memory is called now: `to` is what a request goes to, which has a domain.
    pub fn remote_key(&self, to: impl Into<Receiver>, key: u32) -> u32 {
        let mut to = to.into();
        to.qp = self.aliases.canonical(to.qp);
        // One that receives for XRC has no domain: it is the shared receive queue's that holds.
        let domain = match to.shared_name() {
            Some(name) => self.shared.get(&name).map(|(_, domain)| *domain),
            None => self.queue_pairs.get(&to.qp).map(|(_, domain)| *domain),
        };
        let (real, window) = match domain {
            Some(domain) => {
                let domain = self.of(domain);
                let window = self.windows.get(&(domain, staying(key)));
                (self.keys.get(&(domain, key)).copied(), window.copied())
            }
            None => {
                let window = self.windows_at.get(&(to.qp.port, staying(key)));
                let real = self.keys_at.get(&(to.qp.port, key));
                (real.copied().flatten(), window.copied().flatten())
            }
        };
        let in_window = window.map(|(of, now)| window_key(key, of, now));
        real.or(in_window).unwrap_or(key)
    }

    /// Whether a number that a new queue pair has below is what another one is called at this port.
    pub fn is_given(&self, port: u64, number: u32) -> bool {
        self.canary != Some(Canary::NameGivenTwice) && self.given.contains(&(port, number))
    }

    /// Whether a key that new memory has below is what other memory is called at this port.
    pub fn is_key_given(&self, port: u64, key: u32) -> bool {
        let of_window = self.windows_at.contains_key(&(port, staying(key)));
        self.canary != Some(Canary::NameGivenTwice)
            && (of_window || self.keys_at.contains_key(&(port, key)))
    }

    /// Whether one of the keys that a new window may have below is what other memory is called at this port.
    pub fn is_window_given(&self, port: u64, key: u32) -> bool {
        let all = (port, key & !CHANGING)..=(port, key | CHANGING);
        self.canary != Some(Canary::NameGivenTwice)
            && (self.is_key_given(port, key) || self.keys_at.range(all).next().is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Name = Name {
        port: 1,
        number: 0x11,
    };
    const B: Name = Name {
        port: 2,
        number: 0x11,
    };

    fn names(windows: Vec<Key>) -> Names {
        let one = |name: Name, real: u32, domain: u64, key: u32| Published {
            ports: vec![Port {
                guid: name.port,
                lid: name.port as u16,
                real_guid: 9,
                real_lid: 90,
                mtu: 5,
            }],
            gids: Vec::new(),
            shared: Vec::new(),
            queue_pairs: vec![(
                name,
                Name {
                    port: 9,
                    number: real,
                },
                Domain(domain),
            )],
            keys: vec![Key {
                domain: Domain(domain),
                port: name.port,
                key: 5,
                real: key,
            }],
            windows: Vec::new(),
        };
        let a = Published {
            windows,
            ..one(A, 0x21, 1, 50)
        };
        Names::new([a, one(B, 0x22, 2, 60)], None)
    }

    #[test]
    fn one_key_is_two_in_two_domains() {
        let names = names(Vec::new());
        assert_eq!((names.remote_key(A, 5), names.remote_key(B, 5)), (50, 60));
        assert_eq!(names.remote_key(A, 6), 6, "made after the restart");
    }

    #[test]
    fn who_was_made_after_a_restart_has_keys_of_before() {
        let names = names(Vec::new());
        let new = Name { port: 2, number: 3 };
        assert_eq!(
            (names.remote_key(new, 5), names.remote_key(new, 6)),
            (60, 6)
        );
    }

    #[test]
    fn what_moved_to_one_port_is_told_apart() {
        let names = names(Vec::new());
        let (a, b) = (names.queue_pair(A), names.queue_pair(B));
        assert_eq!((a.port, a.number, b.port, b.number), (9, 0x21, 9, 0x22));
        let new = Name { port: 1, number: 3 };
        assert_eq!(names.queue_pair(new), Name { port: 9, number: 3 });
    }

    #[test]
    fn keys_of_windows_change_as_they_are_bound() {
        let names = names(vec![Key {
            domain: Domain(1),
            port: A.port,
            key: 0x1203,
            real: 0x34ff,
        }]);
        let key = |key| names.remote_key(A, key);
        assert_eq!(
            (key(0x1203), key(0x1204), key(0x1202)),
            (0x34ff, 0x3400, 0x34fe)
        );
        assert_eq!(names.remote_key(B, 0x1203), 0x1203, "another domain");
        assert!(names.is_key_given(A.port, 0x12ff) && names.is_window_given(A.port, 0x12aa));
        assert!(names.is_window_given(A.port, 0xfe) && !names.is_window_given(A.port, 0x34fe));
    }

    #[test]
    fn names_that_are_given_are_known() {
        let names = names(Vec::new());
        assert!(names.is_given(1, 0x11) && !names.is_given(1, 0x21));
        assert!(names.is_key_given(1, 5) && !names.is_key_given(1, 50));
    }
}
