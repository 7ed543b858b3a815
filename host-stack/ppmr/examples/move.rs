//! Images from one process to another one, and how fast: what goes in is made up, and what comes out is looked at.
//!
//! ```text
//! head -c 32 /dev/urandom > token; chmod 600 token
//! move target --token token --streams 2 localhost:7000
//! move source --token token localhost:7000 1000000 2000000
//! ```

use std::{
    error::Error,
    io::{self, Read, Write},
    path::PathBuf,
    thread,
    time::Instant,
};

use clap::{Args, Parser, ValueEnum};
use snaprig_peers::{Address, Token};
use snaprig_ppmr::{
    Buffers, Mode, Times,
    driver::{
        source::{Moves, SourceNode, Writer},
        target::{Reader, Takes, TargetNode},
        transport::{Port, Transport},
    },
};

#[derive(Parser)]
enum Role {
    /// Moves an image of each of these sizes
    Source {
        #[command(flatten)]
        common: Common,
        /// Puts chunks there, instead of having them pulled
        #[arg(long)]
        push: bool,
        /// In bytes
        #[arg(required = true)]
        sizes: Vec<u64>,
    },
    /// Takes images
    Target {
        #[command(flatten)]
        common: Common,
        /// How many
        #[arg(long, default_value_t = 1)]
        streams: u32,
    },
}

#[derive(Args)]
struct Common {
    /// The file of a token that both have
    #[arg(long)]
    token: PathBuf,
    /// Which way chunks may go
    #[arg(long, value_enum, default_value = "auto")]
    transport: Way,
    /// The RDMA device [default: the first one with an active port]
    #[arg(long)]
    device: Option<String>,
    /// The size of the pool, in bytes
    #[arg(long, default_value_t = Buffers::default().pool_bytes)]
    pool: u64,
    /// That of a chunk of it
    #[arg(long, default_value_t = Buffers::default().chunk_bytes)]
    chunk: u32,
    /// How long nothing may move, in milliseconds
    #[arg(long)]
    stall_ms: Option<u64>,
    /// HOST:PORT, or the path of a socket
    address: Address,
}

#[derive(Clone, Copy, ValueEnum)]
enum Way {
    Auto,
    Tcp,
    Rdma,
}

impl Common {
    fn buffers(&self) -> Buffers {
        Buffers {
            pool_bytes: self.pool,
            chunk_bytes: self.chunk,
        }
    }

    fn times(&self) -> Times {
        let mut times = Times::default();
        if let Some(ms) = self.stall_ms {
            times.stall_ns = ms * 1_000_000;
        }
        times
    }

    fn transport(&self) -> Transport {
        match self.transport {
            Way::Auto => Transport::Auto,
            Way::Tcp => Transport::Tcp,
            Way::Rdma => Transport::Rdma,
        }
    }

    fn port(&self) -> Port {
        Port {
            device: self.device.clone(),
            ..Port::default()
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    match Role::parse() {
        Role::Source {
            common,
            push,
            sizes,
        } => source(&common, push, &sizes),
        Role::Target { common, streams } => target(&common, streams),
    }
}

fn source(common: &Common, is_push: bool, sizes: &[u64]) -> Result<(), Box<dyn Error>> {
    let moves = Moves {
        buffers: common.buffers(),
        mode: if is_push { Mode::Push } else { Mode::Pull },
        times: common.times(),
        ranks: (0..sizes.len() as u32).collect(),
        transport: common.transport(),
        lent_bytes: 0,
        port: common.port(),
    };
    let start = Instant::now();
    let node = SourceNode::connect(&common.address, &Token::read(&common.token)?, moves)?;
    let transport = node.transport().ok_or("the target is gone")?;
    println!("connected by {transport}");
    let begun = Instant::now();
    let writers = (0u32..).zip(sizes).map(|(rank, &size)| {
        let (node, writer) = (node.clone(), node.writer(rank));
        thread::spawn(move || {
            // If it fails, its node says why.
            let _ = write(writer, rank, size);
            node.wait(rank)
        })
    });
    let writers: Vec<_> = writers.collect();
    for (rank, writer) in writers.into_iter().enumerate() {
        let result = writer.join().expect("no panic");
        result.map_err(|failure| format!("rank {rank}: {failure}"))?;
    }
    let bytes = sizes.iter().sum::<u64>() as f64;
    let seconds = begun.elapsed().as_secs_f64();
    let greeting_ms = (begun - start).as_secs_f64() * 1e3;
    println!(
        "{bytes} bytes in {seconds:.3} s, {:.0} MB/s by {transport}; connected in {greeting_ms:.1} ms",
        bytes / seconds / 1e6
    );
    Ok(())
}

fn target(common: &Common, streams: u32) -> Result<(), Box<dyn Error>> {
    let takes = Takes {
        buffers: common.buffers(),
        streams_max: streams,
        times: common.times(),
        transport: common.transport(),
        port: common.port(),
        pool: None,
    };
    let node = TargetNode::listen(&common.address, &Token::read(&common.token)?, takes)?;
    println!("listening at {}", node.address());
    let readers = (0..streams).map_while(|_| {
        let reader = node.next_reader()?;
        Some(thread::spawn(move || read(reader)))
    });
    let readers: Vec<_> = readers.collect();
    let mut result = Ok(());
    for reader in readers {
        match reader.join().expect("no panic") {
            (rank, Ok(bytes)) => println!("rank {rank}: {bytes} bytes"),
            (rank, Err(error)) => result = Err(format!("rank {rank}: {error}").into()),
        }
    }
    result
}

const BLOCK: usize = 1 << 20;

/// An image is made of these, over and over.
fn block(rank: u32) -> Vec<u8> {
    let mut state = u64::from(rank) * 2 + 1;
    let next = |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    // A prime: no chunk is like another one.
    (0..BLOCK - 3).map(next).collect()
}

fn write(mut writer: Writer, rank: u32, mut size: u64) -> io::Result<()> {
    let block = block(rank);
    while size > 0 {
        let part = size.min(block.len() as u64);
        writer.write_all(&block[..part as usize])?;
        size -= part;
    }
    writer.end();
    Ok(())
}

/// Whose it is, and how many bytes have come as they were written.
fn read(mut reader: Reader) -> (u32, io::Result<u64>) {
    let rank = reader.stream().rank;
    let (block, mut came) = (block(rank), 0);
    let mut buffer = vec![0; BLOCK];
    let result = loop {
        let expected = &block[came as usize % block.len()..];
        let room = expected.len().min(buffer.len());
        match reader.read(&mut buffer[..room]) {
            Ok(0) => break Ok(came),
            Ok(count) if buffer[..count] == expected[..count] => came += count as u64,
            Ok(_) => break Err(io::Error::other(format!("other bytes after {came}"))),
            Err(error) => break Err(error),
        }
    };
    (rank, result)
}
