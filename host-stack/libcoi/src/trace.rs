//! Around every call: with SNAPRIG_COI_TRACE=1, a line on standard error with its arguments, its
//! result and how long it took; and whatever panics inside ends here.

use std::{
    fmt::{Debug, Write as _},
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    time::Instant,
};

use crate::result::{Done, Failure, code};

/// Whether calls are to be told of.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("SNAPRIG_COI_TRACE").is_some_and(|value| value == "1"))
}

/// A line for whoever traces.
pub fn say(line: impl FnOnce() -> String) {
    if is_on() {
        // Nobody may be reading: that is no affair of the program's.
        let _ = std::io::stderr().write_all(format!("coi: {}\n", line()).as_bytes());
    }
}

/// Makes a call.
pub fn call(name: &str, arguments: &[(&str, &dyn Debug)], body: impl FnOnce() -> Done) -> u32 {
    let start = is_on().then(Instant::now);
    let bug = |_| {
        Err(Failure::new(
            code::ERROR,
            "a bug in libcoi_host: it panicked",
        ))
    };
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(bug);
    let code = done.as_ref().map_or_else(|failure| failure.code, |()| 0);
    if let Some(start) = start {
        let took = start.elapsed().as_micros();
        let list = arguments
            .iter()
            .map(|(name, value)| format!("{name}={value:?}"));
        let mut line = format!("{name}({})", list.collect::<Vec<_>>().join(", "));
        let _ = match done {
            Ok(()) => write!(line, " = COI_SUCCESS"),
            Err(failure) => write!(line, " = {failure}"),
        };
        say(|| format!("{line} {took} us"));
    }
    code
}

/// A function of the C interface that gives a COIRESULT.
macro_rules! api {
    ($(
        $(#[$doc:meta])*
        fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$doc])*
        pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            $crate::trace::call(
                stringify!($name),
                &[$((stringify!($argument), &$argument as &dyn std::fmt::Debug)),*],
                || $body,
            )
        }
    )*};
}
pub(crate) use api;
