//! What the target's supervisor does that its machine says.

use snaprig_coord::migration::{
    Id, SiteId, faults,
    target::{Input, Output, Target},
};

use super::{
    program::Program,
    world::{Event, TARGET, World, token},
};
use crate::stage::{Effect, System as _};

/// The longest time that a tree takes to be restored.
const RESTORE_NS: u64 = 500_000;

/// Which target it is.
const SITE: SiteId = SiteId([1; 16]);

impl World {
    /// The supervisor is started, for the first time or again: what it has written down comes first.
    pub fn start_target(&mut self) {
        self.settle_disk(TARGET);
        let decisions = self.decisions();
        let now = self.stage.engine.now_ns();
        let new = match decisions.is_empty() {
            true => Target::new,
            false => Target::with_tree,
        };
        self.target = Some(new(SITE, Some(token()), decisions.clone(), now));
        self.target_handles(Input::Tick);
        if let Some(id) = decisions.first() {
            self.run_tree(*id);
        }
    }

    /// Its tree runs from its image, unless it has come to its end already.
    fn run_tree(&mut self, id: Id) {
        if let Some(program) = self.image(id).filter(|_| self.results.is_empty()) {
            self.has_moved = true;
            self.runs(TARGET, program);
        }
    }

    pub fn target_handles(&mut self, input: Input) {
        let now = self.stage.engine.now_ns();
        let Some(target) = &mut self.target else {
            return;
        };
        for output in target.handle(input, now) {
            if !self.do_later(TARGET, Event::Target(output)) {
                return;
            }
        }
        let due = self.target.as_ref().and_then(Target::deadline);
        self.wake(TARGET, due);
    }

    /// Does what its machine has said.
    pub fn target_does(&mut self, output: Output) {
        let process = self.processes[TARGET];
        match output {
            Output::Send {
                connection,
                message,
            } => self.tell_source(connection, message),
            Output::Close { connection, .. } => self.close(TARGET, Some(connection)),
            Output::Receive { connection, id, .. } => {
                self.receiving = Some((connection, id));
                if let Some(image) = self.early_image.take() {
                    self.image_came(connection, image);
                }
            }
            Output::Drop { id } => {
                self.receiving = None;
                self.early_image = None;
                self.trees[TARGET] = None;
                self.remove_image(id);
            }
            Output::Commit { id } => {
                let Some(result) = self.write_decision(id) else {
                    return;
                };
                let event = Event::TargetWrote(Input::Committed { id, result });
                self.stage.engine.after(process, 0, event);
            }
            Output::Withdraw { id } => {
                let Some(result) = self.withdraw_decision(id) else {
                    return;
                };
                let event = Event::TargetWrote(Input::Withdrawn { id, result });
                self.stage.engine.after(process, 0, event);
            }
            Output::Run { id } => self.run_tree(id),
        }
    }

    /// The image has come. The supervisor may not have read that it comes.
    pub fn image_came(&mut self, wire: u64, image: Vec<u8>) {
        let Some((_, id)) = self.receiving.filter(|(connection, _)| *connection == wire) else {
            self.early_image = Some(image);
            return;
        };
        self.target_handles(Input::Progress { id });
        self.target_handles(Input::Received { id });
        let process = self.processes[TARGET];
        let late_ns = match self.fault(process, &faults::IMAGE) {
            Effect::Ended => return,
            Effect::Late(by_ns) => by_ns,
            Effect::Error(errno) => {
                let result = Err(format!("errno {errno}"));
                return self.restored(id, result);
            }
            _ => self.random.below(RESTORE_NS),
        };
        let result = self.write_image(id, &image);
        let event = Event::Restored(id, result);
        self.stage.engine.after(process, late_ns, event);
    }

    /// The tree is restored, and stands still; or is not.
    pub fn restored(&mut self, id: Id, result: Result<(), String>) {
        if self.receiving.is_none_or(|(_, own)| own != id) {
            return;
        }
        self.receiving = None;
        if result.is_ok() {
            let program = self.image(id).unwrap_or_default();
            self.stands(TARGET, program);
        }
        self.target_handles(Input::Restored { id, result });
    }

    /// A record is on the disk, or gone from it, or not.
    pub fn target_wrote(&mut self, input: Input) {
        if self.fault(self.processes[TARGET], &faults::STEPPED) != Effect::Ended {
            self.target_handles(input);
        }
    }

    /// A program is there, and stands still.
    fn stands(&mut self, side: usize, program: Program) {
        self.trees[side] = Some(super::program::Tree {
            program,
            is_running: false,
        });
    }
}
