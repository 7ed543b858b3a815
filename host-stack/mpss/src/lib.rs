//! A rig's cards as MPSS speaks of them: mic0 is the first, with the states of the host driver for Knights Corner.
//!
//! What must stay true: what is said of a card was so when it was asked, and what is not known of it is not made up.

use std::{fmt, path::Path};

use snaprig_coi::{Engine, EngineInfo};
use snaprig_scif::{
    client::{Endpoint, ScifError},
    host::cards::CardState::{
        self, Booting, Crashed, Offline, Online, ResetFailed, Resetting, ShuttingDown,
    },
};

/// What a card's kernel calls itself (uname(2)).
pub const KERNEL: &str = "6.1.0-snaprig";

/// Knights Corner, as cpuid has it.
pub const PROCESSOR: Processor = Processor {
    kind: 0,
    family: 0xb,
    family_extended: 0,
    model: 1,
    model_extended: 0,
    stepping: "B1",
    stepping_id: 3,
};

/// A processor.
#[derive(Clone, Copy, Debug)]
pub struct Processor {
    /// Its type.
    pub kind: u16,
    /// Its family.
    pub family: u16,
    /// The extended family.
    pub family_extended: u16,
    /// Its model.
    pub model: u16,
    /// The extended model.
    pub model_extended: u16,
    /// Its stepping.
    pub stepping: &'static str,
    /// The number of that.
    pub stepping_id: u32,
}

/// A card.
#[derive(Clone, Debug)]
pub struct Card {
    number: u16,
    state: CardState,
    info: Option<EngineInfo>,
}

/// All cards of the rig in this directory.
pub fn cards(rig: &Path) -> Result<Vec<Card>, ScifError> {
    let states = Endpoint::open(rig)?.cards()?;
    let cards = states.into_iter().filter_map(|(node, state)| {
        let number = node.checked_sub(1)?;
        // It may go while it is asked.
        let info = || Engine::get(rig, number).and_then(|engine| engine.info());
        let info = (state == Online).then(info).and_then(Result::ok);
        let info = info.filter(|info| info.online);
        Some(Card::new(number, state, info))
    });
    Ok(cards.collect())
}

/// The card that is called so: `mic0`.
pub fn number(name: &str) -> Option<u16> {
    let digits = name.strip_prefix("mic")?;
    let number = digits.parse().ok()?;
    (Name(number).to_string() == name).then_some(number)
}

/// What a card is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name(pub u16);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mic{}", self.0)
    }
}

/// The word that the driver has for a state. A card that is not there is one that waits to be booted.
pub fn state(state: CardState) -> &'static str {
    match state {
        Offline => "ready",
        Booting => "booting",
        Online => "online",
        ShuttingDown => "shutdown",
        Crashed => "lost",
        Resetting => "resetting",
        ResetFailed => "reset failed",
    }
}

impl Card {
    /// Of what somebody else knows.
    pub fn new(number: u16, state: CardState, info: Option<EngineInfo>) -> Self {
        Self {
            number,
            state,
            info,
        }
    }

    /// Its number, from 0.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Its SCIF node.
    pub fn node(&self) -> u16 {
        self.number + 1
    }

    /// What it is called.
    pub fn name(&self) -> Name {
        Name(self.number)
    }

    /// Its state.
    pub fn state(&self) -> CardState {
        self.state
    }

    /// What the driver has of it in sysfs, below /sys/class/mic/micN: names and values, its state
    /// after everything that goes with that.
    pub fn attributes(&self) -> Vec<(&'static str, String)> {
        let online = self.state == Online;
        let known = |value: &str| if online { value } else { "N/A" }.to_owned();
        let mut attributes = vec![
            ("family", "x100".into()),
            ("mode", known("linux")),
            ("image", known(KERNEL)),
            ("processor", format!("{:x}", PROCESSOR.kind)),
            ("family_data", format!("{:x}", PROCESSOR.family)),
            (
                "extended_family",
                format!("{:x}", PROCESSOR.family_extended),
            ),
            ("model", format!("{:x}", PROCESSOR.model)),
            ("extended_model", format!("{:x}", PROCESSOR.model_extended)),
            ("stepping", PROCESSOR.stepping.into()),
            ("stepping_data", format!("{:x}", PROCESSOR.stepping_id)),
        ];
        if online {
            attributes.push(("post_code", "FF".into()));
        }
        if let Some(info) = &self.info {
            attributes.push(("active_cores", format!("{:x}", info.cores)));
            attributes.push(("memsize", format!("{:x}", info.memory_bytes >> 10)));
        }
        attributes.push(("state", state(self.state).into()));
        attributes
    }

    /// What is known of it while it is online.
    pub fn info(&self) -> Option<&EngineInfo> {
        self.info.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_have_one_name_each() {
        assert_eq!(number("mic0"), Some(0));
        assert_eq!(number("mic12"), Some(12));
        for other in [
            "mic", "mic01", "mic+1", "mic-1", "0", "mic1x", "mic99999", "Mic0",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
