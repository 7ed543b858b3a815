//! What can be wrong with a fabric, and how that is written.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// What a path does to packets. Shares are in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct PathFaults {
    /// Packets that are lost.
    #[serde(rename = "loss_per_mille")]
    pub loss: u16,
    /// Packets that come twice.
    #[serde(rename = "duplicate_per_mille")]
    pub duplicate: u16,
    /// Packets that are overtaken by the next ones.
    #[serde(rename = "reorder_per_mille")]
    pub reorder: u16,
    /// Packets that are damaged: their checksum is wrong, so they are lost where they arrive.
    #[serde(rename = "corrupt_per_mille")]
    pub corrupt: u16,
    /// How much later packets arrive, in nanoseconds.
    pub delay_ns: u64,
}

impl fmt::Display for PathFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (name, share) in shares {
            write!(f, "{name}={}.{}%,", share / 10, share % 10)?;
        }
        write!(f, "delay={}us", self.delay_ns / 1000)
    }
}

impl FromStr for PathFaults {
    type Err = String;

    /// As it is displayed; what is left out is 0.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut faults = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part
                .split_once('=')
                .ok_or(format!("{part}: not NAME=VALUE"))?;
            let share = || parse_share(value).map_err(|why| format!("{part}: {why}"));
            match name {
                "loss" => faults.loss = share()?,
                "duplicate" => faults.duplicate = share()?,
                "reorder" => faults.reorder = share()?,
                "corrupt" => faults.corrupt = share()?,
                "delay" => {
                    let us: Result<u64, _> = value.trim_end_matches("us").parse();
                    let us = us.map_err(|error| format!("{part}: {error}"))?;
                    faults.delay_ns = us.saturating_mul(1000);
                }
                _ => return Err(format!("{name}: no such fault")),
            }
        }
        Ok(faults)
    }
}

/// Thousandths, of what people write in percent: `5`, `0.5%`.
pub fn parse_share(text: &str) -> Result<u16, String> {
    let percent = text.trim_end_matches('%').parse::<f64>().ok();
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    let percent = percent.ok_or("a share is 0 to 100 percent")?;
    Ok((percent * 10.0).round() as u16)
}

/// Changes to the paths of a fabric. Ports are named by LID; none: all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultRequest {
    /// Packets from a port to a port have these faults from now on.
    Set {
        /// From which port.
        from: Option<u16>,
        /// To which.
        to: Option<u16>,
        /// The faults.
        faults: PathFaults,
    },
    /// A port's link goes up or down.
    Link {
        /// Which port.
        lid: u16,
        /// Up.
        up: bool,
    },
    /// Everything is as new.
    Heal,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_as_they_are_written() {
        let faults = PathFaults {
            loss: 55,
            delay_ns: 7_000,
            ..PathFaults::default()
        };
        let text = faults.to_string();
        assert_eq!(
            text,
            "loss=5.5%,duplicate=0.0%,reorder=0.0%,corrupt=0.0%,delay=7us"
        );
        assert_eq!(text.parse(), Ok(faults));
        assert_eq!("loss=5.5,delay=7".parse(), Ok(faults));
        assert!("loss=NaN".parse::<PathFaults>().is_err());
        assert!("delay=-1".parse::<PathFaults>().is_err());
        assert!("loss=101".parse::<PathFaults>().is_err());
        assert!("los=1".parse::<PathFaults>().is_err());
    }
}
