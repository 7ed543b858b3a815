//! Fabrics: those that run, and those that this server holds.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Write,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Json,
    extract::{Path, Query, State},
    http::{StatusCode, header::LOCATION},
};
use serde::{Deserialize, Serialize};
use snaprig_fabric::{
    Description, Fabric, FabricError, FaultRequest, Node, Operator, PathFaults,
    place::{
        DEFAULT_FABRIC, HCAS_MAX, MODELS, PKEYS, Place, fabrics_directory, parse_models,
        parse_pkeys,
    },
};
use snaprig_sim::Plan;
use snaprig_verbs::daemon::check_plan;
use utoipa::ToSchema;

use crate::problem::Problem;

/// Most fabrics that a server holds.
const HELD_MAX: usize = 16;
/// A share is in thousandths.
const PER_MILLE_MAX: u16 = 1000;

type Answer<T> = Result<Json<T>, Problem>;

/// The fabrics that this server holds.
#[derive(Debug)]
pub struct Fabrics {
    /// The `snaprig` program, which is every fabric's control daemon.
    exe: PathBuf,
    held: Mutex<BTreeMap<String, Fabric>>,
}

impl Fabrics {
    /// None yet.
    pub fn new(exe: PathBuf) -> Self {
        Self {
            exe,
            held: Mutex::default(),
        }
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<String, Fabric>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all of them.
    pub fn end(&self) {
        for (name, fabric) in std::mem::take(&mut *self.held()) {
            release(&name, fabric);
        }
    }
}

/// Ends a fabric that was held, with the files of its nodes.
fn release(name: &str, fabric: Fabric) {
    drop(fabric);
    if let Ok(place) = Place::named(name) {
        place.remove_nodes();
    }
}

/// A fabric that runs.
#[derive(Debug, Serialize, ToSchema)]
pub struct Running {
    /// Its name.
    name: String,
    /// Whether this server started it and holds it, so that it ends with the server.
    is_held: bool,
}

/// A fabric to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NewFabric {
    /// Its name: letters, digits, `-`, `_` and `.`.
    name: String,
    /// How many HCAs it has: 1 to 64.
    hcas: usize,
    /// Their model: A, B, or a letter for each; the last one holds for all the rest.
    model: String,
    /// How many HCAs each node has.
    node_hcas: u32,
    /// The P_Key table of every port, in hexadecimal, with commas: 8xxx is a full member, 0xxx a limited one.
    pkeys: String,
    /// What is wrong with every path from the start.
    faults: PathFaults,
    /// A file for every packet from the start (pcapng): an absolute path.
    #[schema(value_type = Option<String>)]
    capture: Option<PathBuf>,
    /// A fault plan of scenario "verbs" that is carried out from the start.
    #[schema(value_type = Option<Object>)]
    plan: Option<serde_json::Value>,
}

impl Default for NewFabric {
    fn default() -> Self {
        Self {
            name: DEFAULT_FABRIC.into(),
            hcas: 1,
            model: "A".into(),
            node_hcas: 1,
            pkeys: "0xffff".into(),
            faults: PathFaults::default(),
            capture: None,
            plan: None,
        }
    }
}

/// The faults of some paths. Ports are named by LID; without one: all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Faults {
    /// From the port with this LID.
    #[serde(default)]
    from: Option<u16>,
    /// To the port with this LID.
    #[serde(default)]
    to: Option<u16>,
    /// What happens to packets.
    faults: PathFaults,
}

/// What a link is to be.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Whether it works.
    up: bool,
}

/// Where packets are to be written.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Capture {
    /// A file (pcapng), which is made anew: an absolute path.
    #[schema(value_type = String)]
    file: PathBuf,
}

/// How the HCAs are given to nodes.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct Division {
    /// How many HCAs each node has; without it, what the fabric was created with, or 1.
    node_hcas: Option<u32>,
}

/// Who a program is to be.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct On {
    /// The node that the program is on, from 1; without it, it sees the HCAs of all.
    node: Option<u32>,
    /// How many HCAs each node has; without it, what the fabric was created with, or 1.
    node_hcas: Option<u32>,
}

/// A node: a machine of a cluster, as programs on it see one.
#[derive(Debug, Serialize, ToSchema)]
pub struct NodeOf {
    /// Its number, from 1.
    number: u32,
    /// Its name.
    name: String,
    /// Its address, where network namespaces can be made.
    address: String,
    /// Its HCAs.
    devices: Vec<String>,
}

