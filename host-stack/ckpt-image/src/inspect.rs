//! What is in an image, for people (80 columns) and as JSON.
//!
//! This knows of pages and checksums; what the state means is its writer's to say: whoever inspects
//! brings a closure that turns each section into lines.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    io::Read,
};

use serde::Serialize;

use crate::image::{Header, ImageError, ImageId, Piece, Reader, State, Totals};

/// Most spaces that are told apart; what is left over is counted together.
const SPACES_MAX: usize = 4096;
/// Widest line.
const COLUMNS: usize = 80;

/// What is in an image. All of it has been read and verified.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    /// What it was called.
    pub name: String,
    /// Its id.
    pub id: ImageId,
    /// The image that it says the same as.
    pub stands_for: Option<ImageId>,
    /// Version of the format.
    pub version: u32,
    /// Who made it where.
    pub header: Header,
    /// What is in it, all told.
    pub totals: Totals,
    /// What is in each space, by number.
    pub spaces: BTreeMap<u32, Space>,
    /// There are more spaces than [`Inspection::spaces`] has.
    pub more_spaces: bool,
    /// What the state says: as many lines a section as its writer gives.
    pub state: Vec<Vec<String>>,
}

/// What is in a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Runs of pages, of all kinds.
    pub runs: u64,
    /// Bytes of pages that are not zero.
    pub page_bytes: u64,
    /// Bytes of pages that are zero.
    pub zero_bytes: u64,
    /// Bytes of pages that are gone.
    pub gone_bytes: u64,
    /// The lowest address.
    pub from: u64,
    /// The end of the highest page.
    pub to: u64,
}

impl Space {
    fn add(&mut self, address: u64, bytes: u64) {
        let to = address.saturating_add(bytes);
        (self.from, self.to) = match self.runs {
            0 => (address, to),
            _ => (self.from.min(address), self.to.max(to)),
        };
        self.runs += 1;
    }
}

impl Inspection {
    /// Reads an image to its end. `show` says what a section of its state means.
    pub fn read(
        from: impl Read,
        name: &str,
        mut show: impl FnMut(&State) -> Vec<String>,
    ) -> Result<Self, ImageError> {
        let mut reader = Reader::new(from, name)?;
        let (mut spaces, mut state) = (BTreeMap::new(), Vec::new());
        let mut more_spaces = false;
        while let Some(piece) = reader.next()? {
            let (space, address, bytes) = match &piece {
                Piece::State(section) => {
                    state.push(show(section));
                    continue;
                }
                Piece::Pages {
                    space,
                    address,
                    bytes,
                } => (*space, *address, bytes.len() as u64),
                Piece::Zeroes {
                    space,
                    address,
                    bytes,
                }
                | Piece::Gone {
                    space,
                    address,
                    bytes,
                } => (*space, *address, *bytes),
            };
            if spaces.len() == SPACES_MAX && !spaces.contains_key(&space) {
                more_spaces = true;
                continue;
            }
            let found: &mut Space = spaces.entry(space).or_default();
            found.add(address, bytes);
            let count = match piece {
                Piece::Pages { .. } => &mut found.page_bytes,
                Piece::Zeroes { .. } => &mut found.zero_bytes,
                _ => &mut found.gone_bytes,
            };
            *count = count.saturating_add(bytes);
        }
        let summary = reader.summary().expect("an image that ended has a summary");
        Ok(Self {
            name: name.to_owned(),
            id: summary.id,
            stands_for: summary.stands_for,
            version: crate::image::VERSION,
            header: reader.header().clone(),
            totals: summary.totals,
            spaces,
            more_spaces,
            state,
        })
    }

    /// As JSON.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.front(f)?;
        if !self.spaces.is_empty() {
            writeln!(f)?;
            self.table(f)?;
        }
        for (section, lines) in self.state.iter().enumerate() {
            writeln!(f, "\nstate, section {section}")?;
            for line in lines {
                writeln!(f, "  {}", shorter(line, COLUMNS - 2))?;
            }
        }
        Ok(())
    }
}

impl Inspection {
    fn front(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Header {
            kernel,
            page_bytes,
            cpu_features,
            round,
            parent,
        } = &self.header;
        let totals = &self.totals;
        let mut line =
            |label: &str, text: &str| writeln!(f, "{label:<12}{}", shorter(text, COLUMNS - 12));
        line("image", &self.name)?;
        line("id", &format!("{} (all checksums match)", self.id))?;
        let kind = match parent {
            Some(parent) => format!("increment, on top of {parent}"),
            None => "whole".to_owned(),
        };
        line("kind", &kind)?;
        if let Some(id) = self.stands_for {
            line("stands for", &id.to_string())?;
        }
        line("round", &round.to_string())?;
        line("version", &self.version.to_string())?;
        line("kernel", &format!("{kernel}, pages of {page_bytes} bytes"))?;
        line("cpu", &cpu_features.join(" "))?;
        line("file", &size(totals.file_bytes))?;
        let stored = size(totals.stored_bytes);
        line(
            "pages",
            &format!("{}, stored as {stored}", size(totals.page_bytes)),
        )?;
        line("zero", &size(totals.zero_bytes))?;
        if parent.is_some() || totals.gone_bytes > 0 {
            line("gone", &size(totals.gone_bytes))?;
        }
        let sections = self.state.len();
        line(
            "state",
            &format!("{} in {sections} sections", size(totals.state_bytes)),
        )?;
        line("chunks", &totals.chunks.to_string())
    }

    fn table(&self, f: &mut fmt::Formatter) -> fmt::Result {
        writeln!(
            f,
            "{:>5} {:>6} {:>10} {:>10} {:>10}  {:>16} {:>16}",
            "space", "runs", "pages", "zero", "gone", "from", "to"
        )?;
        for (number, space) in &self.spaces {
            writeln!(
                f,
                "{number:>5} {:>6} {:>10} {:>10} {:>10}  {:>16x} {:>16x}",
                space.runs,
                size(space.page_bytes),
                size(space.zero_bytes),
                size(space.gone_bytes),
                space.from,
                space.to
            )?;
        }
        match self.more_spaces {
            true => writeln!(f, "and more than these {SPACES_MAX}"),
            false => Ok(()),
        }
    }
}

/// Bytes, in the unit that makes a small number of them.
fn size(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10 - 1) as usize;
    let number = bytes as f64 / (1_u64 << (10 * (unit + 1))) as f64;
    let digits = usize::from(number < 100.0 && number.fract() != 0.0);
    format!("{number:.digits$} {}", UNITS[unit])
}

/// A line of at most so many columns, and nothing in it that moves the cursor.
fn shorter(text: &str, columns: usize) -> String {
    let mut line = String::new();
    for (column, c) in text.chars().enumerate() {
        if column + 1 == columns && text.chars().nth(columns).is_some() {
            line.push('…');
            break;
        }
        match c.is_control() {
            true => line.push('\u{fffd}'),
            false => {
                let _ = line.write_char(c);
            }
        }
    }
    line
}
