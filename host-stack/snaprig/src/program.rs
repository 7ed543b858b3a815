//! The program of a test is the `snaprig` program as well: a fabric's control daemon, a card and a supervisor are processes of
//! it, so that nothing has to be installed beside a test, and all of it is of one version.
//!
//! What must stay true: a program that was not started to be one of these runs as if this module were not there.

use std::{env, error::Error, ffi::OsStr, path::Path, process};

use snaprig_sdk::program;

/// Called by libc before `main`, with the descriptors, arguments and the environment of the process (elf(5), .init_array).
extern "C" fn before_main() {
    program::is_this(env!("SNAPRIG_BUILDS"));
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    // Who starts one gives it this name.
    if Path::new(&name).file_name() != Some(OsStr::new(program::NAME)) {
        return;
    }
    let arguments: Vec<String> = arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    // SAFETY: SIG_IGN is no handler, so no code of this program runs at a signal. Rust's `main` does the same later.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    if let Some(done) = become_one(&arguments) {
        process::exit(done.unwrap_or_else(|error| {
            eprintln!("snaprig: {error}");
            1
        }));
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Keeps [`BEFORE_MAIN`] in every program that has a test in it: a linker takes what is referred to.
pub(crate) fn keep() {
    std::hint::black_box(&BEFORE_MAIN);
}

type Status = Result<i32, Box<dyn Error + Send + Sync>>;

/// What a process is that was started to be one of ours: its exit status.
fn become_one(arguments: &[String]) -> Option<Status> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        #[cfg(feature = "verbs")]
        [snaprig_fabric::start::PROCESS] => {
            Some(snaprig_verbs::daemon::process::main().map(|()| 0))
        }
        #[cfg(feature = "verbs")]
        [snaprig_fabric::nodes::PROCESS, node, ..] => {
            // As they were given: what a shell reads may be other than text.
            let words: Vec<_> = env::args_os().skip(3).collect();
            Some(Err(snaprig_fabric::nodes::exec(node, &words).into()))
        }
        #[cfg(feature = "cards")]
        [snaprig_rig::card_process::PROCESS, options] => {
            Some(snaprig_rig::card_process::main(options).map(|()| 0))
        }
        #[cfg(feature = "ckpt")]
        [snaprig_branch::process::PROCESS, task] => Some(snaprig_branch::process::main(task)),
        #[cfg(feature = "ckpt")]
        [snaprig_supervisor::process::PROCESS, task] => {
            Some(snaprig_supervisor::process::main(task))
        }
        _ => None,
    }
}
