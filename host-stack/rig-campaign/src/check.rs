//! What must be true of a run on a real rig, whatever went wrong in it.

use std::path::Path;

use snaprig_campaign::scenario::{Broken, Class};
use snaprig_snapify_io::store;

use crate::run::{Ending, Seen};

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
        .or_else(|| leaks(seen))
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

fn leaks(seen: &Seen) -> Violation {
    let exists = |path: &Path| path.exists().then(|| format!("{} is left", path.display()));
    let left = exists(&seen.rig_dir).or_else(|| seen.left.first().cloned());
    left.and_then(|how| wrong("nothing leaks", how))
}
