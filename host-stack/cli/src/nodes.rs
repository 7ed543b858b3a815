//! `snaprig nodes`: several machines of a cluster on this one, and a program that starts others on them.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use snaprig_fabric::{
    Fabric, Node, Nodes,
    nodes::{
        self,
        link::BitRate,
        requests::{self, LOOK_EVERY, Peopled, REQUESTS, REQUESTS_ENV, Request, Wanted, quoted},
    },
    place::{HCAS_MAX, Place, parse_models},
};
use snaprig_supervisor::Job;

use crate::{AnyError, programs::not_started};

/// Run a program that starts others on nodes of a cluster: mpirun, mpiexec
///
/// Each node has HCAs, a name (node1, node2, ...) and, where network namespaces can be made, an address of its own. Open MPI's mpirun and MPICH's mpiexec start their ranks on them.
#[derive(Args)]
pub struct Options {
    /// How many nodes
    #[arg(value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=HCAS_MAX as i64))]
    count: u32,
    /// How many HCAs each has
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=HCAS_MAX as i64))]
    hcas: u32,
    /// The model of all HCAs: A, B, or a letter for each
    #[arg(long, value_name = "LETTERS", default_value = "A")]
    model: String,
    /// The fabric's name, by which `snaprig fabric --fabric` finds it [default: one that nobody finds]
    #[arg(long, value_name = "NAME")]
    fabric: Option<String>,
    /// Nodes share nothing but TCP: each has a daemon of its own, which carries the packets of its HCAs
    #[arg(long)]
    tcp: bool,
    /// Each node's link to the others has this rate each way, as tc(8) writes it: 1gbit, 100mbit. HCAs have no part in that, unless
    /// nodes share nothing but TCP [default: as fast as the machine is]
    #[arg(long, value_name = "RATE")]
    link: Option<BitRate>,
    /// All of it is a job in this directory, which `ckpt dump --job` checkpoints: the program is its member `head`, and what it
    /// starts on a node is a member of the node's name
    #[arg(long, value_name = "DIR")]
    job: Option<PathBuf>,
    /// Restart the job from its newest checkpoint, on these nodes
    #[arg(long, requires = "job", conflicts_with = "program")]
    restart: bool,
    /// The program and its arguments
    #[arg(
        last = true,
        required_unless_present = "restart",
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

/// The member that starts the others.
const HEAD: &str = "head";
/// How long what was started on nodes has to end when its launcher has ended.
const ENDS_MAX: Duration = Duration::from_secs(20);

/// Its exit status is that of the program.
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let models = parse_models(&options.model).ok_or("the models of HCAs are A and B")?;
    let mut fabric = Fabric::builder()
        .exe(std::env::current_exe()?)
        .models(&models);
    if let Some(name) = &options.fabric {
        fabric = fabric.at(Place::named(name)?);
    }
    let members = match (&options.job, options.restart) {
        (Some(job), true) => Job::open(job)?.last_members()?,
        _ => Vec::new(),
    };
    // Each member has the network that it had, also where there are fewer machines.
    let last = members.iter().filter_map(|member| number_of(member)).max();
    let guests = last.unwrap_or(0).saturating_sub(options.count);
    let start = if options.tcp {
        Nodes::over_tcp
    } else {
        Nodes::with_guests
    };
    let nodes = start(fabric, options.count, options.hcas, guests)?;
    if !nodes.have_networks() {
        eprintln!("snaprig: nodes share this machine's network: namespaces need root and ip(8)");
    }
    if let Some(rate) = options.link {
        nodes.limit_links(rate)?;
    }
    if let Some(job) = &options.job {
        return Members::new(&nodes, job)?.run(options, &members);
    }
    let (program, arguments) = options.program.split_first().ok_or("no program")?;
    let status = nodes.launcher(program).args(arguments).status();
    let status = status.map_err(|error| not_started(program, &error))?;
    Ok(ExitCode::from(code_of(status) as u8))
}

/// The number of the node that a member was on.
fn number_of(member: &str) -> Option<u32> {
    let node = member.split('.').next()?;
    Node::number_of(node)
}

fn code_of(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(1)
}

