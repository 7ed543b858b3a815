//! A run that panics is a failure like others: its message is part of what is found, and is not
//! printed each time that the plan is tried again.

use std::{
    any::Any,
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    sync::Once,
};

thread_local! {
    /// Whether a panic of this thread is caught here.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `run`; the message if it panics.
pub fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                others(panic);
            }
        }));
    });
    let before = QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(run));
    QUIET.set(before);
    result.map_err(|payload| message(&*payload))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("it says nothing").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_kept_and_results_passed_on() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(caught(|| panic!("first")), Err::<(), _>("first".into()));
        let number = 2;
        let formatted = caught(|| panic!("number {number}"));
        assert_eq!(formatted, Err::<(), _>("number 2".into()));
    }
}
