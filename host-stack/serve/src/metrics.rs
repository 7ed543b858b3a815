//! Counters of all fabrics, as Prometheus reads them (text format 0.0.4), by the names that sysfs has for them.

use std::{collections::BTreeMap, fmt::Write as _};

use axum::http::header::CONTENT_TYPE;
use snaprig_fabric::{Description, description::PortState};

use crate::{
    fabrics::{self, blocking},
    problem::Problem,
};

/// The text format's media type.
const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All counters of all fabrics that run, for Prometheus.
///
/// Names are `snaprig_` and the counter's name in sysfs; labels are `fabric`, `device` and `port`.
/// `snaprig_port_up` is 1 while a port's link works.
#[utoipa::path(get, path = "/metrics", tag = "counters", responses(
    (status = 200, body = String, content_type = "text/plain"),
    (status = "default", body = Problem, content_type = "application/problem+json"),
))]
pub async fn show() -> Result<([(axum::http::HeaderName, &'static str); 1], String), Problem> {
    let fabrics = blocking(|| Ok(fabrics::running()?.collect::<Vec<_>>())).await?;
    Ok(([(CONTENT_TYPE, MEDIA_TYPE)], text(&fabrics)))
}

fn text(fabrics: &[Description]) -> String {
    let mut series: BTreeMap<&str, String> = BTreeMap::new();
    for fabric in fabrics {
        let ports = fabric.hcas.iter().flat_map(|hca| {
            let ports = hca.ports.iter();
            ports.map(|port| (&hca.device, port))
        });
        for (device, port) in ports {
            // Names of fabrics and devices have no character that would have to be escaped.
            let labels = format!(
                "fabric=\"{}\",device=\"{device}\",port=\"{}\"",
                fabric.name, port.number
            );
            let up = u64::from(port.state == PortState::Active);
            let counters = port.counters.iter().chain(&port.hw_counters);
            let counters = counters.map(|(name, value)| (&name[..], *value));
            for (name, value) in counters.chain([(UP, up)]) {
                let lines = series.entry(name).or_default();
                let _ = writeln!(lines, "snaprig_{name}{{{labels}}} {value}");
            }
        }
    }
    let kind = |name: &str| if name == UP { "gauge" } else { "counter" };
    let families = series.iter().map(|(name, lines)| {
        let kind = kind(name);
        format!("# TYPE snaprig_{name} {kind}\n{lines}")
    });
    families.collect()
}

/// Whether a port's link works.
const UP: &str = "port_up";
