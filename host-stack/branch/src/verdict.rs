//! What became of a branch.

use std::{fmt, path::PathBuf};

use serde::Serialize;
use snaprig_sim::{Fault, Kind, Plan, When};

/// How a branch ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict")]
pub enum Verdict {
    /// With status 0, and the output that it was to have.
    Survived,
    /// With another status.
    Failed {
        /// As a shell says it: 128 and more are signals.
        status: i32,
        /// The last line with a word in it of its standard error, or else of its output.
        said: String,
    },
    /// With status 0 and another output.
    Wrong {
        /// The first line that differs, from 1.
        line: usize,
        /// What it is; none: the output has ended.
        said: Option<String>,
    },
    /// Not in time: it was killed.
    Hung,
}

impl Verdict {
    /// In a word.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Survived => "survived",
            Self::Failed { .. } => "failed",
            Self::Wrong { .. } => "wrong",
            Self::Hung => "hung",
        }
    }
}

impl fmt::Display for Verdict {
    /// The particulars, in a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Survived => Ok(()),
            Self::Failed { status, said } if said.is_empty() => write!(f, "status {status}"),
            Self::Failed { status, said } => write!(f, "status {status}: {said}"),
            Self::Wrong { line, said: None } => write!(f, "its output ends before line {line}"),
            Self::Wrong {
                line,
                said: Some(said),
            } => write!(f, "line {line}: {said}"),
            Self::Hung => f.write_str("killed when its time was over"),
        }
    }
}

/// A branch that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct Branch {
    /// Its number; 0 is the undisturbed one.
    pub number: usize,
    /// Its plan.
    pub plan: Plan,
    /// Where the plan was read; none: it was drawn.
    pub file: Option<PathBuf>,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Whether its program ran again: if not, the restart failed.
    pub has_run: bool,
    /// Faults of the plan that were seen to have happened.
    pub faults: u64,
    /// From its start to its end, in seconds.
    pub seconds: f64,
}

impl Branch {
    /// Its faults in a line.
    pub fn faults_text(&self) -> String {
        match self.plan.faults.as_slice() {
            [] => "none".into(),
            faults => faults.iter().map(text).collect::<Vec<_>>().join(", "),
        }
    }
}

/// A fault, in words that are short.
fn text(fault: &Fault) -> String {
    let name = fault.kind.name();
    let what = match &fault.kind {
        Kind::Delay(ns) => format!("{name} {} us", ns / 1000),
        kind => match kind.process() {
            Some(process) => format!("{name} {process}"),
            None => name.to_string(),
        },
    };
    let place = fault.point.strip_prefix("hca.").unwrap_or("");
    match fault.when {
        When::AtNs(at) => format!("{what} at {} ms", at / 1_000_000),
        When::Nth(nth) => format!("{what} {place} {nth}"),
        When::PerMille(share) => format!("{what} {place} {}.{}%", share / 10, share % 10),
    }
}

/// Compares outputs, but for lines with any of these texts in them: none if they are the same.
pub fn compare(is: &[u8], expected: &[u8], ignored: &[String]) -> Option<Verdict> {
    let (is, expected) = (without(is, ignored), without(expected, ignored));
    first_difference(&is, &expected)
}

/// An output without lines that have any of these texts in them.
fn without(output: &[u8], ignored: &[String]) -> Vec<u8> {
    let has_one = |line: &&[u8]| {
        let line = String::from_utf8_lossy(line);
        ignored.iter().any(|text| line.contains(text))
    };
    let lines = output.split_inclusive(|byte| *byte == b'\n');
    lines
        .filter(|line| !has_one(line))
        .collect::<Vec<_>>()
        .concat()
}

fn first_difference(is: &[u8], expected: &[u8]) -> Option<Verdict> {
    if is == expected {
        return None;
    }
    let (mut is, mut expected) = (is.split(|b| *b == b'\n'), expected.split(|b| *b == b'\n'));
    let mut line = 1;
    loop {
        match (is.next(), expected.next()) {
            (Some(one), Some(other)) if one == other => line += 1,
            (said, _) => {
                // Behind the last newline there is nothing.
                let said = said.filter(|said| !said.is_empty() || is.next().is_some());
                let said = said.map(|said| String::from_utf8_lossy(said).into_owned());
                return Some(Verdict::Wrong { line, said });
            }
        }
    }
}

/// The last line with a word in it.
pub fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let has_word = |line: &&str| line.chars().any(char::is_alphanumeric);
    let last = text.lines().rev().find(has_word).unwrap_or_default();
    last.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_differs_is_named() {
        let wrong = |line, said: Option<&str>| {
            let said = said.map(Into::into);
            Some(Verdict::Wrong { line, said })
        };
        let compare = |is: &[u8], expected: &[u8]| compare(is, expected, &["WARN".into()]);
        assert_eq!(compare(b"a\nb\n", b"a\nb\n"), None);
        assert_eq!(compare(b"a\nWARN x\nb\n", b"a\nb\n"), None);
        assert_eq!(compare(b"a\nc\n", b"a\nb\n"), wrong(2, Some("c")));
        assert_eq!(compare(b"a\n", b"a\nb\n"), wrong(2, None));
        assert_eq!(compare(b"a\nb\n", b"a\n"), wrong(2, Some("b")));
        assert_eq!(compare(b"", b"a\n"), wrong(1, None));
    }

    #[test]
    fn lines_of_dashes_say_nothing() {
        assert_eq!(last_words(b"a\n it died\n-----\n\n"), "it died");
    }
}
