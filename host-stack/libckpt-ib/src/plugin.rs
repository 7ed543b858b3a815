//! The plugin: phases of checkpoints and of restarts, one thread's.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    mem::{self, zeroed},
    os::unix::ffi::OsStrExt,
    ptr,
    sync::{Arc, Once},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use snaprig_ckpt_ib::{
    Name, Process,
    cookie::Queue,
    drain::{Drain, Failed, lend_ahead, look, said, said_of_gone},
    moves::made_again,
    names::Aliases,
    queue_pair::Service,
    serve::serve,
    told::{Near, Told, Unreadable},
};
use snaprig_ckpt_plugin::{Event, Options, Part, Phase, Plugin, is_supervised};
use snaprig_verbs_abi::*;

use crate::{
    address::known_of,
    board,
    cm::Manager,
    event::{put_by, put_by_late, ring, take_async},
    follow::Beside,
    memory::new_domain,
    owned,
    real::{choose, real},
    rebuild::{self, Made},
    state::{Closed, Receive, Request, State, close, watch_forks},
};

/// What plugins of this kind are called.
const NAME: &str = "ib";
/// How long a phase may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long requests and messages have to come to their end, in a drain.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long what may be lost is waited for.
const UNRELIABLE_MAX: Duration = Duration::from_millis(50);
/// So many receives are there for messages that would be lost without one. Their senders wait for more as long as a fabric of
/// ours is patient.
const AHEAD: u64 = 64;
/// How often they are counted: jobs have many processes, and others are to have the processors.
const AHEAD_EVERY: Duration = Duration::from_millis(1);
/// The longest datagram: the largest MTU.
const DATAGRAM_MAX: u64 = 4096;
/// How often a drain asks whether queue pairs of others have failed; that is also how it hears that the round is given up.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// How long a drain rests that has found nothing new.
const REST: Duration = Duration::from_micros(20);

/// What a process that has quiesced says.
#[derive(Serialize, Deserialize)]
struct Quiesced {
    queue_pairs: Told,
    /// Those that it has destroyed.
    gone: Told,
    /// Of its ports: what else they are called, and what all call them.
    aliases: Vec<(u64, u64)>,
    /// It moves, while others stay.
    moves: bool,
}

/// The lock, from quiesce to resume, or from there to go.
struct Held {
    state: Closed,
    /// This process's name on the board.
    id: u64,
    /// How long messages may be that are lost without a receive, by queue pair.
    longest: BTreeMap<u32, u64>,
    /// Queue pairs that have failed since it has quiesced, and of which nobody has been told.
    failed: Vec<Failed>,
    drain: Option<Drain>,
    /// Queue pairs that move to elsewhere, of others.
    moved: BTreeSet<Name>,
    /// What leads to those, until it is decided that they move.
    beside: Option<Beside>,
}

thread_local! {
    /// Phases of a plugin are one thread's.
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

struct Verbs;

/// Registers the plugin, once a process.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        watch_forks();
        if !is_supervised() {
            return;
        }
        let options = Options {
            patience: PATIENCE,
            ..Options::new(NAME)
        };
        match snaprig_ckpt_plugin::register(options, Arc::new(Verbs)) {
            Ok(handle) => handle.forget(),
            Err(error) => eprintln!("snaprig: verbs are no part of checkpoints: {error}"),
        }
    });
}

/// Works on what is held.
fn with<T>(work: impl FnOnce(&mut Held) -> Result<T, String>) -> Result<T, String> {
    HELD.with_borrow_mut(|held| match held {
        Some(held) => work(held),
        None => Err("it has not quiesced".into()),
    })
}

