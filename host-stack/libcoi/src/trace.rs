//! Around every call: with SNAPRIG_COI_TRACE=1, a line on standard error with its arguments, its
//! result and how long it took; and whatever panics inside ends here.

use std::{
    fmt::{Debug, Write as _},
    io::Write as _,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    time::Instant,
};

use crate::{
    fork,
    result::{Done, Failure, code},
};

/// Whether calls are to be told of.
pub fn is_on() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var_os("SNAPRIG_COI_TRACE").is_some_and(|value| value == "1"))
}

/// A line for whoever traces.
pub fn say(line: impl FnOnce() -> String) {
    if is_on() {
        write("coi", &line());
    }
}

/// A line for the user, whether anybody traces or not.
pub fn tell(line: &str) {
    write("libcoi", line);
}

fn write(who: &str, line: &str) {
    // Nobody may be reading: that is no affair of the program's.
    let _ = std::io::stderr().write_all(format!("{who}: {line}\n").as_bytes());
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
    let done = match fork::refusal() {
        Some(failure) => Err(failure),
        None => catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(bug),
    };
    let code = done.as_ref().map_or_else(|failure| failure.code, |()| 0);
    if let Some(start) = start {
        let took = start.elapsed().as_micros();
        let mut line = format!("{name}({})", shown(arguments));
        let _ = match done {
            Ok(()) => write!(line, " = COI_SUCCESS"),
            Err(failure) => write!(line, " = {failure}"),
        };
        say(|| format!("{line} {took} us"));
    }
    code
}

/// Arguments, as a line has them. An array is as long as the argument before it says.
fn shown(arguments: &[(&str, &dyn Debug)]) -> String {
    // No precision is larger.
    const COUNT_MAX: usize = u16::MAX as usize;
    let mut count = 0;
    let list = arguments.iter().map(|(name, value)| {
        let value = format!("{value:.count$?}");
        count = value.parse().unwrap_or(0).min(COUNT_MAX);
        format!("{name}={value}")
    });
    list.collect::<Vec<_>>().join(", ")
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strings::{Text, Texts};

    #[test]
    fn an_array_is_as_long_as_the_argument_before_it_says() {
        let names = [Text(c"one".as_ptr()), Text(c"two".as_ptr())];
        let names = Texts(names.as_ptr());
        let line = shown(&[
            ("count", &1_u32),
            ("names", &names),
            ("bytes", &u64::MAX),
            ("flags", &-1),
        ]);
        assert_eq!(
            line,
            format!("count=1, names=[\"one\"], bytes={}, flags=-1", u64::MAX)
        );
    }
}