/// A process on a node.
struct Running {
    /// The member that it is, or is to be.
    member: String,
    /// The node's name.
    node: String,
    request: Option<Request>,
    child: Child,
}

/// The members of a job that are on nodes.
struct Members<'a> {
    nodes: &'a Nodes,
    /// The job, and where its launcher says what it wants to have on nodes.
    job: PathBuf,
    requests: PathBuf,
    /// For who wants to have something moved.
    _kept: fs::File,
    program: PathBuf,
    running: Vec<Running>,
    /// Requests whose members have moved: the words say how they have ended wherever they are, unless they are killed.
    away: BTreeMap<String, Request>,
    /// How many there were of each node.
    of_node: BTreeMap<String, u32>,
    /// Who is where, as it was written down last.
    places: Vec<Peopled>,
}

impl<'a> Members<'a> {
    fn new(nodes: &'a Nodes, job: &Path) -> Result<Self, AnyError> {
        fs::create_dir_all(job)?;
        let job = job.canonicalize()?;
        let requests = job.join(REQUESTS);
        fs::create_dir_all(&requests)?;
        Ok(Self {
            nodes,
            job,
            _kept: requests::keep(&requests)?,
            requests,
            program: std::env::current_exe()?,
            running: Vec::new(),
            away: BTreeMap::new(),
            of_node: BTreeMap::new(),
            places: Vec::new(),
        })
    }

    fn run(mut self, options: &Options, members: &[String]) -> Result<ExitCode, AnyError> {
        let mut head = match options.restart {
            true => self.restart(members)?,
            false => self.launch(&options.program)?,
        };
        let status = loop {
            if let Some(status) = head.try_wait()? {
                break status;
            }
            for request in requests::take(&self.requests)? {
                self.start(request)?;
            }
            self.reap()?;
            self.write_places()?;
            thread::sleep(LOOK_EVERY);
        };
        let begun = Instant::now();
        while !self.running.is_empty() && begun.elapsed() < ENDS_MAX {
            self.reap()?;
            thread::sleep(LOOK_EVERY);
        }
        for Running { child, .. } in &mut self.running {
            child.kill()?;
            child.wait()?;
        }
        Ok(ExitCode::from(code_of(status) as u8))
    }

    /// The launcher, as a member of the job.
    fn launch(&self, program: &[OsString]) -> io::Result<Child> {
        // What an earlier one has asked for is nobody's.
        requests::forget(&self.requests)?;
        let mut head = self.head("launch");
        head.args(["--name", HEAD, "--verbs", "--"]).args(program);
        head.spawn()
    }

    fn head(&self, what: &str) -> Command {
        let mut head = self.nodes.launcher(&self.program);
        head.args(["ckpt", what, "--job"]).arg(&self.job);
        head.env(REQUESTS_ENV, &self.requests);
        head
    }

    /// All members of the newest checkpoint, with the HCAs of as many nodes as there are.
    fn restart(&mut self, members: &[String]) -> Result<Child, AnyError> {
        if !members.iter().any(|member| member == HEAD) {
            let job = self.job.display();
            return Err(format!("{job} has no checkpoint of `snaprig nodes --job`").into());
        }
        requests::forget_ends_of(&self.requests, members)?;
        for member in members.iter().filter(|member| *member != HEAD) {
            let number = number_of(member).ok_or("a member that is of no node")?;
            let of_hcas = (number - 1) % self.nodes.count() + 1;
            let mut words = OsString::new();
            for (name, value) in self.nodes.environment(of_hcas)? {
                words.push(format!("{name}="));
                words.push(quoted(&value));
                words.push(" ");
            }
            words.push(self.words(&["ckpt", "restart", "--member", member]));
            let node = format!("node{number}");
            let child = self.on(&node, &words)?;
            self.running.push(Running {
                member: member.clone(),
                node,
                request: None,
                child,
            });
        }
        Ok(self.head("restart").args(["--member", HEAD]).spawn()?)
    }

