//! The platforms, by name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A platform by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Hardware virtualisation through /dev/kvm.
    Kvm,
    /// Traced host processes.
    Ptrace,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kvm => "kvm",
            Self::Ptrace => "ptrace",
        })
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "kvm" => Ok(Self::Kvm),
            "ptrace" => Ok(Self::Ptrace),
            _ => Err(format!(
                "{text}: no such platform; there are kvm and ptrace"
            )),
        }
    }
}
