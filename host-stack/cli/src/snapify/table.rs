//! Offload processes as people and machines read them.

use serde::Serialize;
use snaprig_snapify::{Phase, control::Described};

use crate::size;

/// The most that is shown of a program's name.
const NAME_MAX: usize = 20;

/// An offload process.
#[derive(Serialize)]
pub struct Row {
    /// The program that has started it.
    pub host_pid: u32,
    /// What it is.
    #[serde(flatten)]
    pub process: Described,
}

/// A table of at most 80 columns.
pub fn show(rows: &[Row]) -> String {
    let head = "HOST PID  PROCESS  CARD  CARD PID  STATE           MEMORY  PROGRAM\n";
    let lines = rows.iter().map(|Row { host_pid, process }| {
        let (card, card_pid) = match process.state {
            // It is on none.
            Phase::SwappedOut | Phase::Ended => ("-".to_owned(), "-".to_owned()),
            _ => (process.card.to_string(), process.card_pid.to_string()),
        };
        let name: String = process.name.chars().take(NAME_MAX).collect();
        format!(
            "{host_pid:>8}  {:>7}  {card:>4}  {card_pid:>8}  {:<11}  {:>9}  {name}\n",
            process.process,
            process.state,
            size::show(process.buffer_bytes)
        )
    });
    head.to_owned() + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_and_fits_eighty_columns() {
        let row = |host_pid, process, card, state, buffer_bytes, name: &str| Row {
            host_pid,
            process: Described {
                process,
                card,
                card_pid: 32770,
                name: name.into(),
                state,
                buffer_bytes,
                is_wanted: true,
                steps: Vec::new(),
            },
        };
        let long = "a program with a name that has no end";
        let rows = [
            row(4_194_304, 1, 1, Phase::Running, 136 << 10, "kmeans"),
            row(77, 12_345, 2, Phase::SwappedOut, 3 << 30, long),
        ];
        let table = show(&rows);
        assert!(table.lines().all(|line| line.chars().count() <= 80));
        insta::assert_snapshot!(table, @r"
        HOST PID  PROCESS  CARD  CARD PID  STATE           MEMORY  PROGRAM
         4194304        1     1     32770  running      136.0 KiB  kmeans
              77    12345     -         -  swapped-out    3.0 GiB  a program with a nam
        ");
    }
}
