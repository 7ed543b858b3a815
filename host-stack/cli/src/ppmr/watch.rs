//! A node that is about to fail is left before it does: when a signal says so, or a source of health.
//!
//! ```text
//!  every so often, of each node with processes:   command, file, or fault plan --> well, or failing
//!  failing so many times in a row, or a signal --> policy: where to? --> migrate
//! ```
//! What must stay true: whoever watches has no part in the job: it may die, and another one watch instead. Nobody is sent to a
//! node that is failing itself.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use serde::Serialize;
use snaprig_fabric::nodes::requests::{self, Peopled};

use super::{
    health_plan::HealthPlan,
    migrate::{Migration, migrate, spares},
};
use crate::{
    AnyError,
    ckpt::job::nodes_of,
    report,
    signals::{ENDS, Signal, block},
};

/// How often it is looked whether a command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Most that is read of what a command says.
const SAID_MAX: u64 = 4096;

/// What `ppmr watch` is told.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    migration: Migration,
    /// The node that is left on SIGUSR1
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// A command for a shell, with the node's name in $NODE: the node is failing if its exit status is not 0, or if it takes longer
    /// than --every. With --above, if the number that it prints is larger
    #[arg(long, value_name = "COMMAND")]
    health: Option<String>,
    /// A file that names nodes which are failing, a line for each. With --above, each with a number behind it, and failing if that
    /// is larger
    #[arg(long, value_name = "FILE")]
    health_file: Option<PathBuf>,
    /// A fault plan: a node is failing from the look on (`health.look`) at which the plan has it crash
    #[arg(long, value_name = "FILE")]
    health_plan: Option<PathBuf>,
    /// Up to this, a number is well: a temperature, a count of errors
    #[arg(long, value_name = "NUMBER")]
    above: Option<f64>,
    /// How often nodes are looked at
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    every: f64,
    /// How often in a row a node is failing before it is left
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    times: u32,
    /// A command for a shell that says where processes go: it reads {"from", "members", "spares"} and prints a node, or nothing if
    /// they are to stay [default: to the first spare node]
    #[arg(long, value_name = "COMMAND")]
    policy: Option<String>,
    /// Print JSON, a line for each migration
    #[arg(long)]
    json: bool,
}

/// Watches until the job's nodes are gone, or it is interrupted.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let every = Duration::try_from_secs_f64(options.every)?;
    let signals = block(&[&ENDS[..], &[Signal::User]].concat())?;
    let directory = nodes_of(options.migration.job())?;
    let plan = match &options.health_plan {
        Some(file) => {
            let places = requests::places(&directory)?;
            let nodes: Vec<_> = places.iter().map(|place| &*place.node).collect();
            Some(HealthPlan::read(file, &nodes)?)
        }
        None => None,
    };
    let mut watch = Watch {
        options,
        every,
        plan,
    };
    let mut failing = BTreeMap::new();
    eprintln!("nodes are watched; interrupt to end that");
    loop {
        // Without nodes, there is nobody to be watched.
        let Ok(places) = requests::places(&directory) else {
            return Ok(ExitCode::SUCCESS);
        };
        watch.plan.iter_mut().for_each(HealthPlan::look);
        for place in places.iter().filter(|place| !place.members.is_empty()) {
            let count = failing.entry(place.node.clone()).or_insert(0);
            *count = match watch.is_failing(&place.node) {
                true => *count + 1,
                false => 0,
            };
            if *count >= options.times {
                *count = 0;
                watch.leave(place, &places);
            }
        }
        match signals.wait_at_most(every) {
            None => {}
            Some(Signal::User) => {
                let node = options.node.as_deref();
                let places = requests::places(&directory)?;
                let place = places.iter().find(|place| Some(&*place.node) == node);
                match place {
                    Some(place) => watch.leave(place, &places),
                    None => eprintln!("snaprig: SIGUSR1, and no --node of the job to be left"),
                }
            }
            Some(_) => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// What a policy reads.
#[derive(Serialize)]
struct Question<'a> {
    from: &'a str,
    members: &'a [String],
    spares: Vec<&'a str>,
}

/// Who watches.
struct Watch<'a> {
    options: &'a Options,
    every: Duration,
    plan: Option<HealthPlan>,
}

impl Watch<'_> {
    /// Whether a source of health says so.
    fn is_failing(&self, node: &str) -> bool {
        let Options {
            health,
            health_file,
            above,
            ..
        } = self.options;
        let by_command = health.as_deref().is_some_and(|command| {
            let said = shell(command, &[("NODE", node)], b"", self.every);
            match (said, above) {
                (Err(_), _) => true,
                (Ok(_), None) => false,
                (Ok(said), Some(above)) => said.trim().parse().map_or(true, |is: f64| is > *above),
            }
        });
        by_command
            || health_file
                .as_deref()
                .is_some_and(|file| self.names(file, node))
            || self.plan.as_ref().is_some_and(|plan| plan.names(node))
    }

    /// Whether a file names it.
    fn names(&self, file: &Path, node: &str) -> bool {
        // One that is not there names nobody.
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| {
            let mut words = line.split_whitespace();
            let number = |word: Option<&str>| word.and_then(|word| word.parse::<f64>().ok());
            let above = self.options.above;
            words.next() == Some(node)
                && above.is_none_or(|above| number(words.next()).is_none_or(|is| is > above))
        })
    }

    /// Has all processes of a node go on elsewhere. If they cannot, they are where they were.
    fn leave(&self, from: &Peopled, places: &[Peopled]) {
        let options = self.options;
        let left = self.to(from, places).and_then(|to| match to {
            None => {
                eprintln!(
                    "snaprig: the policy has the processes of {} stay",
                    from.node
                );
                Ok(())
            }
            Some(to) => migrate(&options.migration, &from.node, Some(&to))?.print(options.json),
        });
        if let Err(error) = left {
            report::error(&*error);
        }
    }

    /// Where its processes are to go; none: nowhere.
    fn to(&self, from: &Peopled, places: &[Peopled]) -> Result<Option<String>, AnyError> {
        let mut spares = spares(places);
        spares.retain(|node| !self.is_failing(node));
        let Some(policy) = &self.options.policy else {
            let first = spares.first().ok_or("no node is spare and well")?;
            return Ok(Some((*first).to_owned()));
        };
        let question = serde_json::to_vec(&Question {
            from: &from.node,
            members: &from.members,
            spares,
        })?;
        let said = shell(policy, &[], &question, self.every)?;
        Ok(Some(said.trim().to_owned()).filter(|node| !node.is_empty()))
    }
}

/// What a command prints that ends well, and in time.
fn shell(
    command: &str,
    variables: &[(&str, &str)],
    input: &[u8],
    time_max: Duration,
) -> Result<String, AnyError> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).envs(variables.iter().copied());
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who does not read it need not. It is less than a pipe takes.
        let _ = stdin.write_all(input);
    }
    let said = child.stdout.take();
    let reader = thread::spawn(move || {
        let mut text = String::new();
        let read = said.map(|said| said.take(SAID_MAX).read_to_string(&mut text));
        read.transpose().map(|_| text)
    });
    let status = wait(&mut child, time_max)?;
    match status {
        true => Ok(reader.join().map_err(|_| "nobody has read it")??),
        false => Err(format!("{command:?} has failed").into()),
    }
}

/// Whether a child ends well, and in time.
fn wait(child: &mut Child, time_max: Duration) -> Result<bool, AnyError> {
    let until = Instant::now() + time_max;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.success());
        }
        if Instant::now() > until {
            child.kill()?;
            child.wait()?;
            return Ok(false);
        }
        thread::sleep(LOOK_EVERY);
    }
}
