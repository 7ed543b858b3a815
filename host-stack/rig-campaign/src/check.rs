//! What must be true of a run on a real rig, whatever went wrong in it.

use std::path::Path;

use snaprig_campaign::scenario::{Broken, Class};
use snaprig_snapify_io::store;

use crate::{
    faults::Done,
    run::{Ending, Seen},
    shared::Program,
};

/// A broken invariant.
pub type Violation = Option<Broken>;

fn broken(class: Class, invariant: &'static str, how: impl Into<String>) -> Violation {
    let how = how.into();
    Some(Broken {
        invariant,
        how,
        class,
    })
}

fn wrong(invariant: &'static str, how: impl Into<String>) -> Violation {
    broken(Class::Wrong, invariant, how)
}

/// Liveness: within the time that a run may take.
pub fn a_hang(how: impl Into<String>) -> Violation {
    broken(Class::Hang, "nobody waits for ever", how)
}

/// The first invariant that does not hold.
pub fn check(seen: &Seen) -> Violation {
    result(seen)
        .or_else(|| loss(seen))
        .or_else(|| snapshot(seen))
        .or_else(|| errors(seen))
}

/// Of programs that share cards, the first that was treated as none may be.
pub fn programs(seen: &[Program], done: &Done) -> Violation {
    let lost_cards = done.killed.iter().any(|name| {
        ["rig", "card", "daemon"]
            .iter()
            .any(|kind| name.starts_with(kind))
    });
    let can_be_lost = lost_cards || !done.restarted.is_empty();
    seen.iter().find_map(|one| {
        let is_killed = done.killed.contains(&one.name);
        match one.ending {
            Ending::Finished => None,
            Ending::Wrong => wrong(
                "equals the undisturbed run",
                format!("the result of {} is not the golden one", one.name),
            ),
            Ending::Lost if is_killed => None,
            Ending::Lost if !can_be_lost => wrong(
                "an application outlives its card",
                format!("{} was lost, and no card was", one.name),
            ),
            Ending::Lost if one.said.trim().is_empty() => wrong(
                "errors are reported",
                format!("{} was lost, and was not told why", one.name),
            ),
            Ending::Lost => None,
        }
    })
}

fn result(seen: &Seen) -> Violation {
    let how = match &seen.ending {
        Ending::Wrong => "the result is not the golden one, bit for bit",
        Ending::Finished | Ending::Lost => return None,
    };
    wrong("equals the undisturbed run", how)
}

/// An application is lost only when its process is, and nothing can bring it back.
fn loss(seen: &Seen) -> Violation {
    if seen.ending == Ending::Finished || seen.can_be_lost {
        return None;
    }
    let how = "it was lost, though its process could be brought back";
    wrong("an application outlives its card", how)
}

fn snapshot(seen: &Seen) -> Violation {
    let invariant = "a snapshot is whole or not there, and the earlier one stays";
    let partial = seen.snapshot.with_extension("partial");
    if partial.exists() && !seen.was_killed("host") && !seen.was_killed("rig") {
        return wrong(invariant, "a half-made snapshot is left");
    }
    match store::open(&seen.snapshot) {
        Ok(_) => None,
        Err(_) if !seen.snapshot.exists() && seen.captures == 0 => None,
        Err(error) => wrong(invariant, error.to_string()),
    }
}

fn errors(seen: &Seen) -> Violation {
    let invariant = "errors are reported";
    if seen.errors.iter().any(|error| error.trim().is_empty()) {
        return wrong(invariant, "a command failed without a word");
    }
    let told = !seen.errors.is_empty() || !seen.host_said.trim().is_empty();
    if seen.ending == Ending::Lost && !seen.was_killed("host") && !told {
        return wrong(
            invariant,
            "the application was lost, and nobody was told why",
        );
    }
    None
}

/// What is left when all is over: of the rig's directory, and of its processes.
pub fn leaks(rig_dir: &Path, processes: &[String]) -> Violation {
    let directory = rig_dir
        .exists()
        .then(|| format!("{} is left", rig_dir.display()));
    let left = directory.or_else(|| processes.first().cloned());
    left.and_then(|how| wrong("nothing leaks", how))
}
