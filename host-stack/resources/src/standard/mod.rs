//! Files that whoever launched the tree has passed on to it: the supervisor's standard descriptors, and other pipes and
//! sockets that it was launched with. They are not saved: a restarted tree has those of whoever restarts it.

mod restore;

use std::cell::OnceCell;
use std::os::unix::fs::FileTypeExt;

use snaprig_tracee::descriptors::{is_own, is_same_file, me, passed_on};

use crate::{
    board::Board,
    descriptor::FoundDescriptor,
    error::Result,
    event::Reporter,
    opened::Opened,
    resource::{FoundFile, Resource, Saved, TreeContext},
    sockets,
    state::{Kind, OpenFile, Tree},
};

/// Files that are not the tree's alone.
#[derive(Debug, Default)]
pub struct Standard {
    reporter: Reporter,
    /// What the supervisor was launched with beside its standard descriptors.
    passed_on: OnceCell<Vec<i32>>,
}

impl Standard {
    /// Which of the supervisor's descriptors one is.
    fn number_of(&self, seen: &FoundDescriptor) -> Option<i32> {
        let kind = seen.metadata.file_type();
        let may_be_other = !seen.is_name() && (kind.is_fifo() || kind.is_socket());
        let own = is_own(seen.pid, seen.fd);
        own.or_else(|| may_be_other.then(|| self.inherited(seen)).flatten())
    }

    fn inherited(&self, seen: &FoundDescriptor) -> Option<i32> {
        let passed_on = self.passed_on.get_or_init(passed_on);
        let is_it = |own: &&i32| is_same_file((seen.pid, seen.fd), (me(), **own));
        passed_on.iter().find(is_it).copied()
    }
}

impl Standard {
    /// None yet.
    pub fn new(reporter: &Reporter) -> Self {
        Self {
            reporter: reporter.clone(),
            ..Self::default()
        }
    }
}

impl Resource for Standard {
    fn recognises(&self, seen: &FoundDescriptor) -> Result<bool> {
        match self.number_of(seen) {
            None => Ok(false),
            // Whatever it is.
            Some(0..3) => Ok(true),
            Some(_) if seen.metadata.file_type().is_socket() => {
                sockets::check_protocol(seen).map(|()| true)
            }
            Some(_) => Ok(true),
        }
    }

    fn save(&mut self, met: FoundFile<'_>, _: &mut TreeContext<'_>) -> Result<Saved> {
        let number = self.number_of(met.seen);
        let number = number.ok_or_else(|| met.seen.refused("it is another file by now"))?;
        Ok(Kind::Stdio(number).into())
    }

    fn open(&mut self, tree: &Tree, opened: &mut Opened, _: Option<&Board<'_>>) -> Result<()> {
        for (number, file) in tree.files.iter().enumerate() {
            if let Kind::Stdio(own) = file.kind {
                let fd = restore::given(own, file.flags, &self.reporter)?;
                opened.files[number] = opened.keep(fd)?;
            }
        }
        Ok(())
    }

    fn describe(&self, file: &OpenFile) -> Option<String> {
        match file.kind {
            Kind::Stdio(number) => Some(format!("standard descriptor {number} of the supervisor")),
            _ => None,
        }
    }
}
