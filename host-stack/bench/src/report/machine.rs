//! The machine that all of it was measured on, for a page that is read elsewhere.

use std::fs;

use serde::Serialize;

/// The machine.
#[derive(Serialize)]
pub struct Machine {
    /// What its processor is called.
    pub processor: String,
    /// Processors that the benchmark has.
    pub processors: usize,
    /// GiB of memory.
    pub memory_gib: u64,
    /// The kernel's release.
    pub kernel: String,
}

impl Machine {
    /// This one. What /proc does not say is unknown.
    pub fn here() -> Self {
        let field = |path, name| {
            let text = fs::read_to_string(path).unwrap_or_default();
            field(&text, name).map(str::to_owned)
        };
        let kib = field("/proc/meminfo", "MemTotal").unwrap_or_default();
        let kib = kib
            .split_whitespace()
            .next()
            .and_then(|kib| kib.parse().ok());
        let processors = crate::baselines::processors();
        Self {
            processor: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            processors: processors.map_or(0, |all| all.len()),
            memory_gib: kib.unwrap_or(0) >> 20,
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
        }
    }

    /// In a line.
    pub fn line(&self) -> String {
        format!(
            "{} processors ({}), {} GiB, Linux {}",
            self.processors, self.processor, self.memory_gib, self.kernel
        )
    }
}

/// What is behind a name and a colon.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(field, _)| field.trim() == name)?;
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names() {
        let text = "model\t\t: 85\nmodel name\t: A processor: fast\n";
        assert_eq!(field(text, "model name"), Some("A processor: fast"));
        assert_eq!(field(text, "stepping"), None);
    }
}
