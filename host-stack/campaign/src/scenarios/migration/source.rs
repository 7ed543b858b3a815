//! What the source's supervisor does that its machine says.

use snaprig_coord::migration::{
    Id, Record, faults,
    message::ToTarget,
    source::{Config, Input, Output, Source},
};
use snaprig_wire::frame;

use super::{
    Canary,
    world::{Event, SOURCE, World, token},
};
use crate::stage::{Effect, System as _};

/// The longest time that pages are on their way while the tree runs.
const COPY_NS: u64 = 1_000_000;

impl World {
    /// Somebody wants the tree to move.
    pub fn order(&mut self) {
        let runs = self.trees[SOURCE].is_some_and(|tree| tree.is_running);
        let is_alive = self.stage.engine.is_alive(self.processes[SOURCE]);
        if self.source.is_none() && runs && is_alive {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&self.random.number().to_le_bytes());
            let now = self.stage.engine.now_ns();
            self.source = Some(Source::new(config(Id(id)), now));
            self.source_handles(Input::Tick);
        }
        self.order_later();
    }

    /// The supervisor is started again: what it has written down comes first.
    pub fn start_source(&mut self) {
        self.settle_disk(SOURCE);
        let asks = self.canary != Some(Canary::ForgottenQuestion);
        match self.record().filter(|_| asks) {
            Some(Record::Gone(_)) => {}
            Some(Record::Going(id, site)) => {
                let now = self.stage.engine.now_ns();
                self.source = Some(Source::resumed(config(id), site, now));
                self.source_handles(Input::Tick);
            }
            None => self.restart_tree(),
        }
    }

    fn restart_tree(&mut self) {
        if let Some(program) = self.checkpoint() {
            self.runs(SOURCE, program);
        }
    }

    pub fn source_handles(&mut self, input: Input) {
        let now = self.stage.engine.now_ns();
        let Some(source) = &mut self.source else {
            return;
        };
        for output in source.handle(input, now) {
            let event = Event::Source(output);
            if !self.do_later(SOURCE, event) {
                return;
            }
        }
        self.wake_source();
    }

    fn wake_source(&mut self) {
        let due = self.source.as_ref().and_then(Source::deadline);
        self.wake(SOURCE, due);
    }

    pub fn source_closed(&mut self, why: String) {
        let in_doubt = self.source.as_ref().is_some_and(Source::is_in_doubt);
        if self.canary == Some(Canary::TwoOfIt) && in_doubt {
            self.let_go();
        }
        self.source_handles(Input::Closed { why });
    }

    /// Does what its machine has said.
    pub fn source_does(&mut self, output: Output) {
        match output {
            Output::Connect => self.connect(),
            Output::Send(message) => {
                if self.canary == Some(Canary::NoneOfIt)
                    && let ToTarget::Go { id, .. } = message
                {
                    self.trees[SOURCE] = None;
                    let _ = self.write_record(Record::Gone(id));
                }
                self.tell_target(message);
            }
            Output::Close => self.close(SOURCE, None),
            Output::Copy => {
                self.copying += 1;
                let by_ns = self.random.below(COPY_NS);
                let event = Event::Copied(self.copying);
                self.stage
                    .engine
                    .after(self.processes[SOURCE], by_ns, event);
            }
            Output::StopCopying => self.copying += 1,
            Output::Write(record) => {
                let Some(result) = self.write_record(record) else {
                    return;
                };
                self.stage
                    .engine
                    .after(self.processes[SOURCE], 0, Event::SourceWrote(result));
            }
            Output::Erase => self.erase_record(),
            Output::LetGo => self.let_go(),
            Output::End => self.trees[SOURCE] = None,
            Output::Over(_) => self.source = None,
        }
    }

    /// The tree runs here: as it stands, or from its checkpoint.
    fn let_go(&mut self) {
        match self.trees[SOURCE] {
            Some(tree) if tree.is_running => {}
            Some(tree) => self.runs(SOURCE, tree.program),
            // It has come to its end before it was stopped.
            None if !self.results.is_empty() => {}
            None => self.restart_tree(),
        }
    }

    /// Pages have left; the tree is stopped, and what is left leaves.
    pub fn copied(&mut self, copying: u64) {
        if copying != self.copying {
            return;
        }
        let Some(tree) = &mut self.trees[SOURCE] else {
            let why = "the program has ended".into();
            return self.source_handles(Input::Copied(Err(why)));
        };
        tree.is_running = false;
        let image = frame::encode(&tree.program);
        self.send_image(image);
        if self.stage.engine.is_alive(self.processes[SOURCE]) {
            self.source_handles(Input::Copied(Ok(())));
        }
    }

    /// The record is on the disk, or not.
    pub fn source_wrote(&mut self, result: Result<(), snaprig_coord::migration::WriteError>) {
        if self.fault(self.processes[SOURCE], &faults::STEPPED) != Effect::Ended {
            self.source_handles(Input::Written(result));
        }
    }
}

fn config(id: Id) -> Config {
    Config {
        id,
        token: Some(token()),
        command: vec!["count".into()],
    }
}
