//! What snaprig is used for, and what each of these needs.

use clap::ValueEnum;
use serde::Serialize;

use super::{Row, Verdict};

/// What somebody wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Purpose {
    /// Programs that use InfiniBand
    Verbs,
    /// Cards, and programs on them
    Cards,
    /// COI and SCIF programs, which use cards
    Offload,
    /// Simulated campaigns
    Sim,
    /// Checkpoints of programs, and restarts
    Ckpt,
}

impl Purpose {
    pub(super) const ALL: [Self; 5] = [
        Self::Verbs,
        Self::Cards,
        Self::Offload,
        Self::Sim,
        Self::Ckpt,
    ];

    pub(super) fn subject(self) -> &'static str {
        match self {
            Self::Verbs => "Verbs programs",
            Self::Cards => "Cards",
            Self::Offload => "Offload programs",
            Self::Sim => "Simulations",
            Self::Ckpt => "Checkpoints",
        }
    }

    /// Without these it does not work: of each, one.
    pub(super) fn needs(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::Verbs => &[&["memfd"], &["libibverbs"], &["fabric"]],
            Self::Cards => &[&["memfd"], &["kvm", "ptrace"]],
            Self::Offload => &[
                &["memfd"],
                &["kvm", "ptrace"],
                &["libscif"],
                &["libcoi_host"],
                &["libcoi_device"],
            ],
            Self::Sim => &[],
            Self::Ckpt => &[&["checkpoint"], &["restart"]],
        }
    }

    /// With these it works better, or more of it does.
    fn likes(self) -> &'static [&'static str] {
        match self {
            Self::Verbs => &[
                "userfaultfd",
                "process_vm",
                "pidfd",
                "locked mem",
                "librdmacm",
                "ibv_devinfo",
                "perftest",
            ],
            Self::Cards => &[
                "io_uring",
                "userfaultfd",
                "PAGEMAP_SCAN",
                "vfio",
                "seccomp",
                "memory",
                "open files",
            ],
            Self::Offload => &[
                "io_uring",
                "userfaultfd",
                "PAGEMAP_SCAN",
                "seccomp",
                "memory",
                "open files",
                "gcc",
            ],
            Self::Sim => &["memory"],
            Self::Ckpt => &["userfaultfd", "post-copy", "PAGEMAP_SCAN"],
        }
    }

    /// Whether what is checked is of interest for it.
    pub(super) fn is_served_by(self, what: &str) -> bool {
        self.likes().contains(&what) || self.needs().iter().any(|one| one.contains(&what))
    }

    pub(super) fn verdict(self, rows: &[Row]) -> Verdict {
        let is_ok = |what: &&str| rows.iter().any(|row| row.ok && row.what == *what);
        let missing = self.needs().iter().filter(|one| !one.iter().any(is_ok));
        let missing: Vec<_> = missing
            .map(|one| match one {
                ["kvm", "ptrace"] => "kvm or ptrace",
                one => one[0],
            })
            .collect();
        Verdict {
            purpose: self,
            can: missing.is_empty(),
            missing,
        }
    }
}
