//! The Snapify-IO daemon on a card. What programs and other nodes connect to are its standard input and output, which listen
//! already: so nobody comes too early.

use std::{
    fs::File,
    io,
    os::{fd::AsFd, unix::net::UnixListener},
    thread,
};

use coi_device::{
    scif::Endpoint,
    snapify_io::{serve_nodes, serve_programs},
    urgency::be_urgent,
};

fn main() -> io::Result<()> {
    be_urgent();
    let programs = UnixListener::from(io::stdin().as_fd().try_clone_to_owned()?);
    let nodes = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    thread::spawn(|| {
        // Programs are served all the same.
        if let Err(error) = serve_nodes(&Endpoint::from(nodes)) {
            eprintln!("snapify_iod: no other node can have files of this card: {error}");
        }
    });
    serve_programs(&programs);
    Ok(())
}