/// What a port counted.
#[derive(Debug, Serialize, ToSchema)]
pub struct Counters {
    /// The HCA.
    device: String,
    /// The port's number, from 1.
    port: u32,
    /// By the names of `ports/N/counters` in sysfs.
    counters: BTreeMap<String, u64>,
    /// By those of `ports/N/hw_counters`.
    hw_counters: BTreeMap<String, u64>,
}

/// Does what waits for others on a thread that may wait.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Err(Problem::new(status, error, "see the server's log"))
    })
}

/// All fabrics of this user that run.
pub fn running() -> Result<impl Iterator<Item = Description>, Problem> {
    let entries = match fs::read_dir(fabrics_directory()) {
        Ok(entries) => Some(entries),
        // There was never one.
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(FabricError::Start(error).into()),
    };
    let names = entries.into_iter().flatten().flatten();
    let places = names.filter_map(|entry| Place::named(entry.file_name().to_str()?).ok());
    Ok(places.filter_map(|place| Operator::connect(&place).ok()?.describe().ok()))
}

fn place(name: &str) -> Result<Place, Problem> {
    Place::named(name).map_err(|error| {
        let hint = "GET /fabrics lists the names of those that run";
        Problem::new(StatusCode::BAD_REQUEST, error, hint)
    })
}

fn operator(name: &str) -> Result<Operator, Problem> {
    Ok(Operator::connect(&place(name)?)?)
}

/// Tells a fabric something; what it is then.
async fn tell(
    name: String,
    what: impl FnOnce(&Operator) -> Result<(), Problem> + Send + 'static,
) -> Answer<Description> {
    let tell = move || {
        let operator = operator(&name)?;
        what(&operator)?;
        Ok(Json(operator.describe()?))
    };
    blocking(tell).await
}

fn checked(faults: PathFaults) -> Result<PathFaults, Problem> {
    let shares = [
        faults.loss,
        faults.duplicate,
        faults.reorder,
        faults.corrupt,
    ];
    match shares.iter().find(|share| **share > PER_MILLE_MAX) {
        None => Ok(faults),
        Some(share) => Err(Problem::unprocessable(
            format!("{share} of a thousand packets"),
            "a share is 0 to 1000 per mille",
        )),
    }
}

fn absolute(file: PathBuf) -> Result<PathBuf, Problem> {
    match file.is_absolute() {
        true => Ok(file),
        false => Err(Problem::unprocessable(
            format!("{}: not an absolute path", file.display()),
            "name the file from the root",
        )),
    }
}

/// A plan that a fabric of so many HCAs can carry out, in a file: the daemon reads it while this is held.
fn in_file(plan: &serde_json::Value, hcas: usize) -> Result<tempfile::NamedTempFile, Problem> {
    let refused = |error: &dyn std::fmt::Display| {
        let hint = "fixtures/plans has plans; `snaprig faults` lists the fault points";
        Problem::unprocessable(format!("the plan: {error}"), hint)
    };
    let text = plan.to_string();
    let plan = Plan::parse(&text, "").map_err(|error| refused(&error))?;
    check_plan(&plan, hcas).map_err(|error| refused(&error))?;
    let written = tempfile::NamedTempFile::new().and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        Ok(file)
    });
    written.map_err(|error| FabricError::Gone(error).into())
}

/// All fabrics of this user that run, whoever started them.
#[utoipa::path(get, path = "/fabrics", tag = "fabrics", responses(
    (status = 200, body = Vec<Running>),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn list(State(fabrics): State<Arc<Fabrics>>) -> Answer<Vec<Running>> {
    let list = move || {
        let held = fabrics.held();
        let running = running()?.map(|Description { name, .. }| Running {
            is_held: held.contains_key(&name),
            name,
        });
        Ok(Json(running.collect()))
    };
    blocking(list).await
}

/// Starts a fabric and holds it until it is deleted or the server ends.
#[utoipa::path(post, path = "/fabrics", tag = "fabrics", request_body = NewFabric, responses(
    (status = 201, body = Description),
    (status = 409, description = "one of this name runs", body = Problem, content_type = "application/problem+json"),
    (status = 429, description = "the server holds as many as it may", body = Problem, content_type = "application/problem+json"),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn create(
    State(fabrics): State<Arc<Fabrics>>,
    Json(new): Json<NewFabric>,
) -> Result<
    (
        StatusCode,
        [(axum::http::HeaderName, String); 1],
        Json<Description>,
    ),
    Problem,