    /// What somebody has asked for.
    fn start(&mut self, request: Request) -> io::Result<()> {
        let (member, words) = match &request.what {
            Wanted::Words(words) => {
                let name = self.name_on(&request.node);
                request.is_of(&name)?;
                let words = self.launch_of(&name, &request.script(words));
                (name, words)
            }
            Wanted::Member(member, options) => {
                let mut words = self.words(&["ckpt", "move"]);
                let tell = [OsStr::new("--tell"), request.answer().as_os_str()];
                let options = options.iter().map(OsString::as_os_str);
                for word in tell.into_iter().chain(options).chain([member.as_os_str()]) {
                    words.push(" ");
                    words.push(quoted(word));
                }
                (member.to_string_lossy().into_owned(), words)
            }
        };
        let child = self.on(&request.node, &words)?;
        self.running.push(Running {
            member,
            node: request.node.clone(),
            request: Some(request),
            child,
        });
        Ok(())
    }

    /// What the next member on a node is called.
    fn name_on(&mut self, node: &str) -> String {
        let count = self.of_node.entry(node.to_owned()).or_default();
        *count += 1;
        match count {
            1 => node.to_owned(),
            count => format!("{node}.{count}"),
        }
    }

    /// What a launcher has asked for, as a member of the job.
    fn launch_of(&self, name: &str, script: &OsStr) -> OsString {
        let mut words = self.words(&["ckpt", "launch", "--name", name, "--verbs"]);
        words.push(" -- /bin/sh -c ");
        words.push(quoted(script));
        words
    }

    /// Words of this program, about the job.
    fn words(&self, words: &[&str]) -> OsString {
        let job = [OsStr::new("--job"), self.job.as_os_str()];
        let words = words.iter().copied().map(OsStr::new);
        let all = std::iter::once(self.program.as_os_str())
            .chain(words)
            .chain(job);
        all.map(quoted).collect::<Vec<_>>().join(OsStr::new(" "))
    }

    fn on(&self, node: &str, words: &OsStr) -> io::Result<Child> {
        let mut member = self.nodes.launcher(&self.program);
        member.env_remove(REQUESTS_ENV);
        member.args([nodes::PROCESS, node]).arg(words).spawn()
    }

    /// Who is where; whoever moves is where it was until it has ended there.
    fn write_places(&mut self) -> io::Result<()> {
        let mut at: BTreeMap<&str, &str> = BTreeMap::new();
        for Running { member, node, .. } in &self.running {
            at.entry(member).or_insert(node);
        }
        let place = |number: u32| {
            let node = format!("node{number}");
            let here = at.iter().filter(|(_, at)| **at == node);
            let members = here.map(|(member, _)| (*member).to_owned()).collect();
            Peopled { node, members }
        };
        let places: Vec<_> = (1..=self.nodes.count()).map(place).collect();
        if places != self.places {
            requests::put_places(&self.requests, &places)?;
            self.places = places;
        }
        Ok(())
    }

    /// Those who wait for members that have ended are told.
    fn reap(&mut self) -> io::Result<()> {
        for mut one in std::mem::take(&mut self.running) {
            match one.child.try_wait()? {
                None => self.running.push(one),
                Some(status) => self.has_ended(one, code_of(status))?,
            }
        }
        Ok(())
    }

    fn has_ended(&mut self, one: Running, status: i32) -> io::Result<()> {
        let Running {
            member, request, ..
        } = one;
        let Some(request) = request else {
            return Ok(());
        };
        match &request.what {
            // Its words have not come to their end, and it has not failed: they go on elsewhere.
            Wanted::Words(_) if status == 0 && !request.is_answered() => {
                self.away.insert(member, request);
                Ok(())
            }
            // They have been killed there.
            Wanted::Member(..) if status != 0 && request.is_answered() => {
                let first = self.away.remove(&member);
                first.map_or(Ok(()), |first| first.has_ended(status))
            }
            _ => request.has_ended(status),
        }
    }
}

/// What launchers start in rsh's place.
#[derive(Args)]
pub struct Exec {
    /// The node's name
    node: String,
    /// For its shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    words: Vec<OsString>,
}

/// Becomes the program.
pub fn exec(options: &Exec) -> Result<ExitCode, AnyError> {
    Err(nodes::exec(&options.node, &options.words).into())
}
