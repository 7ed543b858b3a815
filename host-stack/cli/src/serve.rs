//! `snaprig serve`: fabrics and campaigns over HTTP.

use std::{io::Write, net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::Args;
use snaprig_serve::{
    access::Token,
    listen::{At, Bound},
};

use crate::AnyError;

/// Serve fabrics and campaigns over HTTP: to this user, or on this machine to whoever has the token
#[derive(Args)]
pub struct Options {
    /// Listen at a Unix socket, which this user alone may open
    #[arg(
        long,
        value_name = "PATH",
        required_unless_present = "listen",
        conflicts_with = "listen"
    )]
    unix: Option<PathBuf>,
    /// Listen at a port of the loopback interface; port 0 is any that is free
    #[arg(long, value_name = "127.0.0.1:PORT")]
    listen: Option<SocketAddr>,
    /// With --listen: the file of the token that clients show [default: a new one, which is printed]
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
}

/// Serves until it is told to end (SIGTERM, SIGINT).
pub fn run(options: &Options) -> Result<ExitCode, AnyError> {
    let (token, at) = match (&options.unix, options.listen) {
        (_, Some(address)) => (
            options.token_file.as_deref().map(Token::read).transpose()?,
            At::Loopback(address),
        ),
        (Some(path), None) => (None, At::Unix(path.clone())),
        (None, None) => {
            return Err("nowhere to listen: --unix PATH or --listen 127.0.0.1:PORT".into());
        }
    };
    let named = |error| format!("{at}: {error}");
    let bound = Bound::bind(&at).map_err(named)?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on {}", bound.address()?)?;
    let token = match (token, &at) {
        (Some(token), _) => token,
        (None, At::Unix(_)) => Token::random()?,
        (None, At::Loopback(_)) => {
            let token = Token::random()?;
            writeln!(out, "token {}", token.text())?;
            token
        }
    };
    out.flush()?;
    snaprig_serve::run(&bound, &token, std::env::current_exe()?)?;
    Ok(ExitCode::SUCCESS)
}
