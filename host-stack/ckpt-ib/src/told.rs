//! What a process that has quiesced tells all others, in few bytes: most of it is of no interest to most of them, which pass over
//! it by numbers of queue pairs alone.

use serde::{Deserialize, Serialize};

use crate::{
    Name, Process,
    drain::{Outgoing, Said},
    names::{Aliases, Receiver},
};

/// What it says of its queue pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Of its queue pairs and of those that they send to: these are few, and long.
    ports: Vec<u64>,
    queue_pairs: Vec<Pair>,
    /// In the order of the queue pairs.
    to: Vec<To>,
}

/// A queue pair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Pair {
    port: u32,
    number: u32,
    receives: bool,
    /// How many it sends to.
    to: u32,
}

/// What it sends to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct To {
    port: u32,
    number: u32,
    shared: Option<u32>,
    messages: u64,
    longest: u64,
}

/// Most of what is not about a process, at a glance: what is here may be about it, all else is not.
#[derive(Clone, Debug)]
pub struct Near([u64; Self::WORDS]);

impl Near {
    /// Numbers of queue pairs are given one after the other: the last bits of those of a process are not many of all.
    const WORDS: usize = 256;

    /// A process listens for its own queue pairs, those at their other ends, and its shared receive queues of XRC.
    pub fn of<S, R>(process: &Process<S, R>) -> Self {
        let own = process
            .each_qp()
            .flat_map(|(_, qp)| [Some(qp.name), qp.peer]);
        let behind = process.behind.values().map(|behind| Some(behind.name));
        let names = own.chain(behind).flatten();
        names.map(|name| name.number).collect()
    }

    fn place(number: u32) -> (usize, u64) {
        let bits = u64::BITS as usize;
        let place = number as usize % (Self::WORDS * bits);
        (place / bits, 1 << (place % bits))
    }

    fn has(&self, number: u32) -> bool {
        let (word, bit) = Self::place(number);
        self.0[word] & bit != 0
    }

    fn has_receiver(&self, to: &To) -> bool {
        self.has(to.shared.unwrap_or(to.number))
    }
}

impl FromIterator<u32> for Near {
    fn from_iter<T: IntoIterator<Item = u32>>(numbers: T) -> Self {
        let mut near = Self([0; Self::WORDS]);
        for number in numbers {
            let (word, bit) = Self::place(number);
            near.0[word] |= bit;
        }
        near
    }
}

impl Told {
    /// Of what it says.
    pub fn new(all: &[Said]) -> Self {
        let mut told = Self::default();
        for said in all {
            let port = told.place_of(said.name.port);
            told.queue_pairs.push(Pair {
                port,
                number: said.name.number,
                receives: said.receives,
                to: said.to.len() as u32,
            });
            for outgoing in &said.to {
                let Receiver { qp, shared } = outgoing.to;
                let port = told.place_of(qp.port);
                told.to.push(To {
                    port,
                    number: qp.number,
                    shared,
                    messages: outgoing.messages,
                    longest: outgoing.longest,
                });
            }
        }
        told
    }

    fn place_of(&mut self, port: u64) -> u32 {
        let place = self.ports.iter().position(|there| *there == port);
        let place = place.unwrap_or_else(|| {
            self.ports.push(port);
            self.ports.len() - 1
        });
        place as u32
    }

    fn name(&self, port: u32, number: u32) -> Name {
        let port = self.ports.get(port as usize).copied().unwrap_or(0);
        Name { port, number }
    }

    /// Its queue pairs.
    pub fn names(&self) -> impl Iterator<Item = Name> + '_ {
        let pairs = self.queue_pairs.iter();
        pairs.map(|pair| self.name(pair.port, pair.number))
    }

    /// What may be about a process, with the names that all have for receivers.
    pub fn near<'a>(
        &'a self,
        near: &'a Near,
        aliases: &'a Aliases,
    ) -> impl Iterator<Item = Said> + 'a {
        let mut rest = &self.to[..];
        self.queue_pairs.iter().filter_map(move |pair| {
            let (to, others) = rest.split_at(rest.len().min(pair.to as usize));
            rest = others;
            let mut to = to.iter().filter(|to| near.has_receiver(to)).peekable();
            let is_near = near.has(pair.number) || to.peek().is_some();
            is_near.then(|| Said {
                name: self.name(pair.port, pair.number),
                receives: pair.receives,
                to: to.map(|to| self.outgoing(to, aliases)).collect(),
            })
        })
    }

    fn outgoing(&self, to: &To, aliases: &Aliases) -> Outgoing {
        Outgoing {
            to: Receiver {
                qp: aliases.canonical(self.name(to.port, to.number)),
                shared: to.shared,
            },
            messages: to.messages,
            longest: to.longest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(port: u64, number: u32) -> Name {
        Name { port, number }
    }

    fn outgoing(qp: Name, shared: Option<u32>, messages: u64) -> Outgoing {
        Outgoing {
            to: Receiver { qp, shared },
            messages,
            longest: 64,
        }
    }

    fn said() -> [Said; 3] {
        let one = |number, to| Said {
            name: name(1, number),
            receives: true,
            to,
        };
        [
            one(
                5,
                vec![outgoing(name(2, 7), None, 3), outgoing(name(3, 8), None, 4)],
            ),
            one(6, Vec::new()),
            one(9, vec![outgoing(name(2, 1), Some(4), 5)]),
        ]
    }

    #[test]
    fn who_listens_for_all_hears_all() {
        let told = Told::new(&said());
        let all: Near = (4..=9).collect();
        let heard: Vec<Said> = told.near(&all, &Aliases::default()).collect();
        assert_eq!(heard, said());
        let names: Vec<Name> = told.names().collect();
        assert_eq!(names, said().map(|said| said.name));
    }

    #[test]
    fn what_is_about_others_is_passed_over() {
        let told = Told::new(&said());
        let aliases = Aliases::new([(2, 20)]);
        let near = |numbers: &[u32]| -> Vec<Said> {
            let numbers: Near = numbers.iter().copied().collect();
            told.near(&numbers, &aliases).collect()
        };
        let seven = near(&[7]);
        assert_eq!(seven.len(), 1);
        assert_eq!(seven[0].to, [outgoing(name(20, 7), None, 3)]);
        let shared = near(&[4]);
        assert_eq!(shared[0].to, [outgoing(name(20, 1), Some(4), 5)]);
        assert_eq!(near(&[6])[0].name, name(1, 6), "it may be a peer");
        assert!(near(&[1, 2]).is_empty());
    }
}