> {
    let create = move || {
        let form = |what, form| Problem::unprocessable(format!("{what}: not {form}"), form);
        let models = parse_models(&new.model).ok_or_else(|| form(&new.model, MODELS))?;
        let pkeys = parse_pkeys(&new.pkeys).ok_or_else(|| form(&new.pkeys, PKEYS))?;
        let plan = new.plan.map(|plan| in_file(&plan, new.hcas)).transpose()?;
        let builder = Fabric::builder()
            .exe(&fabrics.exe)
            .at(place(&new.name)?)
            .hcas(new.hcas)
            .node_hcas(new.node_hcas)
            .models(&models)
            .pkeys(&pkeys)
            .faults(checked(new.faults)?)
            .capture(new.capture.map(absolute).transpose()?)
            .plan(plan.as_ref().map(|file| file.path().into()));
        let mut held = fabrics.held();
        // Somebody else may have ended one.
        held.retain(|_, fabric| fabric.describe().is_ok());
        if held.len() >= HELD_MAX {
            return Err(Problem::new(
                StatusCode::TOO_MANY_REQUESTS,
                format!("{HELD_MAX} fabrics are held, which is the most"),
                "DELETE one of them first",
            ));
        }
        let fabric = builder.start()?;
        let description = fabric.describe()?;
        held.insert(new.name.clone(), fabric);
        let location = [(LOCATION, format!("/fabrics/{}", new.name))];
        Ok((StatusCode::CREATED, location, Json(description)))
    };
    blocking(create).await
}

/// What a fabric is and does: HCAs, ports, links, faults, counters, queue pairs.
#[utoipa::path(get, path = "/fabrics/{fabric}", tag = "fabrics",
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn show(Path(name): Path<String>) -> Answer<Description> {
    tell(name, |_| Ok(())).await
}

/// Ends a fabric, whoever uses or holds it: programs see their HCAs die.
#[utoipa::path(delete, path = "/fabrics/{fabric}", tag = "fabrics",
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 204, description = "nothing of it is left"),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn end(
    State(fabrics): State<Arc<Fabrics>>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    let end = move || {
        operator(&name)?.end()?;
        if let Some(fabric) = fabrics.held().remove(&name) {
            release(&name, fabric);
        }
        Ok(StatusCode::NO_CONTENT)
    };
    blocking(end).await
}

