//! What people and machines read: steps with their time and bytes, and errors with their causes.

use std::{
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::size;

/// One step of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// What happened, in a word or two.
    pub name: String,
    /// How long it took.
    pub milliseconds: f64,
    /// How much it moved; 0 where nothing moves.
    pub bytes: u64,
    /// Which process or file, for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// Collects the steps of a run and prints each as it ends.
pub struct Steps {
    steps: Vec<Step>,
    print: bool,
}

impl Steps {
    /// Steps that are printed as a table, unless `quiet`.
    pub fn new(quiet: bool) -> Self {
        Self {
            steps: Vec::new(),
            print: !quiet,
        }
    }

    /// Runs one step with a spinner, records it, and prints its line.
    pub fn run<T, E>(
        &mut self,
        name: &str,
        detail: &str,
        step: impl FnOnce(&mut u64) -> Result<T, E>,
    ) -> Result<T, E> {
        let spinner = self.spinner(name, detail);
        let (started, mut bytes) = (Instant::now(), 0);
        let result = step(&mut bytes);
        spinner.finish_and_clear();
        if result.is_ok() {
            self.add(name, started.elapsed(), bytes, detail);
        }
        result
    }

    /// Records a step that was timed elsewhere.
    pub fn add(&mut self, name: &str, elapsed: Duration, bytes: u64, detail: &str) {
        let step = Step {
            name: name.into(),
            // To the microsecond.
            milliseconds: elapsed.as_micros() as f64 / 1e3,
            bytes,
            detail: detail.into(),
        };
        if self.print {
            println!("{}", line(&step));
        }
        self.steps.push(step);
    }

    /// All steps so far.
    pub fn all(&self) -> &[Step] {
        &self.steps
    }

    fn spinner(&self, name: &str, detail: &str) -> ProgressBar {
        if !self.print || !std::io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")
            .expect("the template is a constant");
        let spinner = ProgressBar::new_spinner().with_style(style);
        spinner.set_message(format!("{name}: {detail}"));
        spinner.enable_steady_tick(Duration::from_millis(120));
        spinner
    }
}

/// A step's line, at most 80 columns.
fn line(step: &Step) -> String {
    let bytes = if step.bytes == 0 {
        String::new()
    } else {
        size::show(step.bytes)
    };
    let line = format!(
        "  {:<11} {:>8.1} ms {:>9}  {}",
        step.name, step.milliseconds, bytes, step.detail
    );
    line.trim_end().to_owned()
}

/// Prints an error, what caused it, and so on down.
pub fn error(error: &(dyn std::error::Error + 'static)) {
    let mut text = format!("error: {error}\n");
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = error.to_string();
        // Some libraries repeat their source in their own text.
        if !text.contains(&line) {
            text.push_str(&format!("  caused by: {line}\n"));
        }
        cause = error.source();
    }
    let _ = std::io::stderr().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_aligns_and_fits_eighty_columns() {
        let step = Step {
            name: "capture".into(),
            milliseconds: 12345.6,
            bytes: 123 << 20,
            detail: "offload process 32770, through Snapify-IO".into(),
        };
        let line = line(&step);
        assert!(line.len() <= 80, "{line}");
        assert_eq!(
            line,
            "  capture      12345.6 ms 123.0 MiB  offload process 32770, through Snapify-IO"
        );
    }
}
