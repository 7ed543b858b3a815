//! Errors as problem details (RFC 9457), with one member more: what to do next.

use axum::{
    Json,
    body::to_bytes,
    http::{HeaderValue, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use snaprig_fabric::FabricError;
use utoipa::ToSchema;

/// The media type of a problem.
pub const MEDIA_TYPE: &str = "application/problem+json";
/// The longest text of a framework's error that is passed on.
const TEXT_BYTES_MAX: usize = 4096;

/// Why a request was not carried out.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// What kind of error: the status in words.
    pub title: &'static str,
    /// The status of the response.
    pub status: u16,
    /// What is wrong, and where.
    pub detail: String,
    /// What to do next.
    pub hint: &'static str,
}

impl Problem {
    /// A problem with this status.
    pub fn new(status: StatusCode, detail: impl ToString, hint: &'static str) -> Self {
        Self {
            title: status.canonical_reason().unwrap_or_default(),
            status: status.as_u16(),
            detail: detail.to_string(),
            hint,
        }
    }

    /// Something in the request cannot be done.
    pub fn unprocessable(detail: impl ToString, hint: &'static str) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail, hint)
    }
}

impl From<FabricError> for Problem {
    fn from(error: FabricError) -> Self {
        let (status, hint) = match &error {
            FabricError::NotRunning { .. } => (
                StatusCode::NOT_FOUND,
                "GET /fabrics lists those that run; POST /fabrics starts one",
            ),
            FabricError::Start(source) if source.kind() == std::io::ErrorKind::AddrInUse => (
                StatusCode::CONFLICT,
                "use it, DELETE it, or choose another name",
            ),
            FabricError::Start(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "`snaprig doctor` says what this machine lacks",
            ),
            FabricError::Gone(_) => (
                StatusCode::BAD_GATEWAY,
                "GET /fabrics says whether it still runs",
            ),
            FabricError::Hcas(_)
            | FabricError::Pkeys(_)
            | FabricError::NoPort { .. }
            | FabricError::NoNode { .. }
            | FabricError::Refused(_) => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "GET /fabrics/{fabric} shows its HCAs, ports and LIDs",
            ),
        };
        Self::new(status, error, hint)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status);
        let mut response = Json(&self).into_response();
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let media_type = HeaderValue::from_static(MEDIA_TYPE);
        response.headers_mut().insert(CONTENT_TYPE, media_type);
        response
    }
}

/// Makes a problem of an error that the framework answered: no such route, no JSON, a body that is too long.
pub async fn of_framework(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let media_type = response.headers().get(CONTENT_TYPE);
    if !is_error || media_type.is_some_and(|media_type| media_type == MEDIA_TYPE) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, TEXT_BYTES_MAX).await.unwrap_or_default();
    let text = match String::from_utf8_lossy(&text) {
        text if text.is_empty() => status.canonical_reason().unwrap_or_default().into(),
        text => text,
    };
    let problem = Problem::new(status, text, "GET /openapi.json describes every route");
    let made = problem.into_response();
    // What else the framework said stays: the methods that a route has, for one.
    let (own, body) = made.into_parts();
    parts.headers.extend(own.headers);
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, body)
}
