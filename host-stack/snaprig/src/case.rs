//! What `#[snaprig::test]` expands to: cases, one after the other, until one fails.

use std::{
    env,
    error::Error,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
};

#[cfg(feature = "verbs")]
use snaprig_fabric::{Fabric, FabricBuilder, place::parse_models};
#[cfg(feature = "cards")]
use snaprig_rig::{Rig, RigBuilder};
use snaprig_sim::Random;

use self::platforms::Platform;
use crate::program;
#[cfg(feature = "sim")]
use crate::sim::Sim;

mod platforms;

/// A test's error.
pub type AnyError = Box<dyn Error>;

/// What the attribute says, and where it stands.
#[derive(Clone, Debug)]
pub struct Setup {
    /// `module_path!()` of the test.
    pub module: &'static str,
    /// Its function.
    pub name: &'static str,
    /// Its package.
    pub package: &'static str,
    /// Its source file.
    pub file: &'static str,
    /// Whether cargo builds it as a target of its own.
    pub is_integration_test: bool,
    /// Cards of each case.
    pub cards: u16,
    /// HCAs of each case.
    pub hcas: usize,
    /// Their model, or a letter for each.
    pub model: &'static str,
    /// Platforms; none: the best that works.
    pub platforms: &'static [&'static str],
    /// Seeds.
    pub seeds: Range<u64>,
    /// The `snaprig` program.
    pub exe: Option<PathBuf>,
    /// Whether the test takes a real rig.
    pub needs_rig: bool,
}

/// One case of a test.
#[derive(Clone, Debug)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// The platform of real cards; `None` is the best that works.
    pub platform: Option<Platform>,
    /// How many cards there are.
    pub cards: u16,
    /// How many HCAs there are.
    pub hcas: usize,
    /// A letter for the model of each; the last one holds for all further HCAs.
    pub models: &'static str,
    /// The `snaprig` program, of which real cards are processes.
    pub exe: PathBuf,
}

impl Case {
    /// A builder for the case's rig, for tests that want more than [`Rig`].
    #[cfg(feature = "cards")]
    pub fn rig(&self) -> RigBuilder {
        let rig = Rig::builder().exe(&self.exe).cards(self.cards.into());
        rig.platform(self.platform)
    }

    /// A builder for the case's fabric, for tests that want more than [`Fabric`].
    ///
    /// # Panics
    /// If there is no such model.
    #[cfg(feature = "verbs")]
    pub fn fabric(&self) -> FabricBuilder {
        let models =
            parse_models(self.models).unwrap_or_else(|| panic!("model = {:?}", self.models));
        Fabric::builder()
            .exe(&self.exe)
            .hcas(self.hcas)
            .models(&models)
    }
}

/// What a test can take as a parameter.
pub trait FromCase: Sized {
    /// Whether it needs real cards, and so a platform.
    const NEEDS_RIG: bool = false;

    /// Makes it for a case.
    fn from_case(case: &Case) -> Result<Self, AnyError>;
}

impl FromCase for Case {
    const NEEDS_RIG: bool = true;

    fn from_case(case: &Case) -> Result<Self, AnyError> {
        Ok(case.clone())
    }
}

#[cfg(feature = "cards")]
impl FromCase for Rig {
    const NEEDS_RIG: bool = true;

    fn from_case(case: &Case) -> Result<Self, AnyError> {
        let rig = case.rig().start()?;
        if env::var_os("SNAPRIG_KEEP").is_some() {
            eprintln!("kept: {}", rig.dir().display());
        }
        Ok(rig)
    }
}

#[cfg(feature = "verbs")]
impl FromCase for Fabric {
    fn from_case(case: &Case) -> Result<Self, AnyError> {
        Ok(case.fabric().start()?)
    }
}

#[cfg(feature = "sim")]
impl FromCase for Sim {
    fn from_case(case: &Case) -> Result<Self, AnyError> {
        Ok(Self::builder().cards(case.cards).seed(case.seed).build())
    }
}

impl FromCase for u64 {
    fn from_case(case: &Case) -> Result<Self, AnyError> {
        Ok(case.seed)
    }
}

impl FromCase for Random {
    fn from_case(case: &Case) -> Result<Self, AnyError> {
        Ok(Self::new(case.seed, "test"))
    }
}

/// What a test can return.
pub trait Verdict {
    /// As a result.
    fn into_result(self) -> Result<(), AnyError>;
}

impl Verdict for () {
    fn into_result(self) -> Result<(), AnyError> {
        Ok(())
    }
}

impl<E: Into<AnyError>> Verdict for Result<(), E> {
    fn into_result(self) -> Result<(), AnyError> {
        self.map_err(Into::into)
    }
}

/// Runs all cases of a test.
///
/// # Panics
/// When a case fails, as a test does; and when the environment asks for what does not exist.
pub fn run(setup: &Setup, test: impl Fn(&Case) -> Result<(), AnyError>) {
    program::keep();
    let exe = setup
        .exe
        .clone()
        .unwrap_or_else(snaprig_sdk::program::default);
    let seeds = match (read("SNAPRIG_SEED"), &setup.seeds) {
        (Some(seed), _) => Some(seed..=seed),
        (None, range) => (range.start < range.end).then(|| range.start..=range.end - 1),
    };
    let seeds = seeds.unwrap_or_else(|| panic!("{}: no seeds to run", path(setup)));
    let mut passed = 0;
    for platform in platforms::of(setup, seeds.clone().count()) {
        for seed in seeds.clone() {
            let case = Case {
                seed,
                platform,
                cards: setup.cards,
                hcas: setup.hcas,
                models: setup.model,
                exe: exe.clone(),
            };
            match catch_unwind(AssertUnwindSafe(|| test(&case))) {
                Ok(Ok(())) => passed += 1,
                Ok(Err(error)) => panic!("{}\n{}", chain(&*error), failure(setup, &case, passed)),
                Err(panicked) => {
                    // Its message is out already.
                    eprintln!("{}", failure(setup, &case, passed));
                    resume_unwind(panicked);
                }
            }
        }
    }
}

fn read(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(error) => panic!("{variable}={text}: {error}"),
    }
}

/// The test's name, as its binary knows it.
fn path(setup: &Setup) -> String {
    let module = setup.module.split_once("::").map(|(_, rest)| rest);
    module.map_or(setup.name.into(), |module| {
        format!("{module}::{}", setup.name)
    })
}

/// What is known of a failure, and how to see it again.
fn failure(setup: &Setup, case: &Case, passed: usize) -> String {
    let crate_name = setup.module.split("::").next().unwrap_or_default();
    let stem = Path::new(setup.file)
        .file_stem()
        .and_then(|stem| stem.to_str());
    let target = stem.filter(|stem| stem.replace('-', "_") == crate_name);
    let target = match setup.is_integration_test {
        true => format!(" --test {}", target.unwrap_or(crate_name)),
        false => String::new(),
    };
    let (package, path, seed) = (setup.package, path(setup), case.seed);
    let (on, variable) = case.platform.map_or_else(Default::default, |platform| {
        (
            format!(" on {platform}"),
            format!(" SNAPRIG_PLATFORM={platform}"),
        )
    });
    format!(
        "{path} failed with seed {seed}{on}, after {passed} that passed\n\
         replay: SNAPRIG_SEED={seed}{variable} cargo test -p {package}{target} -- --exact {path}"
    )
}

fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text += &format!(": {error}");
        source = error.source();
    }
    text
}
