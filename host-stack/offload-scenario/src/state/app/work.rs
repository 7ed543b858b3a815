//! What an application asks of COI, drawn from the seed: run functions with buffers and access
//! flags, transfers, maps, user events, and pipelines, buffers and libraries that come and go.

use std::ops::Range;

use snaprig_coi::graph::{Mode, State};
use snaprig_sim::Random;
use snaprig_wire::scif::PAGE;

use crate::parameters::Workload;

/// Cells of a buffer: pages that hold one number each.
pub const CELLS: u64 = 3;
/// Bytes of a buffer.
pub const BUFFER_BYTES: u64 = CELLS * PAGE;

/// Cells of one of the buffers that there are.
#[derive(Clone, Debug)]
pub struct Part {
    /// The how manieth, modulo how many there are.
    pub buffer: u64,
    pub cells: Range<u64>,
}

/// A buffer that a run function is given.
#[derive(Clone, Debug)]
pub struct Given {
    pub part: Part,
    pub mode: Mode,
    pub add_ref: bool,
    /// The function takes a reference of its own.
    pub adds: bool,
}

/// A call of COI's. Pipelines, processes and buffers are those that there are when it is made,
/// modulo how many that is.
#[derive(Clone, Debug)]
pub enum Deed {
    LoadLibrary {
        process: u64,
    },
    CreatePipeline {
        process: u64,
    },
    DestroyPipeline {
        pipeline: u64,
    },
    CreateBuffer {
        /// Its memory on the host is the caller's.
        is_users: bool,
    },
    DestroyBuffer {
        buffer: u64,
    },
    Run {
        pipeline: u64,
        given: Vec<Given>,
        /// It signals a user event that is registered for it.
        signals: bool,
    },
    Write {
        part: Part,
        to: Option<u64>,
        whole: bool,
    },
    Read {
        part: Part,
    },
    Copy {
        from: Part,
        into: u64,
        into_cell: u64,
        to: Option<u64>,
    },
    Map {
        part: Part,
        mode: Mode,
    },
    SetState {
        part: Part,
        /// The host, or a process.
        place: Option<u64>,
        state: State,
    },
    /// A user event that the host signals later.
    UserEvent,
}

/// A call, and what it depends on beside what it must: the operation so many before it.
#[derive(Clone, Debug)]
pub struct Asked {
    pub deed: Deed,
    pub after: Option<u64>,
}

/// All calls of an application, in their order.
pub fn draw(seed: u64, app: usize, work: &Workload) -> Vec<Asked> {
    let mut random = Random::new(seed, &format!("application {app}"));
    let mut middle = Vec::new();
    let pipelines = work.pipelines * work.offloads;
    for _ in 0..pipelines * work.runs {
        middle.push(run(&mut random, work.buffers));
    }
    for _ in 0..work.buffers * work.writes {
        middle.push(transfer(&mut random));
    }
    let comings = random.below(1 + (middle.len() as u64).min(3));
    for _ in 0..comings {
        middle.push(coming_or_going(&mut random));
    }
    for at in (1..middle.len()).rev() {
        middle.swap(at, random.below(at as u64 + 1) as usize);
    }
    let processes = 0..u64::from(work.offloads);
    let library = processes
        .clone()
        .map(|process| Deed::LoadLibrary { process });
    let library: Vec<_> = library.filter(|_| random.one_in(4)).collect();
    let first = (0..work.pipelines).flat_map(|_| processes.clone());
    let first = first.map(|process| Deed::CreatePipeline { process });
    let buffers: Vec<_> = (0..work.buffers)
        .map(|_| Deed::CreateBuffer {
            is_users: random.one_in(2),
        })
        .collect();
    let last = (0..u64::from(work.buffers)).map(|buffer| Deed::Read {
        part: Part {
            buffer,
            cells: 0..CELLS,
        },
    });
    let mut end = Vec::new();
    if work.buffers > 0 && random.one_in(3) {
        end.push(Deed::DestroyBuffer { buffer: 0 });
    }
    if random.one_in(3) {
        end.push(Deed::DestroyPipeline { pipeline: 0 });
    }
    let all = library.into_iter().chain(first).chain(buffers);
    let all: Vec<_> = all.chain(middle).chain(last).chain(end).collect();
    all.into_iter()
        .map(|deed| Asked {
            deed,
            after: random.one_in(4).then(|| 1 + random.below(6)),
        })
        .collect()
}

fn part(random: &mut Random) -> Part {
    let start = random.below(CELLS);
    Part {
        buffer: random.below(8),
        cells: start..start + 1 + random.below(CELLS - start),
    }
}

fn mode(random: &mut Random) -> Mode {
    let modes = [Mode::Read, Mode::Write, Mode::Write, Mode::WriteEntire];
    *random.pick(&modes).unwrap_or(&Mode::Read)
}

fn run(random: &mut Random, buffers: u16) -> Deed {
    let count = u64::from(buffers).min(1 + random.below(2));
    // Each has another one.
    let first = random.below(8);
    let given = (0..count).map(|nth| Given {
        part: Part {
            buffer: first + nth,
            ..part(random)
        },
        mode: mode(random),
        add_ref: random.one_in(3),
        adds: random.one_in(4),
    });
    Deed::Run {
        given: given.collect(),
        pipeline: random.below(64),
        signals: random.one_in(8),
    }
}

fn transfer(random: &mut Random) -> Deed {
    let part = part(random);
    let to = random.one_in(3).then(|| random.below(8));
    match random.below(8) {
        0..2 => Deed::Write {
            part,
            to,
            whole: random.one_in(2),
        },
        2..4 => Deed::Read { part },
        4 => Deed::Copy {
            from: part,
            into: random.below(8),
            into_cell: random.below(CELLS),
            to,
        },
        5..7 => Deed::Map {
            part,
            mode: mode(random),
        },
        _ => Deed::SetState {
            part,
            place: random.one_in(2).then(|| random.below(8)),
            state: *random
                .pick(&[State::Valid, State::Invalid, State::ValidMayDrop])
                .unwrap_or(&State::Valid),
        },
    }
}

fn coming_or_going(random: &mut Random) -> Deed {
    match random.below(8) {
        0 | 1 => Deed::DestroyPipeline {
            pipeline: random.below(64),
        },
        2 | 3 => Deed::CreatePipeline {
            process: random.below(8),
        },
        4 => Deed::CreateBuffer {
            is_users: random.one_in(2),
        },
        5 => Deed::DestroyBuffer {
            buffer: random.below(8),
        },
        _ => Deed::UserEvent,
    }
}