/// What can only be known by asking: states that queue pairs fell into, limits of shared queues that are not reached yet.
///
/// # Safety
/// Whoever calls has the lock.
unsafe fn look_around(state: &mut State) {
    let Some(real) = real() else { return };
    // SAFETY: what is in the tables is alive; attributes are of numbers.
    unsafe {
        for qp in state.things.qps.iter().filter(|qp| !qp.is_null()) {
            let (mut attr, mut init) = (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>());
            let ours = &mut **qp;
            let asked = (real.ibv_query_qp)(ours.real, &mut attr, IBV_QP_STATE, &mut init);
            if asked == 0
                && matches!(attr.qp_state, IBV_QPS_ERR | IBV_QPS_SQE)
                && let Some(pair) = state.process.qp(ours.place)
            {
                pair.fail(None);
            }
        }
        for srq in state.things.srqs.iter().filter(|srq| !srq.is_null()) {
            let ours = &mut **srq;
            let mut attr: ibv_srq_attr = zeroed();
            if (real.ibv_query_srq)(ours.real, &mut attr) == 0 {
                ours.attr.srq_limit = attr.srq_limit;
            }
        }
        if state.things.restarts == 0 {
            for context in &state.things.contexts {
                let context = &**context;
                (*context.device).known = Some(known_of(context));
            }
        }
    }
}

/// How long messages may be that are lost without a receive.
fn longest(process: &Process<Request, Receive>) -> BTreeMap<u32, u64> {
    let unreliable = process
        .each_qp()
        .filter(|(_, pair)| pair.service != Service::Reliable);
    let longest = unreliable.map(|(place, pair)| {
        let bytes = |list: &Receive| list.iter().map(|part| u64::from(part.length)).sum();
        let receives = pair.receives.outstanding().map(|(_, list)| bytes(list));
        (place, receives.max().unwrap_or(0).max(DATAGRAM_MAX))
    });
    longest.collect()
}

/// What else the ports of this process are called.
fn aliases(state: &State) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    for context in &state.things.contexts {
        // SAFETY: what is in the set is alive, and devices are never freed.
        let (port, known) = unsafe { ((**context).port(), &(*(**context).device).known) };
        let ports = known.iter().flat_map(|known| &known.ports);
        all.extend(ports.flat_map(|of| of.aliases()).map(|alias| (alias, port)));
    }
    all
}

/// Every receive queue.
pub fn receive_queues(state: &State) -> Vec<Queue> {
    let own = state
        .process
        .each_qp()
        .map(|(place, _)| Queue::Receives(place));
    let shared = (0..state.process.shared.len() as u32).map(Queue::Shared);
    own.chain(shared).collect()
}

/// Receives that wait for what came in lent ones get it.
pub fn serve_all(state: &mut State) -> Result<(), String> {
    for queue in receive_queues(state) {
        let State { process, things } = &mut *state;
        serve(process, things, queue)?;
    }
    // SAFETY: the lock is held.
    unsafe { ring(state) };
    Ok(())
}

fn unreadable(why: Unreadable) -> String {
    why.to_string()
}

/// Finds out who moves; refuses what cannot.
fn find_moved(held: &mut Held, all: &[Quiesced], part: Part) -> Result<(), String> {
    let moving = || all.iter().filter(|one| one.moves);
    held.moved.clear();
    for one in moving() {
        let names = one.queue_pairs.names().map_err(unreadable)?;
        held.moved.extend(names);
    }
    let ports: BTreeSet<u64> = moving()
        .flat_map(|one| &one.aliases)
        .map(|(_, port)| *port)
        .collect();
    let State { process, things } = &*held.state;
    // SAFETY: what is in the set is alive.
    let own = things.contexts.iter().map(|one| unsafe { (**one).port() });
    if part == Part::Stays && own.into_iter().any(|port| ports.contains(&port)) {
        return Err(
            "it has the same port as what moves, and stays: all at a port move together".into(),
        );
    }
    let is_concerned = part == Part::Moves || !made_again(process, &held.moved).is_empty();
    match things.cannot_move().filter(|_| is_concerned) {
        Some(what) => Err(format!("{what} cannot move yet: restart the job instead")),
        None => Ok(()),
    }
}

