//! Campaigns of the simulator: started, looked at while they run, cancelled.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

use axum::{
    Json,
    extract::{Path, State},
    http::{HeaderName, StatusCode, header::LOCATION},
};
use serde::{Deserialize, Serialize};
use snaprig_campaign::campaign::{self, Plans, Results, Simulator};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use utoipa::ToSchema;

use crate::problem::Problem;

/// Most campaigns that run at once.
const RUNNING_MAX: usize = 2;
/// Most campaigns that are kept: of those that have ended the oldest makes room.
const KEPT_MAX: usize = 64;
/// Seeds of one campaign.
const SEEDS_MAX: u64 = 10_000_000;

/// The campaigns of this server.
#[derive(Debug)]
pub struct Campaigns {
    all: Mutex<BTreeMap<u64, Arc<Mutex<Campaign>>>>,
    running: Arc<Semaphore>,
}

impl Default for Campaigns {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            running: Arc::new(Semaphore::new(RUNNING_MAX)),
        }
    }
}

/// A campaign to be.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewCampaign {
    /// Scenarios that plans are drawn of; none: all.
    #[serde(default)]
    scenarios: Vec<String>,
    /// The first seed.
    #[serde(default)]
    first_seed: u64,
    /// How many seeds: up to 10000000.
    seeds: u64,
    /// Threads: up to as many as there are processors.
    #[serde(default = "one")]
    jobs: usize,
}

fn one() -> usize {
    1
}

/// How far a campaign is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CampaignState {
    /// Plans are run.
    Running,
    /// All were run, and no invariant was broken.
    Held,
    /// All were run, and some of them broke one.
    Broken,
    /// It could not be run; `error` says why.
    Failed,
}

/// A campaign.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Campaign {
    /// Its number.
    id: u64,
    /// What was asked for.
    asked: NewCampaign,
    /// How far it is.
    state: CampaignState,
    /// Plans that were run.
    runs: u64,
    /// What came of it, once it has ended: as `snaprig campaign --json` prints it.
    #[schema(value_type = Option<Object>)]
    results: Option<Results>,
    /// Why it could not be run.
    error: Option<String>,
    /// It was deleted: it is to begin nothing new.
    #[serde(skip)]
    is_cancelled: bool,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The scenarios of the simulator.
#[utoipa::path(get, path = "/scenarios", tag = "campaigns", responses(
    (status = 200, body = Vec<String>),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn scenarios() -> Json<Vec<&'static str>> {
    Json(snaprig_campaign::standard().names().collect())
}

/// All campaigns that were started here and not deleted.
#[utoipa::path(get, path = "/campaigns", tag = "campaigns", responses(
    (status = 200, body = Vec<Campaign>),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn list(State(campaigns): State<Arc<Campaigns>>) -> Json<Vec<Campaign>> {
    let all = lock(&campaigns.all);
    Json(all.values().map(|one| lock(one).clone()).collect())
}

/// Starts a campaign.
#[utoipa::path(post, path = "/campaigns", tag = "campaigns", request_body = NewCampaign, responses(
    (status = 201, body = Campaign),
    (status = 429, description = "as many run as may", body = Problem, content_type = "application/problem+json"),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn start(
    State(campaigns): State<Arc<Campaigns>>,
    Json(asked): Json<NewCampaign>,
) -> Result<(StatusCode, [(HeaderName, String); 1], Json<Campaign>), Problem> {
    let (simulator, options) = checked(&asked)?;
    let permit = campaigns.running.clone().try_acquire_owned();
    let permit = permit.map_err(|_| {
        Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{RUNNING_MAX} campaigns run, which is the most"),
            "wait for one of them, or DELETE it",
        )
    })?;
    let mut all = lock(&campaigns.all);
    let id = all.last_key_value().map_or(1, |(last, _)| last + 1);
    let campaign = Campaign {
        id,
        asked,
        state: CampaignState::Running,
        runs: 0,
        results: None,
        error: None,
        is_cancelled: false,
    };
    let shared = Arc::new(Mutex::new(campaign.clone()));
    let runs = shared.clone();
    let thread = thread::Builder::new().name(format!("campaign {id}"));
    let started = thread.spawn(move || run(&runs, &simulator, &options, permit));
    started.map_err(|error| {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Problem::new(
            status,
            error,
            "the machine has no room for a thread; try later",
        )
    })?;
    let has_ended = |one: &Arc<Mutex<Campaign>>| lock(one).state != CampaignState::Running;
    if all.len() >= KEPT_MAX
        && let Some(oldest) = all
            .iter()
            .find(|(_, one)| has_ended(one))
            .map(|(id, _)| *id)
    {
        all.remove(&oldest);
    }
    all.insert(id, shared);
    let location = [(LOCATION, format!("/campaigns/{id}"))];
    Ok((StatusCode::CREATED, location, Json(campaign)))
}

