//! A tokio server under load: processes of clients, each with several connections, send numbers that count up, and get
//! each of them back scrambled. When a line comes, or the input ends, the server has the clients end, and says whether
//! it has answered exactly as much as they have heard.
//!
//!     tokio-echo               the server, which starts its clients
//!     tokio-echo client PORT   connections until the input ends; then how many answers it has heard

use std::{
    io,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
};

const CLIENTS: usize = 3;
const CONNECTIONS: usize = 8;

/// SplitMix64's last steps.
fn scrambled(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[tokio::main]
async fn main() -> io::Result<()> {
    match std::env::args().nth(2) {
        Some(port) => client(&port).await,
        None => server().await,
    }
}

async fn server() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port().to_string();
    let answered = Arc::new(AtomicU64::new(0));
    let counter = answered.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, counter.clone()));
        }
    });
    let client = || {
        Command::new("/proc/self/exe")
            .args(["client", &port])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    let mut clients = (0..CLIENTS)
        .map(|_| client())
        .collect::<io::Result<Vec<_>>>()?;
    println!("begun");
    // A wheel of timers turns meanwhile.
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let mut input = BufReader::new(tokio::io::stdin());
    let mut line = String::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            read = input.read_line(&mut line) => { read?; break }
        }
    }
    let mut heard = 0;
    for client in &mut clients {
        drop(client.stdin.take());
    }
    for client in clients {
        let output = client.wait_with_output().await?;
        let count = String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse::<u64>();
        match count {
            Ok(count) if output.status.success() && count > 0 => heard += count,
            _ => println!("wrong: a client: {output:?}"),
        }
    }
    let answered = answered.load(Ordering::SeqCst);
    match heard == answered {
        true => println!("right"),
        false => println!("wrong: {answered} answers, {heard} heard"),
    }
    Ok(())
}

async fn answer(mut stream: TcpStream, answered: Arc<AtomicU64>) {
    let mut expected = 0;
    while let Ok(number) = stream.read_u64().await {
        if number != expected {
            println!("wrong: {number} where {expected} was expected");
        }
        expected += 1;
        answered.fetch_add(1, Ordering::SeqCst);
        if stream.write_u64(scrambled(number)).await.is_err() {
            println!("wrong: a client is gone");
        }
    }
}

async fn client(port: &str) -> io::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let connections: Vec<_> = (0..CONNECTIONS)
        .map(|_| tokio::spawn(ask(format!("127.0.0.1:{port}"), stop.clone())))
        .collect();
    tokio::io::stdin().read_to_end(&mut Vec::new()).await?;
    stop.store(true, Ordering::SeqCst);
    let mut heard = 0;
    for connection in connections {
        heard += connection.await??;
    }
    println!("{heard}");
    Ok(())
}

async fn ask(server: String, stop: Arc<AtomicBool>) -> io::Result<u64> {
    let mut stream = TcpStream::connect(server).await?;
    let mut number = 0;
    while !stop.load(Ordering::SeqCst) {
        stream.write_u64(number).await?;
        if stream.read_u64().await? != scrambled(number) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        number += 1;
    }
    Ok(number)
}
