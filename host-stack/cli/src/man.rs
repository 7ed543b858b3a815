//! `snaprig man`: manual pages, for those who make packages.

use std::{fs, path::PathBuf, process::ExitCode};

use clap::{Args, CommandFactory};

use crate::{AnyError, Cli};

/// Write a manual page for each command
#[derive(Args)]
pub struct Options {
    /// Where to: made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Writes `snaprig.1`, `snaprig-card.1`, `snaprig-card-run.1`, and so on.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let directory = &options.directory;
    let write = || {
        fs::create_dir_all(directory)?;
        clap_mangen::generate_to(Cli::command(), directory)
    };
    write().map_err(|error| {
        format!(
            "cannot write manual pages into {}: {error}; name a directory that you may write to",
            directory.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands below this one that are shown, by their names from the root.
    fn shown(command: &clap::Command, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        for command in command.get_subcommands() {
            if !command.is_hide_set() && command.get_name() != "help" {
                names.extend(shown(command, &format!("{name}-{}", command.get_name())));
            }
        }
        names
    }

    #[test]
    fn each_command_that_is_shown_has_a_page_and_no_other() {
        let scratch = tempfile::tempdir().expect("a directory");
        let directory = scratch.path().join("not/there/yet");
        let options = Options { directory };
        run(&options).expect("pages are written");
        let entries = fs::read_dir(&options.directory).expect("it is there");
        let mut pages: Vec<_> = entries
            .map(|entry| entry.expect("an entry").file_name().into_string().unwrap())
            .collect();
        let mut expected: Vec<_> = shown(&Cli::command(), "snaprig")
            .into_iter()
            .map(|name| format!("{name}.1"))
            .collect();
        pages.sort();
        expected.sort();
        assert!(expected.contains(&"snaprig-ckpt-launch.1".to_owned()));
        assert_eq!(pages, expected);
        for page in pages {
            let text = fs::read_to_string(options.directory.join(page)).expect("it is text");
            assert!(text.contains(".SH NAME"), "{text}");
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let options = Options {
            directory: "/dev/null/man".into(),
        };
        let error = run(&options).expect_err("it is no directory");
        assert!(error.to_string().contains("/dev/null/man"), "{error}");
    }
}
