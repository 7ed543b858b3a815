//! `snaprig completions`: what a shell needs to complete our commands.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::{AnyError, Cli};

/// Print completions of our commands for a shell
#[derive(Args)]
pub struct Options {
    /// Which shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the shell's script.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    io::stdout().write_all(&script(options.shell))?;
    Ok(ExitCode::SUCCESS)
}

/// The script is whole before any of it is written: the generator panics where it cannot write.
fn script(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "snaprig", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn bash_understands_its_completions() {
        let mut bash = Command::new("bash")
            .arg("-n")
            .stdin(Stdio::piped())
            .spawn()
            .expect("bash is there");
        let mut stdin = bash.stdin.take().expect("it is piped");
        stdin.write_all(&script(Shell::Bash)).expect("bash reads");
        drop(stdin);
        assert!(bash.wait().expect("it is ours").success());
    }

    #[test]
    fn bash_offers_subcommands_and_their_options() {
        let script = String::from_utf8(script(Shell::Bash)).expect("it is text");
        let answer = Command::new("bash")
            .arg("-c")
            .arg(format!(
                "{script}\nCOMP_WORDS=(snaprig ckpt launch --int) COMP_CWORD=3\n\
                 _snaprig snaprig --int launch; echo \"${{COMPREPLY[@]}}\""
            ))
            .output()
            .expect("bash is there");
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "--interval\n");
    }
}
