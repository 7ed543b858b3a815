//! A process that is measured: it does what it is told, line by line.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use crate::{AnyError, baselines::end};

/// The process. Dropped, it is told nothing more, and ends.
pub struct Side {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Side {
    /// Starts it.
    pub fn start(mut command: Command) -> Result<Self, AnyError> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        Ok(Self {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().ok_or("no pipe")?),
            child,
        })
    }

    /// Tells it a line.
    pub fn order(&mut self, line: &str) -> Result<(), AnyError> {
        let orders = self.orders.as_mut().ok_or("no pipe")?;
        writeln!(orders, "{}", line.trim_end())?;
        Ok(orders.flush()?)
    }

    /// Waits for a line.
    pub fn answer(&mut self) -> Result<String, AnyError> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Err("a process of the benchmark ended before its time".into());
        }
        Ok(line)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // The end of its orders is its end.
        drop(self.orders.take());
        end(&mut self.child);
    }
}
