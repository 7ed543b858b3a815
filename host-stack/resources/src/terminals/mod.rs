//! Terminals: pseudoterminals both of whose sides the tree has, and the one that it is on with its supervisor.
//!
//! | | |
//! |---|---|
//! | settings, size, sessions, foreground groups, what is in them | saved |
//! | the terminal of the supervisor | that of whoever restarts takes its place |
//! | a terminal that a process outside serves | refused |

pub mod device;
mod restore;
mod save;
pub mod state;

use std::os::{
    fd::RawFd,
    unix::fs::{FileTypeExt, MetadataExt},
};

use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    event::Reporter,
    growing::Growing,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, Stopped, TreeContext},
    state::{Kind, OpenFile, Tree},
};

/// Major numbers of devices: tty and ptmx, slaves of pseudoterminals.
const TTYS: u32 = 5;
const SLAVES: u32 = 136;

/// Terminals of a tree.
#[derive(Debug, Default)]
pub struct Terminals {
    reporter: Reporter,
    saving: save::Terminals,
    /// Those that have been opened again: master, and slave if anybody has opened that.
    opened: Vec<(RawFd, Option<RawFd>)>,
}

impl Terminals {
    /// None yet.
    pub fn new(reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..Self::default()
        }
    }
}

impl Resource for Terminals {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        let number = seen.metadata.rdev();
        let is_terminal = matches!(
            (libc::major(number), libc::minor(number)),
            (TTYS, 0 | 2) | (SLAVES, _)
        );
        Ok(is_terminal && !seen.is_name() && seen.metadata.file_type().is_char_device())
    }

    fn save(&mut self, met: FoundFile<'_>, _: &mut TreeContext<'_>) -> Result<Saved> {
        self.saving.meet(met.number, met.seen, met.copy)?;
        // Which terminal it is of is said when all are known.
        Ok(Kind::Console.into())
    }

    fn join(&mut self, tree: &mut Tree, _: &mut Stopped<'_>) -> Result<()> {
        let pids: Vec<i32> = tree.processes.iter().map(|process| process.pid).collect();
        tree.terminals = self.saving.join(&mut tree.files, &pids)?;
        tree.console = save::console(&tree.files);
        Ok(())
    }

    fn contents(&mut self, tree: &mut Tree) -> Result<()> {
        self.saving.contents(&mut tree.terminals)
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        self.opened = restore::open(tree, opened, &self.reporter)?;
        opened.each(tree, |_, file| match file.kind {
            Kind::Console => restore::console(file.flags).map(Some),
            _ => Ok(None),
        })
    }

    fn lead_session(&self, tree: &Tree, session: i32) -> Result<()> {
        restore::control(tree, &self.opened, session)
    }

    fn with_inherited(&self, tree: &Tree, growing: &Growing<'_>) -> Result<()> {
        for (set, group) in restore::foreground(tree, &self.opened, growing.process) {
            // A group whose last member has ended is nobody's.
            growing.call_with(set, Some(&group.to_ne_bytes()))?;
        }
        Ok(())
    }

    fn finish(&self, tree: &Tree, _: &Opened) -> Result<()> {
        restore::finish(tree, &self.opened)?;
        restore::take_over(tree)
    }

    fn before_it_runs(&self, tree: &Tree) {
        restore::redraw(tree);
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match &file.kind {
            Kind::Terminal {
                terminal,
                master: true,
            } => Some(format!("terminal {terminal}, the side of who serves it")),
            Kind::Terminal { terminal, .. } => Some(format!("terminal {terminal}")),
            Kind::Console => Some("the terminal of the supervisor".into()),
            _ => None,
        }
    }

    fn describe_all(&self, tree: &Tree) -> Vec<String> {
        let terminals = tree.terminals.iter().enumerate();
        let lines = terminals.map(|(number, terminal)| {
            let [rows, columns, ..] = terminal.look.size;
            let name = terminal.number;
            format!("terminal {number}: /dev/pts/{name}, {columns} by {rows}")
        });
        lines.collect()
    }
}
