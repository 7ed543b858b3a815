//! `micinfo`: what is known of the cards of a rig, in the form of MPSS 3.

use std::{ffi::CStr, fmt::Display, io::Write as _, process::ExitCode};

use clap::{Args, ValueEnum};
use rustix::system::{sysinfo, uname};
use snaprig_mpss::{self as mpss, Card, PROCESSOR};
use snaprig_wire::pci;

use crate::{AnyError, cards::RunningRig};

/// What nobody knows of such a card.
const NOT_AVAILABLE: &str = "NotAvailable";

/// Say what is known of the cards of a running rig, as MPSS's micinfo does
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    rig: RunningRig,
    /// Only this card, from 0
    #[arg(long, visible_alias = "device-info", value_name = "N")]
    deviceinfo: Option<u16>,
    /// Only this of each
    #[arg(long, value_name = "GROUP", ignore_case = true)]
    group: Option<Group>,
}

/// What goes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    Version,
    Board,
    Cores,
    Thermal,
    #[value(name = "GDDR", alias = "gddr")]
    Gddr,
}

impl Group {
    fn title(self) -> &'static str {
        match self {
            Self::Version => "Version",
            Self::Board => "Board",
            Self::Cores => "Cores",
            Self::Thermal => "Thermal",
            Self::Gddr => "GDDR",
        }
    }

    /// Of a card that is not online nothing is known.
    fn lines(self, card: &Card) -> Vec<(&'static str, String)> {
        let known = |value: String| card.info().map_or(NOT_AVAILABLE.into(), |_| value);
        let absent = || NOT_AVAILABLE.to_owned();
        match self {
            Self::Version => vec![
                ("Flash Version", absent()),
                ("SMC Firmware Version", absent()),
                ("SMC Boot Loader Version", absent()),
                ("Coprocessor OS Version", known(mpss::KERNEL.into())),
                ("Device Serial Number", absent()),
            ],
            Self::Board => vec![
                ("Vendor ID", format!("{:#06x}", pci::VENDOR_ID)),
                ("Device ID", format!("{:#06x}", pci::DEVICE_ID)),
                ("Subsystem ID", format!("{:#06x}", pci::DEVICE_ID)),
                (
                    "Coprocessor Stepping ID",
                    known(PROCESSOR.stepping_id.to_string()),
                ),
                ("PCIe Width", absent()),
                ("PCIe Speed", absent()),
                ("PCIe Max payload size", absent()),
                ("PCIe Max read req size", absent()),
                (
                    "Coprocessor Model",
                    known(format!("{:#04x}", PROCESSOR.model)),
                ),
                (
                    "Coprocessor Model Ext",
                    known(format!("{:#04x}", PROCESSOR.model_extended)),
                ),
                (
                    "Coprocessor Type",
                    known(format!("{:#04x}", PROCESSOR.kind)),
                ),
                (
                    "Coprocessor Family",
                    known(format!("{:#04x}", PROCESSOR.family)),
                ),
                (
                    "Coprocessor Family Ext",
                    known(format!("{:#04x}", PROCESSOR.family_extended)),
                ),
                ("Coprocessor Stepping", known(PROCESSOR.stepping.into())),
                ("Board SKU", absent()),
                ("ECC Mode", known("Disabled".into())),
                ("SMC HW Revision", absent()),
            ],
            Self::Cores => {
                let cores = card.info().map(|info| info.cores.to_string());
                vec![
                    ("Total No of Active Cores", cores.unwrap_or_else(absent)),
                    ("Voltage", absent()),
                    ("Frequency", absent()),
                ]
            }
            Self::Thermal => vec![
                ("Fan Speed Control", "N/A".into()),
                ("Fan RPM", "N/A".into()),
                ("Fan PWM", "N/A".into()),
                ("Die Temp", absent()),
            ],
            Self::Gddr => {
                let megabytes = |bytes: u64| format!("{} MB", bytes >> 20);
                let size = card.info().map(|info| megabytes(info.memory_bytes));
                vec![
                    ("GDDR Vendor", absent()),
                    ("GDDR Version", absent()),
                    ("GDDR Density", absent()),
                    ("GDDR Size", size.unwrap_or_else(absent)),
                    ("GDDR Technology", absent()),
                    ("GDDR Speed", absent()),
                    ("GDDR Frequency", absent()),
                    ("GDDR Voltage", absent()),
                ]
            }
        }
    }
}

/// Prints it.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let rig = options.rig.directory()?;
    // Who runs no rig hears so.
    let nodes = options.rig.cards()?.into_keys().collect();
    let mut cards = mpss::cards(&rig)?;
    if let Some(number) = options.deviceinfo {
        cards.retain(|card| card.number() == number);
        if cards.is_empty() {
            let node = number.saturating_add(1);
            let cards = nodes;
            return Err(snaprig_rig::RigError::NoCard { node, cards }.into());
        }
    }
    let mut text = format!("MicInfo Utility Log\nCreated {}\n\n", now());
    if options.group.is_none() {
        text += &host();
    }
    for card in &cards {
        text += &device(card, options.group);
    }
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// As ctime(3) has it.
fn now() -> String {
    // ctime_r(3) asks for room for 26 bytes.
    let mut text = [0 as libc::c_char; 26];
    // SAFETY: the time is this thread's own, and there is room for what is written, which ends with a zero; null is what
    // is not written.
    let text = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let written = libc::ctime_r(&now, text.as_mut_ptr());
        (!written.is_null()).then(|| CStr::from_ptr(written).to_string_lossy().into_owned())
    };
    text.unwrap_or_default().trim_end().to_owned()
}

fn host() -> String {
    let system = uname();
    let memory = sysinfo();
    let bytes = memory.totalram as u64 * u64::from(memory.mem_unit);
    let version = env!("CARGO_PKG_VERSION");
    let mut text = String::from("\n        System Info\n");
    let mut line = |name: &str, value: &dyn Display| {
        text += &format!("                {name:<23} : {value}\n");
    };
    line("HOST OS", &system.sysname().to_string_lossy());
    line("OS Version", &system.release().to_string_lossy());
    line("Driver Version", &version);
    line("MPSS Version", &version);
    line("Host Physical Memory", &format!("{} MB", bytes >> 20));
    text
}

fn device(card: &Card, only: Option<Group>) -> String {
    let (number, name) = (card.number(), card.name());
    let mut text = format!("\nDevice No: {number}, Device Name: {name}\n");
    for group in Group::value_variants() {
        if only.is_none_or(|only| only == *group) {
            text += &format!("\n        {}\n", group.title());
            for (name, value) in group.lines(card) {
                text += &format!("                {name:<24} : {value}\n");
            }
        }
    }
    text
}
