//! Names that projects and scripts for Xeon Phi call programs by: this program answers to them, too.
//!
//! What must stay true: only the name by which it is called says which program it is (its first argument); called `snaprig`,
//! it is itself.

mod compiler;
mod layout;
pub mod micctrl;
pub mod micinfo;
pub mod micnativeloadex;

use std::{
    ffi::{OsStr, OsString},
    path::Path,
};

pub use layout::put;

use compiler::Tool;

/// MPSS's own tools, which are commands of ours by the same names.
const COMMANDS: [&str; 3] = ["micinfo", "micctrl", "micnativeloadex"];

/// All names.
fn names() -> impl Iterator<Item = String> {
    compiler::names().chain(COMMANDS.map(str::to_owned))
}

/// What a process is.
pub enum Named {
    /// A tool of the system's, with these arguments.
    Tool(Tool, Vec<OsString>),
    /// A command of ours, with its name before its arguments.
    Command(Vec<OsString>),
}

/// What a process is that was called with these arguments, its name first.
pub fn named(mut arguments: Vec<OsString>) -> Named {
    let path = arguments.first().map(Path::new);
    let name = path.and_then(Path::file_name).and_then(OsStr::to_str);
    let name = name.unwrap_or_default().to_owned();
    if let Some(tool) = Tool::named(&name) {
        arguments.remove(0);
        return Named::Tool(tool, arguments);
    }
    if COMMANDS.contains(&name.as_str()) {
        let others = arguments.split_off(1);
        arguments.push(OsString::from(&name));
        match name.as_str() {
            "micinfo" => arguments.extend(others.into_iter().map(with_two_dashes)),
            _ => arguments.extend(others),
        }
    }
    Named::Command(arguments)
}

/// MPSS's has long options with one dash or two, in letters of any size.
fn with_two_dashes(argument: OsString) -> OsString {
    const LONG: [&str; 3] = ["deviceinfo", "group", "help"];
    let text = argument.to_str().unwrap_or_default();
    let long = text.trim_start_matches('-').to_lowercase();
    match text.starts_with('-') && LONG.contains(&long.as_str()) {
        true => format!("--{long}").into(),
        false => argument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_name_says_which_program_it_is() {
        for (line, expected) in [
            ("snaprig card list", "snaprig card list"),
            ("/a/bin/micctrl -s mic0", "/a/bin/micctrl micctrl -s mic0"),
            (
                "micinfo -deviceInfo 0 -group Cores",
                "micinfo micinfo --deviceinfo 0 --group Cores",
            ),
            (
                "micnativeloadex ./a -a -group",
                "micnativeloadex micnativeloadex ./a -a -group",
            ),
        ] {
            let Named::Command(arguments) = named(words(line)) else {
                panic!("{line}");
            };
            assert_eq!(arguments, words(expected));
        }
        let Named::Tool(_, arguments) = named(words("/a/icc -c a.c")) else {
            panic!("it is a compiler");
        };
        assert_eq!(arguments, words("-c a.c"));
    }
}