fn begin_drain(held: &mut Held, event: &Event<'_>) -> Result<Drain, String> {
    let all: Vec<Quiesced> = board::collect(event, "quiesced")?;
    if event.part() != Part::All {
        find_moved(held, &all, event.part())?;
    }
    let aliases = Aliases::new(all.iter().flat_map(|one| one.aliases.iter().copied()));
    let State { process, things } = &mut *held.state;
    process.rename(&aliases);
    let near = Near::of(process);
    let mut said = Vec::new();
    for told in all.iter().flat_map(|one| [&one.queue_pairs, &one.gone]) {
        said.extend(told.near(&near, &aliases).map_err(unreadable)?);
    }
    let peers = process.qps.iter().map(|qp| qp.as_ref()?.peer);
    things.peers = peers.collect();
    Drain::new(process, &said, aliases).map_err(|refusal| refusal.to_string())
}

fn drain(held: &mut Held, event: &Event<'_>) -> Result<Drain, String> {
    let mut drain = begin_drain(held, event)?;
    let begun = Instant::now();
    let (mut asked, mut told) = (begun, 0u64);
    let mut failed = mem::take(&mut held.failed);
    failed.iter().for_each(|one| drain.failed(one));
    let State { process, things } = &mut *held.state;
    drain.look(process, things, &mut failed);
    // SAFETY: the lock is held.
    unsafe { put_by(process, things) };
    loop {
        let State { process, things } = &mut *held.state;
        let is_done = drain
            .step(process, things, &mut failed)
            .map_err(|refusal| refusal.to_string())?;
        for new in failed.drain(..) {
            told += 1;
            board::publish(event, "failed", held.id.wrapping_add(told), &new)?;
        }
        if is_done {
            return Ok(drain);
        }
        let now = Instant::now();
        if now > asked + ASK_EVERY {
            asked = now;
            let all: Vec<Failed> = board::collect(event, "failed")?;
            all.iter().for_each(|one| drain.failed(one));
        }
        if now > begun + UNRELIABLE_MAX && is_only_unreliable(&drain, held) {
            return Ok(drain);
        }
        if now > begun + DRAIN_MAX {
            let missing = drain.missing(&held.state.process);
            return Err(missing.map_or_else(String::new, |refusal| refusal.to_string()));
        }
        std::thread::sleep(REST);
    }
}

/// Whether all that is missing may be lost; then it is.
fn is_only_unreliable(drain: &Drain, held: &mut Held) -> bool {
    let process = &mut held.state.process;
    let has = process
        .each_qp()
        .any(|(_, qp)| qp.service != Service::Reliable);
    has && drain.give_up(process)
}

impl Plugin for Verbs {
    fn quiesce(&self, event: &mut Event<'_>) -> Result<(), String> {
        let mut state = close();
        // SAFETY: the lock is held.
        unsafe { look_around(&mut state) };
        let id = new_domain().0;
        let quiesced = Quiesced {
            queue_pairs: Told::new(&said(&state.process)),
            gone: Told::new(&said_of_gone(&state.process)),
            aliases: aliases(&state),
            moves: event.part() == Part::Moves,
        };
        board::publish_last(event, "quiesced", id, &quiesced)?;
        let longest = longest(&state.process);
        HELD.set(Some(Held {
            state,
            id,
            longest,
            failed: Vec::new(),
            drain: None,
            moved: BTreeSet::new(),
            beside: None,
        }));
        Ok(())
    }

    fn meanwhile(&self, phase: Phase) -> Option<Duration> {
        if phase != Phase::Quiesce {
            return None;
        }
        let is_needed = with(|held| {
            let Held {
                state,
                longest,
                failed,
                ..
            } = held;
            if longest.is_empty() {
                return Ok(false);
            }
            let State { process, things } = &mut **state;
            look(process, things, failed);
            let bytes = |place| longest.get(&place).copied().unwrap_or(DATAGRAM_MAX);
            lend_ahead(process, things, AHEAD, bytes).map_err(|why| why.to_string())
        });
        // Without receives they are lost, as anywhere.
        is_needed.unwrap_or(false).then_some(AHEAD_EVERY)
    }

