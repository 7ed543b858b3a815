//! Planted bugs of verbs: those of the HCA.

use snaprig_hca::Canary as HcaBug;

use crate::scenario::{Canary, PlantedBug};

const fn canary(name: &'static str, what: &'static str) -> Canary {
    Canary { name, what }
}

/// A bug of the HCA, as one of this scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bug(pub HcaBug);

impl PlantedBug for Bug {
    const ALL: &'static [(Self, Canary)] = &[
        (
            Self(HcaBug::NoDuplicateCheck),
            canary(
                "repeated-request",
                "An HCA's responder carries out what came before.",
            ),
        ),
        (
            Self(HcaBug::GoBackForgetsOffset),
            canary(
                "forgotten-offset",
                "An HCA that sends again forgets where in the message that was.",
            ),
        ),
        (
            Self(HcaBug::AcknowledgeCompletesReads),
            canary(
                "early-read",
                "An HCA takes an acknowledgement for the data of a read.",
            ),
        ),
        (
            Self(HcaBug::FlushForgetsSends),
            canary(
                "lost-flush",
                "An HCA forgets what is in the send queue of a queue pair that fails.",
            ),
        ),
        (
            Self(HcaBug::NoTimer),
            canary(
                "lost-timer",
                "An HCA that waits for an acknowledgement sets no timer.",
            ),
        ),
        (
            Self(HcaBug::SlowTimer),
            canary(
                "slow-timer",
                "An HCA that waits for an acknowledgement does so far too long.",
            ),
        ),
    ];
}
