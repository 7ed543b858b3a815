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
    use std::process::{Command, Output, Stdio};

    use super::*;

    /// Bash, told the script and what follows on its standard input: an argument of a program cannot be as long (execve(2)).
    fn bash(arguments: &[&str], more: &str) -> Output {
        let mut bash = Command::new("bash")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is there");
        let mut stdin = bash.stdin.take().expect("it is piped");
        stdin.write_all(&script(Shell::Bash)).expect("bash reads");
        stdin.write_all(more.as_bytes()).expect("bash reads");
        drop(stdin);
        bash.wait_with_output().expect("it is ours")
    }

    #[test]
    fn bash_understands_its_completions() {
        assert!(bash(&["-n"], "").status.success());
    }

    #[test]
    fn bash_offers_subcommands_and_their_options() {
        let more = "\nCOMP_WORDS=(snaprig ckpt launch --int) COMP_CWORD=3\n\
                    _snaprig snaprig --int launch; echo \"${COMPREPLY[@]}\"\n";
        let answer = bash(&[], more);
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "--interval\n");
    }
}