    fn drain(&self, event: &mut Event<'_>) -> Result<(), String> {
        with(|held| {
            held.drain = Some(drain(held, event)?);
            Ok(())
        })
    }

    fn save(&self, event: &mut Event<'_>) -> Result<(), String> {
        with(|held| {
            // SAFETY: the lock is held.
            unsafe { held.state.bound()? };
            let State { process, things } = &mut *held.state;
            if let Some(drain) = &held.drain {
                drain.finish(process);
            }
            // SAFETY: the lock is held, and what is in the sets is alive.
            unsafe {
                put_by_late(process, things);
                for context in &things.contexts {
                    let context = &mut **context;
                    while let Some(event) = take_async(context) {
                        context.pending.push_back(event);
                        context.gate.ring();
                    }
                }
            }
            Manager::save(things)?;
            owned::declare(event)?;
            for device in things.manager.below() {
                event.own_descriptor(device);
            }
            // SAFETY: what is in the sets is alive, and so is what is below it.
            unsafe {
                for context in &things.contexts {
                    event.own_descriptor((*(**context).real).async_fd);
                    event.own_descriptor((*(**context).real).cmd_fd);
                }
                for channel in &things.channels {
                    event.own_descriptor((*(**channel).real).fd);
                }
            }
            Ok(())
        })
    }

    fn follows_moves(&self) -> bool {
        true
    }

    fn resume(&self, _: &mut Event<'_>) {
        let Some(mut held) = HELD.take() else {
            return;
        };
        if let Some(beside) = held.beside.take() {
            // SAFETY: the lock is held.
            unsafe { beside.undo(&mut held.state) };
        }
        if let Err(why) = serve_all(&mut held.state) {
            eprintln!("snaprig: receives that waited for a checkpoint are lost: {why}");
        }
    }

    fn rebuild(&self, event: &mut Event<'_>) -> Result<(), String> {
        if event.part() == Part::Stays {
            return with(|held| {
                // SAFETY: the lock is held.
                let (beside, made) = unsafe { Beside::make(&mut held.state, &held.moved)? };
                held.beside = Some(beside);
                board::publish_last(event, "made", held.id, &made)
            });
        }
        with(|held| {
            held.state.things.forget_below();
            let before = real().ok_or("there is no libibverbs")?;
            owned::restarted(before, event);
            choose(event.variable("LD_PRELOAD").unwrap_or_default().as_bytes())?;
            if let Some(now) = real().filter(|now| !ptr::eq(*now, before)) {
                owned::restarted(now, event);
            }
            // SAFETY: the lock is held, and nobody else runs.
            let made: Made = unsafe { rebuild::make(&mut held.state, event.part(), before)? };
            board::publish_last(event, "made", held.id, &made)
        })
    }

    fn exchange(&self, event: &mut Event<'_>) -> Result<(), String> {
        with(|held| {
            let all: Vec<Made> = board::collect(event, "made")?;
            if let Some(beside) = &mut held.beside {
                // SAFETY: the lock is held.
                return unsafe { beside.connect(&mut held.state, all) };
            }
            // SAFETY: the lock is held, and nobody else runs.
            unsafe {
                rebuild::connect(&mut held.state, all)?;
                held.state.bind_again()
            }
        })
    }

    fn refill(&self, event: &mut Event<'_>) -> Result<(), String> {
        with(|held| {
            if let Some(beside) = held.beside.take() {
                // SAFETY: the lock is held.
                return unsafe { beside.change_over(&mut held.state) };
            }
            if event.part() == Part::Moves {
                held.state.things.bind_again(true)?;
            }
            // SAFETY: the lock is held, and nobody else runs.
            unsafe { rebuild::refill(&mut held.state) }
        })
    }

    fn go(&self, _: &mut Event<'_>) {
        HELD.take();
    }
}
