//! What a process that has quiesced tells all others, in few bytes: most of it is of no interest to most of them, which pass over
//! it by numbers of queue pairs alone, and read no more of it.

use serde::{Deserialize, Serialize};
use thiserror::Error;

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
    /// Of its queue pairs.
    numbers: Numbers,
    /// Of those that they send to, in the order of the queue pairs; of shared receive queues, where it is those.
    receivers: Numbers,
    /// [`Rest`], for those that this is about.
    #[serde(with = "serde_bytes")]
    rest: Vec<u8>,
}

/// What another process has told makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("what another process says of its queue pairs cannot be read")]
pub struct Unreadable;

/// Numbers, of four bytes each: they are passed over without being read one by one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Numbers(#[serde(with = "serde_bytes")] Vec<u8>);

impl Numbers {
    fn push(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (numbers, _) = self.0.as_chunks();
        numbers.iter().map(|bytes| u32::from_le_bytes(*bytes))
    }
}

/// What there is beside the numbers, in their order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Rest {
    queue_pairs: Vec<Pair>,
    to: Vec<To>,
}

/// A queue pair.
#[derive(Debug, Serialize, Deserialize)]
struct Pair {
    port: u32,
    receives: bool,
    /// How many it sends to.
    to: u32,
}

/// What it sends to another one.
#[derive(Debug, Serialize, Deserialize)]
struct To {
    port: u32,
    /// Of the queue pair, where the receiver's number is that of a shared receive queue.
    by: Option<u32>,
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
        let (mut told, mut rest) = (Self::default(), Rest::default());
        for said in all {
            told.numbers.push(said.name.number);
            rest.queue_pairs.push(Pair {
                port: told.place_of(said.name.port),
                receives: said.receives,
                to: said.to.len() as u32,
            });
            for outgoing in &said.to {
                let Receiver { qp, shared } = outgoing.to;
                told.receivers.push(shared.unwrap_or(qp.number));
                rest.to.push(To {
                    port: told.place_of(qp.port),
                    by: shared.map(|_| qp.number),
                    messages: outgoing.messages,
                    longest: outgoing.longest,
                });
            }
        }
        told.rest =
            postcard::to_allocvec(&rest).expect("it has only types that postcard can write");
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

    fn rest(&self) -> Result<Rest, Unreadable> {
        postcard::from_bytes(&self.rest).map_err(|_| Unreadable)
    }

    /// Its queue pairs.
    pub fn names(&self) -> Result<Vec<Name>, Unreadable> {
        let pairs = self.rest()?.queue_pairs;
        let named = self.numbers.iter().zip(pairs);
        Ok(named
            .map(|(number, pair)| self.name(pair.port, number))
            .collect())
    }

    /// What may be about a process, with the names that all have for receivers.
    pub fn near(&self, near: &Near, aliases: &Aliases) -> Result<Vec<Said>, Unreadable> {
        let mut about = self.numbers.iter().chain(self.receivers.iter());
        if !about.any(|number| near.has(number)) {
            return Ok(Vec::new());
        }
        let Rest { queue_pairs, to } = self.rest()?;
        let mut receivers = self.receivers.iter().zip(to);
        let pairs = self.numbers.iter().zip(queue_pairs);
        let said = pairs.filter_map(|(number, pair)| {
            let to = receivers.by_ref().take(pair.to as usize);
            let to = to.filter(|(receiver, _)| near.has(*receiver));
            let to: Vec<_> = to
                .map(|(receiver, to)| self.outgoing(receiver, &to, aliases))
                .collect();
            (near.has(number) || !to.is_empty()).then(|| Said {
                name: self.name(pair.port, number),
                receives: pair.receives,
                to,
            })
        });
        Ok(said.collect())
    }

    fn outgoing(&self, receiver: u32, to: &To, aliases: &Aliases) -> Outgoing {
        let qp = self.name(to.port, to.by.unwrap_or(receiver));
        Outgoing {
            to: Receiver {
                qp: aliases.canonical(qp),
                shared: to.by.map(|_| receiver),
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
        let heard = told.near(&all, &Aliases::default());
        assert_eq!(heard, Ok(said().to_vec()));
        let names = told.names();
        assert_eq!(names, Ok(said().map(|said| said.name).to_vec()));
    }

    #[test]
    fn what_is_about_others_is_passed_over() {
        let told = Told::new(&said());
        let aliases = Aliases::new([(2, 20)]);
        let near = |numbers: &[u32]| -> Vec<Said> {
            let numbers: Near = numbers.iter().copied().collect();
            told.near(&numbers, &aliases).expect("it was told")
        };
        let seven = near(&[7]);
        assert_eq!(seven.len(), 1);
        assert_eq!(seven[0].to, [outgoing(name(20, 7), None, 3)]);
        let shared = near(&[4]);
        assert_eq!(shared[0].to, [outgoing(name(20, 1), Some(4), 5)]);
        assert_eq!(near(&[6])[0].name, name(1, 6), "it may be a peer");
        assert!(near(&[1, 2]).is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_found_out_by_those_that_it_is_about() {
        let mut told = Told::new(&said());
        told.rest.truncate(3);
        let near = |number| told.near(&Near::from_iter([number]), &Aliases::default());
        assert_eq!(near(5), Err(Unreadable));
        assert_eq!(near(100), Ok(Vec::new()));
        assert_eq!(told.names(), Err(Unreadable));
    }
}
