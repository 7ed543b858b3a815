//! The script of a host process: it takes snapshots of an offload process while the application
//! works, has it swapped or moved, and brings it back, as the scenario says.

use snaprig_coi::machine as coi;
use snaprig_snapify::{SnapifyError, machine::Call};

use snaprig_scenario::scenario::invariant;

use crate::{
    canary::Canary,
    state::{HostId, event::Event, host::HostTask, script::Next},
    world::World,
};

impl World {
    /// The work of a host process begins, or, if not `early`, its run functions do: its script will.
    pub(super) fn start_script(&mut self, host: HostId, early: bool) {
        if self.hosts[host].script.is_early != early {
            return;
        }
        let event = Event::Host(host, HostTask::Script);
        let after_ns = self.hosts[host].script.after_ns;
        self.net
            .stage
            .engine
            .after(self.host_processes[host], after_ns, event);
    }

    pub(super) fn script(&mut self, host: HostId) {
        let place = self.hosts[host].place;
        let script = &mut self.hosts[host].script;
        if script.calling.is_some() {
            return;
        }
        script.look_elsewhere(place);
        let next = script.next;
        let call = match next {
            Next::Copy => {
                script.round += 1;
                Call::Copy(script.targets.first().copied())
            }
            Next::Pause => {
                if !std::mem::take(&mut script.copied) {
                    script.round += 1;
                }
                match script.moves {
                    true => Call::PauseToMove,
                    false => Call::Pause,
                }
            }
            Next::Capture => Call::Capture(script.terminate),
            Next::Restore => match script.targets.first().copied() {
                Some(node) => Call::Restore(node),
                None => {
                    script.next = Next::Resume;
                    return self.script(host);
                }
            },
            Next::Resume => Call::Resume,
            Next::Done => return,
        };
        script.calling = Some(next);
        self.call(host, call);
    }

    pub(super) fn returned(&mut self, host: HostId, result: Result<u64, SnapifyError>) {
        let one = &mut self.hosts[host];
        let Some(called) = one.script.calling.take() else {
            return self.violation(invariant::CONTRADICTION, "a call returned twice");
        };
        let well = result.is_ok();
        one.errors
            .extend(result.err().map(|error| error.to_string()));
        let next = one.script.after(called, well);
        one.script.next = next.unwrap_or(Next::Done);
        if next.is_none() && self.canary != Some(Canary::SilentLoss) {
            // Nothing brings it back. The application ends.
            self.hosts[host].lost = true;
            self.coi(host, coi::Input::RigGone);
        }
        let event = Event::Host(host, HostTask::Script);
        self.net
            .stage
            .engine
            .after(self.host_processes[host], 0, event);
    }
}