/// The nodes of a fabric: node N has the HCAs behind those of the nodes before it.
#[utoipa::path(get, path = "/fabrics/{fabric}/nodes", tag = "fabrics",
    params(("fabric" = String, Path, description = "its name"), Division), responses(
    (status = 200, body = Vec<NodeOf>),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn nodes(
    State(fabrics): State<Arc<Fabrics>>,
    Path(name): Path<String>,
    Query(division): Query<Division>,
) -> Answer<Vec<NodeOf>> {
    let nodes = move || {
        let each = fabrics.each(&name, division.node_hcas);
        let hcas = operator(&name)?.describe()?.hcas;
        let whole = |node: &Node| node.hcas(hcas.len() as u32).len() == each as usize;
        let nodes = (1..).map_while(|number| Node::new(number, each).filter(whole));
        let nodes = nodes.map(|node| NodeOf {
            number: node.number,
            name: node.name(),
            address: node.address().to_string(),
            devices: node
                .hcas(hcas.len() as u32)
                .map(|hca| hcas[hca as usize].device.clone())
                .collect(),
        });
        Ok(Json(nodes.collect()))
    };
    blocking(nodes).await
}

impl Fabrics {
    /// How many HCAs each node of a fabric has.
    fn each(&self, name: &str, asked: Option<u32>) -> u32 {
        asked.unwrap_or_else(|| self.held().get(name).map_or(1, Fabric::hcas_each))
    }
}

/// What a program has in its environment to be in the fabric, or on a node of it.
#[utoipa::path(get, path = "/fabrics/{fabric}/environment", tag = "fabrics",
    params(("fabric" = String, Path, description = "its name"), On), responses(
    (status = 200, body = BTreeMap<String, String>),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn environment(
    State(fabrics): State<Arc<Fabrics>>,
    Path(name): Path<String>,
    Query(on): Query<On>,
) -> Answer<BTreeMap<String, String>> {
    let environment = move || {
        let place = place(&name)?;
        let hcas = operator(&name)?.describe()?.hcas;
        let models: Vec<_> = hcas.iter().map(|hca| hca.model).collect();
        let builder = Fabric::builder().exe(&fabrics.exe).at(place.clone());
        let mut all = builder.hcas(hcas.len()).models(&models).environment()?;
        if let Some(number) = on.node {
            let (hcas, each) = (hcas.len() as u32, fabrics.each(&name, on.node_hcas));
            let node = Node::new(number, each).filter(|node| node.hcas(hcas).len() as u32 == each);
            let none = FabricError::NoNode {
                number,
                hcas,
                each: each.max(1),
            };
            let node = node.ok_or(none)?;
            all.extend(node.environment(&place).map_err(FabricError::Gone)?);
        }
        let all = all.into_iter();
        let all = all.map(|(name, value)| (name.into(), value.to_string_lossy().into_owned()));
        Ok(Json(all.collect()))
    };
    blocking(environment).await
}

/// Takes the link of the port with this LID down, or brings it up.
#[utoipa::path(put, path = "/fabrics/{fabric}/links/{lid}", tag = "faults", request_body = Link,
    params(("fabric" = String, Path, description = "its name"), ("lid" = u16, Path, description = "the port's LID")),
    responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn set_link(
    Path((name, lid)): Path<(String, u16)>,
    Json(Link { up }): Json<Link>,
) -> Answer<Description> {
    tell(name, move |operator| {
        Ok(operator.fault(FaultRequest::Link { lid, up })?)
    })
    .await
}

/// Has paths lose, double, overtake, damage or delay packets from now on.
#[utoipa::path(put, path = "/fabrics/{fabric}/faults", tag = "faults", request_body = Faults,
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn set_faults(
    Path(name): Path<String>,
    Json(Faults { from, to, faults }): Json<Faults>,
) -> Answer<Description> {
    let faults = checked(faults)?;
    tell(name, move |operator| {
        Ok(operator.fault(FaultRequest::Set { from, to, faults })?)
    })
    .await
}

/// Makes everything as new: links are up, paths clean, no plan is carried out.
#[utoipa::path(delete, path = "/fabrics/{fabric}/faults", tag = "faults",
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn heal(Path(name): Path<String>) -> Answer<Description> {
    tell(name, |operator| Ok(operator.fault(FaultRequest::Heal)?)).await
}

/// Has a fault plan's faults of packets carried out from now on, in place of an earlier plan.
#[utoipa::path(put, path = "/fabrics/{fabric}/plan", tag = "faults",
    request_body(content = Object, description = "a fault plan of scenario \"verbs\""),
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn set_plan(
    Path(name): Path<String>,
    Json(plan): Json<serde_json::Value>,
) -> Answer<Description> {
    tell(name, move |operator| {
        let file = in_file(&plan, operator.describe()?.hcas.len().min(HCAS_MAX))?;
        Ok(operator.plan(file.path())?)
    })
    .await
}

/// Has every packet written to a file that Wireshark reads, from now on.
#[utoipa::path(put, path = "/fabrics/{fabric}/capture", tag = "faults", request_body = Capture,
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn capture(
    Path(name): Path<String>,
    Json(Capture { file }): Json<Capture>,
) -> Answer<Description> {
    let file = absolute(file)?;
    tell(name, move |operator| Ok(operator.capture(Some(&file))?)).await
}

/// Has no more packets written.
#[utoipa::path(delete, path = "/fabrics/{fabric}/capture", tag = "faults",
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Description),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn end_capture(Path(name): Path<String>) -> Answer<Description> {
    tell(name, |operator| Ok(operator.capture(None)?)).await
}

/// What every port of a fabric counted.
#[utoipa::path(get, path = "/fabrics/{fabric}/counters", tag = "counters",
    params(("fabric" = String, Path, description = "its name")), responses(
    (status = 200, body = Vec<Counters>),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn counters(Path(name): Path<String>) -> Answer<Vec<Counters>> {
    let Json(fabric) = show(Path(name)).await?;
    let ports = fabric.hcas.into_iter().flat_map(|hca| {
        let ports = hca.ports.into_iter();
        ports.map(move |port| Counters {
            device: hca.device.clone(),
            port: port.number,
            counters: port.counters,
            hw_counters: port.hw_counters,
        })
    });
    Ok(Json(ports.collect()))
}
