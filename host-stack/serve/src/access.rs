//! Who may ask: at a port, whoever knows the token (RFC 6750). At a Unix socket, whoever may open it.

use std::{
    fmt, fs, io,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use axum::{
    extract::{Request, State},
    http::{
        HeaderValue, StatusCode,
        header::{AUTHORIZATION, WWW_AUTHENTICATE},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use snaprig_peers::token::random;

use crate::problem::Problem;

/// How long a token may be, in characters.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=1024;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// Its file cannot be read, or no random bytes can be had.
    #[error("token {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others can read it.
    #[error("token {}: mode {mode:o} lets others read it; `chmod 600` it, or make a new one", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It cannot be sent in a header, or is guessed too easily.
    #[error(
        "token {}: {} to {} visible characters on one line; `head -c 32 /dev/urandom | base64` makes them",
        path.display(), LENGTHS.start(), LENGTHS.end()
    )]
    Form {
        /// The file.
        path: PathBuf,
    },
}

/// What a client shows that may ask.
#[derive(Clone)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// A new one.
    pub fn random() -> io::Result<Self> {
        Ok(Self(
            blake3::Hash::from_bytes(random()?).to_hex().to_string(),
        ))
    }

    /// That of a file, which only its owner can read.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let failed = |source| TokenError::Io {
            path: path.into(),
            source,
        };
        let file = fs::File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.mode();
        if mode & 0o077 != 0 {
            return Err(TokenError::Mode {
                path: path.into(),
                mode: mode & 0o7777,
            });
        }
        let mut text = String::new();
        let mut file = file.take(*LENGTHS.end() as u64 + 2);
        file.read_to_string(&mut text).map_err(failed)?;
        let token = text.trim_end();
        if !LENGTHS.contains(&token.len()) || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Form { path: path.into() });
        }
        Ok(Self(token.into()))
    }

    /// As it is shown.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Whether a header shows it. Hashes are compared, in constant time, so that how long that takes tells nothing.
    fn is_shown_by(&self, header: &HeaderValue) -> bool {
        let shown = header.as_bytes().split_at_checked("Bearer ".len());
        shown.is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case(b"bearer ")
                && blake3::hash(shown) == blake3::hash(self.0.as_bytes())
        })
    }
}

/// Lets a request pass that shows the token.
pub async fn check(State(token): State<Token>, request: Request, next: Next) -> Response {
    let header = request.headers().get(AUTHORIZATION);
    if header.is_some_and(|header| token.is_shown_by(header)) {
        return next.run(request).await;
    }
    let problem = Problem::new(
        StatusCode::UNAUTHORIZED,
        "the request does not show the token of this server",
        "send the header `Authorization: Bearer TOKEN`; the server printed it, or --token-file names its file",
    );
    let bearer = HeaderValue::from_static("Bearer");
    ([(WWW_AUTHENTICATE, bearer)], problem).into_response()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_is_shown_by_the_whole_of_it_alone() {
        let token = Token("0123456789abcdef".into());
        for (header, is) in [
            ("Bearer 0123456789abcdef", true),
            ("bearer 0123456789abcdef", true),
            ("Bearer 0123456789abcde", false),
            ("Bearer 0123456789abcdef0", false),
            ("Basic 0123456789abcdef", false),
            ("Bearer ", false),
            ("", false),
        ] {
            assert_eq!(token.is_shown_by(&HeaderValue::from_static(header)), is);
        }
        assert_ne!(
            Token::random().unwrap().text(),
            Token::random().unwrap().text()
        );
    }

    #[test]
    fn a_token_that_others_can_read_or_guess_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let write = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::read(&path)
        };
        assert_eq!(
            write("0123456789abcdef\n", 0o600).unwrap().text(),
            "0123456789abcdef"
        );
        assert!(matches!(
            write("0123456789abcdef", 0o640),
            Err(TokenError::Mode { mode: 0o640, .. })
        ));
        for text in ["short", "two words of text in it", &"x".repeat(1025)] {
            assert!(matches!(write(text, 0o600), Err(TokenError::Form { .. })));
        }
        fs::remove_file(&path).unwrap();
        assert!(matches!(Token::read(&path), Err(TokenError::Io { .. })));
    }
}
