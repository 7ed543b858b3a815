//! Planted bugs of those who stand between programs and their HCA.

use snaprig_ckpt_ib::Canary as Planted;

use crate::scenario::{Canary, PlantedBug};

const fn canary(name: &'static str, what: &'static str) -> Canary {
    Canary { name, what }
}

/// A bug of the machines, as one of this scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug(pub Planted);

impl PlantedBug for Bug {
    const ALL: &'static [(Self, Canary)] = &[
        (
            Self(Planted::DrainsOnce),
            canary(
                "drains-once",
                "Completion queues are emptied once before a checkpoint, whatever is under way.",
            ),
        ),
        (
            Self(Planted::ForgetsUnsignaled),
            canary(
                "forgets-unsignaled",
                "A request that asks for no completion is taken to be done when it is posted.",
            ),
        ),
        (
            Self(Planted::KeyWithoutDomain),
            canary(
                "key-without-domain",
                "A remote key is translated as if it were one name in all of a job.",
            ),
        ),
        (
            Self(Planted::NameGivenTwice),
            canary(
                "name-given-twice",
                "What is made after a restart may have the name of something older.",
            ),
        ),
        (
            Self(Planted::WritesUntracked),
            canary(
                "writes-untracked",
                "An image that builds on an earlier copy lacks what peers have written since by RDMA.",
            ),
        ),
        (
            Self(Planted::ReceivesLeft),
            canary(
                "receives-left",
                "Who stays when its peer moves leaves its receives in the queue of before.",
            ),
        ),
        (
            Self(Planted::EarlyLost),
            canary(
                "early-lost",
                "Who stays loses what a peer that has moved sends before it has heard that it has.",
            ),
        ),
        (
            Self(Planted::RoomTold),
            canary(
                "room-told",
                "The program sees completions that were asked for to make room in a short send queue.",
            ),
        ),
    ];
}
