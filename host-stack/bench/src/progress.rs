//! What is measured now, and how much is left: a benchmark of many measures takes minutes.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of so many measures on the standard error; silent where that is no terminal. Its message is what is measured.
pub fn bar(measures: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed} so far")
        .expect("the template is a constant");
    let bar = ProgressBar::new(measures as u64).with_style(style);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
