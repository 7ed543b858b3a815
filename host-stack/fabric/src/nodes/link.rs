//! How fast a node's link to the bridge is: without a limit, what goes from node to node goes as fast as the machine copies it.
//!
//! A token bucket (tc-tbf(8)) at both ends of a node's interface, so that each direction has the rate, as a switched Ethernet has.
//! HCAs of one fabric have no part in it: their packets do not go over the bridge, unless each node has a daemon of its own
//! ([`Nodes::over_tcp`](super::Nodes::over_tcp)).
//!
//! What must stay true: the kernel drops it with the namespaces that the interfaces are in.

use std::{fmt, io, process::Command, str::FromStr};

use super::namespaces::{Namespaces, into_network};

/// How long the bucket takes to fill: what may go at once after a pause, in time.
const BURST: u64 = 1000;
/// Least size of the bucket: segments that the kernel has not yet cut into packets are as large.
const BURST_BYTES_MIN: u64 = 64 << 10;
/// How long a packet waits at most, before it is dropped.
const QUEUE: &str = "10ms";

/// A rate in bits a second, which is written as tc(8) has it: `1gbit`, `100mbit`, `64kbit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitRate {
    bits_per_second: u64,
}

/// It is no rate.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}: not a rate; write 1gbit, 100mbit or 64kbit")]
pub struct NoRate(String);

/// Why links have no limit.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Nodes have no links.
    #[error(
        "nodes share this machine's network, so there is no link to limit: that takes root and ip(8)"
    )]
    NoNetworks,
    /// There is nothing that sets it.
    #[error("tc(8) is not installed (package iproute2)")]
    NoTc(#[source] io::Error),
    /// The kernel does not have it.
    #[error("{command}: {why}")]
    Refused {
        /// What was tried.
        command: String,
        /// What tc says.
        why: String,
    },
}

const UNITS: [(&str, u64); 3] = [
    ("kbit", 1_000),
    ("mbit", 1_000_000),
    ("gbit", 1_000_000_000),
];

impl FromStr for BitRate {
    type Err = NoRate;

    fn from_str(text: &str) -> Result<Self, NoRate> {
        let number = |(unit, times): (&str, u64)| {
            let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
            number.checked_mul(times).filter(|bits| *bits > 0)
        };
        let bits_per_second = UNITS.into_iter().find_map(number);
        let bits_per_second = bits_per_second.ok_or_else(|| NoRate(text.to_owned()))?;
        Ok(Self { bits_per_second })
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_second;
        let whole = UNITS
            .iter()
            .rev()
            .find(|(_, times)| bits.is_multiple_of(*times));
        match whole {
            Some((unit, times)) => write!(formatter, "{}{unit}", bits / times),
            None => write!(formatter, "{bits}bit"),
        }
    }
}

impl BitRate {
    fn burst_bytes(self) -> u64 {
        (self.bits_per_second / 8 / BURST).max(BURST_BYTES_MIN)
    }
}

/// Gives the links of all nodes this rate, each way.
pub fn limit(namespaces: &Namespaces, rate: BitRate) -> Result<(), LinkError> {
    for end in namespaces.ends() {
        let mut tc = Command::new("tc");
        tc.args(["qdisc", "replace", "dev", &end.interface, "root", "tbf"]);
        tc.args(["rate", &rate.to_string()]);
        tc.args(["burst", &rate.burst_bytes().to_string(), "latency", QUEUE]);
        if let Some(holder) = end.holder {
            into_network(&mut tc, holder).map_err(LinkError::NoTc)?;
        }
        let output = tc.output().map_err(LinkError::NoTc)?;
        if !output.status.success() {
            let words = tc.get_args().map(|word| word.to_string_lossy());
            let words = words.collect::<Vec<_>>().join(" ");
            return Err(LinkError::Refused {
                command: format!("tc {words}"),
                why: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_written_as_tc_has_them() {
        for text in ["1gbit", "100mbit", "64kbit", "1500mbit"] {
            assert_eq!(text.parse::<BitRate>().unwrap().to_string(), text);
        }
        assert_eq!("1000mbit".parse::<BitRate>(), "1gbit".parse());
        for text in [
            "",
            "1",
            "1g",
            "gbit",
            "-1gbit",
            "0gbit",
            "1gbit ",
            "99999999999gbit",
        ] {
            let error = text.parse::<BitRate>().unwrap_err();
            assert_eq!(error, NoRate(text.to_owned()));
        }
    }

    #[test]
    fn a_bucket_holds_a_millisecond_and_no_less_than_a_segment() {
        let burst = |text: &str| text.parse::<BitRate>().unwrap().burst_bytes();
        assert_eq!(burst("1gbit"), 125_000);
        assert_eq!(burst("1mbit"), BURST_BYTES_MIN);
    }
}
