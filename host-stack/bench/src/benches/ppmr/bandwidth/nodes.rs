//! Two nodes: processes that share nothing but a fabric, in which each has an HCA, and a network.

use serde_json::{from_str, to_string};
use snaprig_fabric::Fabric;
use snaprig_peers::token::random;

use super::{
    point::{Point, Stage},
    process::{Answer, Order, Task},
};
use crate::{
    AnyError,
    baselines::{pinned, processors},
    side::Side,
};

/// The HCAs of source and target.
const DEVICES: [&str; 2] = ["snaprig_0", "snaprig_1"];

/// Source and target.
pub struct Nodes {
    source: Side,
    target: Side,
    _fabric: Fabric,
}

impl Nodes {
    /// Starts them, each on its half of the processors.
    pub fn start() -> Result<Self, AnyError> {
        let program = std::env::current_exe()?;
        let fabric = Fabric::builder()
            .exe(&program)
            .hcas(DEVICES.len())
            .start()?;
        let all = processors()?;
        let (one, other) = all.split_at(all.len() / 2);
        let start = |processors: &[usize]| {
            let mut command = fabric.command(&program);
            command.arg("bench-ppmr-process");
            if !one.is_empty() {
                pinned(&mut command, processors);
            }
            Side::start(command)
        };
        Ok(Self {
            source: start(one)?,
            target: start(other)?,
            _fabric: fabric,
        })
    }

    /// GB/s of so many bytes, of all writers together.
    pub fn measure(&mut self, point: Point, bytes: u64) -> Result<f64, AnyError> {
        let image_bytes = (bytes / u64::from(point.writers)).max(1);
        let token = random()?;
        let [of_source, of_target] = DEVICES.map(|device| Task {
            stage: point.stage,
            pool_bytes: point.pool.bytes,
            chunk_bytes: point.chunk.bytes as u32,
            writers: point.writers,
            image_bytes,
            token,
            device: device.into(),
        });
        let is_alone = matches!(point.stage, Stage::Aggregation(_));
        let address = match is_alone {
            true => None,
            false => {
                self.target.order(&to_string(&Order::Take(of_target))?)?;
                match answer(&mut self.target)? {
                    Answer::Listening(address) => Some(address),
                    other => return Err(unexpected(&other)),
                }
            }
        };
        let order = Order::Fill(of_source, address);
        self.source.order(&to_string(&order)?)?;
        let seconds = match answer(&mut self.source)? {
            Answer::Seconds(seconds) => seconds,
            other => return Err(unexpected(&other)),
        };
        if !is_alone {
            match answer(&mut self.target)? {
                Answer::Done => {}
                other => return Err(unexpected(&other)),
            }
        }
        Ok((image_bytes * u64::from(point.writers)) as f64 / seconds / 1e9)
    }
}

fn answer(of: &mut Side) -> Result<Answer, AnyError> {
    match from_str(&of.answer()?)? {
        Answer::Failed(why) => Err(why.into()),
        answer => Ok(answer),
    }
}

fn unexpected(answer: &Answer) -> AnyError {
    format!("a process of the benchmark answered {answer:?}").into()
}
