//! A benchmark that is chosen on a command line, from the list of all.

use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand, error::ErrorKind};

use crate::{AnyError, benches::ALL};

/// A benchmark.
pub trait Bench: Sync {
    /// What the command line has of it: its name, what it is about, its options.
    fn command(&self) -> Command;

    /// Measures, and prints what was found.
    fn run(&self, given: &ArgMatches) -> Result<ExitCode, AnyError>;
}

/// A benchmark with options of this type.
pub struct BenchWith<O> {
    name: &'static str,
    about: &'static str,
    run: fn(&O) -> Result<ExitCode, AnyError>,
}

impl<O> BenchWith<O> {
    /// A benchmark by what the command line is to show of it, and the function that measures.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        run: fn(&O) -> Result<ExitCode, AnyError>,
    ) -> Self {
        Self { name, about, run }
    }
}

impl<O: Args> Bench for BenchWith<O> {
    fn command(&self) -> Command {
        O::augment_args(Command::new(self.name)).about(self.about)
    }

    fn run(&self, given: &ArgMatches) -> Result<ExitCode, AnyError> {
        (self.run)(&O::from_arg_matches(given)?)
    }
}

/// One of the list, and what it was told.
pub struct Choice {
    bench: &'static dyn Bench,
    given: ArgMatches,
}

impl Choice {
    /// Runs it.
    pub fn run(&self) -> Result<ExitCode, AnyError> {
        self.bench.run(&self.given)
    }
}

impl FromArgMatches for Choice {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let missing = || Error::raw(ErrorKind::MissingSubcommand, "which benchmark?\n");
        let (name, given) = matches.subcommand().ok_or_else(missing)?;
        let mut all = ALL.iter();
        let bench = all.find(|bench| bench.command().get_name() == name);
        Ok(Self {
            bench: *bench.ok_or_else(missing)?,
            given: given.clone(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Choice {
    fn augment_subcommands(command: Command) -> Command {
        command.subcommands(ALL.iter().map(|bench| bench.command()))
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        ALL.iter().any(|bench| bench.command().get_name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(arguments: &[&str]) -> Result<Choice, Error> {
        let command = Choice::augment_subcommands(Command::new("bench")).subcommand_required(true);
        let matches = command.try_get_matches_from([&["bench"], arguments].concat())?;
        Choice::from_arg_matches(&matches)
    }

    #[test]
    fn every_bench_can_be_chosen_by_a_name_of_its_own() {
        for bench in ALL {
            let command = bench.command();
            command.clone().debug_assert();
            let choice = chosen(&[command.get_name()]).unwrap();
            assert_eq!(choice.bench.command().get_name(), command.get_name());
        }
        assert!(chosen(&[]).is_err() && chosen(&["none"]).is_err());
        assert!(chosen(&["sim", "--no-such-option"]).is_err());
    }
}
