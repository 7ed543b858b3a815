//! HTTP for everybody else: what `snaprig fabric` and `snaprig campaign` do, for programs in any language.
//!
//! | route | what it does |
//! |---|---|
//! | `GET /openapi.json` | describes all of these (OpenAPI 3.1) |
//! | `GET /fabrics` | lists the fabrics that run |
//! | `POST /fabrics` | starts one and holds it |
//! | `GET /fabrics/{fabric}` | HCAs, ports, links, faults, counters, queue pairs |
//! | `DELETE /fabrics/{fabric}` | ends it |
//! | `GET /fabrics/{fabric}/nodes` | its nodes: names, addresses, HCAs |
//! | `GET /fabrics/{fabric}/environment` | what a program has in its environment to be in it |
//! | `PUT /fabrics/{fabric}/links/{lid}` | takes a port's link down, or brings it up |
//! | `PUT /fabrics/{fabric}/faults` | loses, doubles, overtakes, damages or delays packets |
//! | `DELETE /fabrics/{fabric}/faults` | makes everything as new |
//! | `PUT /fabrics/{fabric}/plan` | carries out a fault plan |
//! | `PUT /fabrics/{fabric}/capture` | writes every packet to a file |
//! | `DELETE /fabrics/{fabric}/capture` | writes no more |
//! | `GET /fabrics/{fabric}/counters` | what its ports counted |
//! | `GET /metrics` | the same of all fabrics, for Prometheus |
//! | `GET /scenarios` | lists the scenarios of the simulator |
//! | `GET /campaigns` | lists the campaigns that were started here |
//! | `POST /campaigns` | starts one |
//! | `GET /campaigns/{id}` | how far it is, and what came of it |
//! | `DELETE /campaigns/{id}` | cancels and forgets it |
//!
//! ```text
//!   client --HTTP--> Unix socket, or loopback and token --> routes --+--> a fabric's control daemon
//!                                                                    +--> threads of campaigns
//! ```
//!
//! | module | what it is |
//! |---|---|
//! | [`listen`] | where requests come in |
//! | [`access`] | who may ask |
//! | [`fabrics`], [`campaigns`], [`metrics`] | the routes |
//! | [`problem`] | errors |
//!
//! What must stay true: nobody asks who is not the user that started the server, or was given the token. What the
//! server holds ends with it. No request takes more memory or processors than limits that are constants here.

pub mod access;
pub mod campaigns;
pub mod fabrics;
pub mod listen;
pub mod metrics;
pub mod problem;

use std::{future::Future, io, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::DefaultBodyLimit,
    middleware::{from_fn_with_state, map_response},
    routing::get,
};
use tokio::signal::unix::{SignalKind, signal};
use utoipa::{
    Modify, OpenApi as _,
    openapi::{
        OpenApi,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};
use utoipa_axum::{router::OpenApiRouter, routes};

use self::{access::Token, campaigns::Campaigns, fabrics::Fabrics, listen::Bound};

/// The longest body of a request: a fault plan of tens of thousands of faults.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Threads for what waits for fabrics.
const BLOCKING_THREADS_MAX: usize = 16;
/// How long requests that are under way have when the server is to end.
const GRACE: Duration = Duration::from_secs(5);

/// What the document says of itself.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "snaprig",
        description = "Fabrics of emulated InfiniBand HCAs, faults in them, and fault campaigns of the simulator."
    ),
    modifiers(&BearerToken),
    security((), ("token" = [])),
)]
struct Document;

/// How a client shows the token, where one is needed.
struct BearerToken;

impl Modify for BearerToken {
    fn modify(&self, document: &mut OpenApi) {
        let bearer = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", bearer);
    }
}

/// The routes, and the document that describes them. The control daemons of fabrics are run by `exe`.
pub fn routes(exe: PathBuf) -> (Router, OpenApi, Arc<Fabrics>) {
    let fabrics = Arc::new(Fabrics::new(exe));
    let of_fabrics = OpenApiRouter::new()
        .routes(routes!(fabrics::list, fabrics::create))
        .routes(routes!(fabrics::show, fabrics::end))
        .routes(routes!(fabrics::nodes))
        .routes(routes!(fabrics::environment))
        .routes(routes!(fabrics::set_link))
        .routes(routes!(fabrics::set_faults, fabrics::heal))
        .routes(routes!(fabrics::set_plan))
        .routes(routes!(fabrics::capture, fabrics::end_capture))
        .routes(routes!(fabrics::counters))
        .routes(routes!(metrics::show))
        .with_state(fabrics.clone());
    let of_campaigns = OpenApiRouter::new()
        .routes(routes!(campaigns::scenarios))
        .routes(routes!(campaigns::list, campaigns::start))
        .routes(routes!(campaigns::show, campaigns::cancel))
        .with_state(Arc::<Campaigns>::default());
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .merge(of_fabrics)
        .merge(of_campaigns)
        .split_for_parts();
    let shown = document.clone();
    let router = router
        .route("/openapi.json", get(async move || Json(shown)))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX));
    (router, document, fabrics)
}

/// Answers requests until SIGTERM or SIGINT. At a port, those alone that show the token. When this returns nothing of
/// the fabrics that it held is left.
pub fn run(bound: &Bound, token: &Token, exe: PathBuf) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .worker_threads(2)
        .enable_all()
        .build()?;
    let (router, _, fabrics) = routes(exe);
    let served = runtime.block_on(async {
        let (mut terminate, mut interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let (end, ended) = tokio::sync::watch::channel(());
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            drop(end);
        });
        let is_over = || {
            let mut ended = ended.clone();
            // The other end is dropped, and never sends anything.
            async move { drop(ended.changed().await) }
        };
        match bound {
            Bound::Unix(listener) => {
                let router = router.layer(map_response(problem::of_framework));
                let served = axum::serve(Bound::unix(listener)?, router);
                in_time(served.with_graceful_shutdown(is_over()), is_over()).await
            }
            Bound::Loopback(listener) => {
                let router = router
                    .layer(from_fn_with_state(token.clone(), access::check))
                    .layer(map_response(problem::of_framework));
                let served = axum::serve(Bound::loopback(listener)?, router);
                in_time(served.with_graceful_shutdown(is_over()), is_over()).await
            }
        }
    });
    runtime.shutdown_timeout(GRACE);
    fabrics.end();
    served
}

/// Waits for the end of what is served, which clients that hang do not put off.
async fn in_time(
    served: impl IntoFuture<Output = io::Result<()>>,
    is_over: impl Future<Output = ()>,
) -> io::Result<()> {
    let late = async {
        is_over.await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = served.into_future() => served,
        () = late => Ok(()),
    }
}