fn checked(asked: &NewCampaign) -> Result<(Simulator, campaign::Options), Problem> {
    let names: Vec<_> = snaprig_campaign::standard().names().collect();
    let known = |name: &String| {
        let found = names.iter().copied().find(|known| known == name);
        let detail = || format!("{name:?}: no such scenario");
        found.ok_or_else(|| Problem::unprocessable(detail(), "GET /scenarios lists them"))
    };
    let scenarios = asked
        .scenarios
        .iter()
        .map(known)
        .collect::<Result<_, _>>()?;
    let last = asked.first_seed.checked_add(asked.seeds);
    let last = last.filter(|_| (1..=SEEDS_MAX).contains(&asked.seeds));
    let last = last.ok_or_else(|| {
        let (first, seeds) = (asked.first_seed, asked.seeds);
        let detail = format!("{seeds} seeds from {first} on");
        Problem::unprocessable(detail, "a campaign has 1 to 10000000 seeds")
    })?;
    let processors = thread::available_parallelism().map_or(1, |count| count.get());
    if !(1..=processors).contains(&asked.jobs) {
        let detail = format!("{} jobs on {processors} processors", asked.jobs);
        return Err(Problem::unprocessable(
            detail,
            "1 to as many as there are processors",
        ));
    }
    let simulator = Simulator {
        scenarios,
        ..Simulator::default()
    };
    let options = campaign::Options {
        plans: Plans::Drawn(asked.first_seed..last),
        shard: (0, 1),
        jobs: asked.jobs,
        time: None,
        report: None,
    };
    Ok((simulator, options))
}

/// Runs a campaign to its end, on a thread of its own.
fn run(
    campaign: &Mutex<Campaign>,
    simulator: &Simulator,
    options: &campaign::Options,
    _permit: OwnedSemaphorePermit,
) {
    let progress = |runs, _| {
        let mut campaign = lock(campaign);
        campaign.runs = runs;
        match campaign.is_cancelled {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let done = match unheard_canaries() {
        [] => campaign::campaign(simulator, options, &progress).map_err(|error| error.to_string()),
        unheard => Err(format!(
            "planted bugs that are not found: {}",
            unheard.join(", ")
        )),
    };
    let mut campaign = lock(campaign);
    match done {
        Ok(results) => {
            campaign.state = match results.failures {
                0 => CampaignState::Held,
                _ => CampaignState::Broken,
            };
            campaign.results = Some(results);
        }
        Err(error) => {
            campaign.state = CampaignState::Failed;
            campaign.error = Some(error);
        }
    }
}

/// A campaign that does not find planted bugs finds nothing. Of this program, it is found out once whether they do.
fn unheard_canaries() -> &'static [&'static str] {
    static UNHEARD: OnceLock<Vec<&str>> = OnceLock::new();
    UNHEARD.get_or_init(|| {
        let unheard = campaign::unheard_canaries(snaprig_campaign::standard());
        unheard.iter().map(|canary| canary.name).collect()
    })
}

fn none(id: u64) -> Problem {
    let detail = format!("there is no campaign {id}");
    Problem::new(StatusCode::NOT_FOUND, detail, "GET /campaigns lists them")
}

/// A campaign: how far it is, and what came of it.
#[utoipa::path(get, path = "/campaigns/{id}", tag = "campaigns",
    params(("id" = u64, Path, description = "its number")), responses(
    (status = 200, body = Campaign),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn show(
    State(campaigns): State<Arc<Campaigns>>,
    Path(id): Path<u64>,
) -> Result<Json<Campaign>, Problem> {
    let all = lock(&campaigns.all);
    let campaign = all.get(&id).ok_or_else(|| none(id))?;
    Ok(Json(lock(campaign).clone()))
}

/// Forgets a campaign; one that runs begins no plans any more.
#[utoipa::path(delete, path = "/campaigns/{id}", tag = "campaigns",
    params(("id" = u64, Path, description = "its number")), responses(
    (status = 204, description = "it is cancelled and forgotten"),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn cancel(
    State(campaigns): State<Arc<Campaigns>>,
    Path(id): Path<u64>,
) -> Result<StatusCode, Problem> {
    let campaign = lock(&campaigns.all).remove(&id).ok_or_else(|| none(id))?;
    lock(&campaign).is_cancelled = true;
    Ok(StatusCode::NO_CONTENT)
}
