//! A restarted process makes everything again, with another libibverbs below, or another HCA.
//!
//! ```text
//!   rebuild    gives up what it stood for; opens devices, makes queues, registers memory     names of now, to the board
//!   exchange   posts receives that were below, connects                                      names of now of the others
//!   refill     posts requests that nobody has carried out; arms
//! ```

use std::mem::{self, zeroed};

use serde::{Deserialize, Serialize};
use snaprig_ckpt_ib::{
    Name, Names,
    cookie::Queue,
    names::{Domain, Key, Port, Published},
    queue_pair::{Service, Stage},
    serve,
};
use snaprig_ckpt_plugin::Part;
use snaprig_verbs_abi::*;

use crate::{
    address::known_of,
    cm::Listener,
    cq, domains,
    event::Gate,
    memory::{Range, register},
    objects::{Channel, Context, Cq, Device, Pd, Qp, Scratch, Shadow, XrcSrq},
    plugin::{receive_queues, serve_all},
    post::{At, post_again, release},
    qp,
    real::{Real, errno, real},
    srq,
    state::{State, Things, get},
    windows, xrc,
};

/// Entries of completions that nobody but the log of a short send queue asks for: of each half of it one, and of what begins
/// before and ends behind ([`snaprig_ckpt_ib::sends`]).
const ASKED_MAX: u32 = 3;
/// What stands in for memory that is not there any more.
const PAGE_BYTES: u64 = 4096;

/// What a process tells the others.
#[derive(Serialize, Deserialize)]
pub struct Made {
    pub names: Published,
    pub listener: Listener,
}

pub fn failed(what: &str) -> String {
    format!("{what}: {}", std::io::Error::from_raw_os_error(errno()))
}

/// What stood for the program's is given up. A libibverbs that can, frees it; what a kernel had is gone anyhow.
unsafe fn give_up(real: &Real, things: &mut Things) {
    // SAFETY: what is in the tables is alive, and so is what was below it, which nobody uses any more. In this order each is freed
    // before what it needs.
    unsafe {
        for qp in things.opened.iter().filter(|qp| !(***qp).real.is_null()) {
            (real.ibv_destroy_qp)((**qp).real);
        }
        for qp in things.qps.iter().filter(|qp| !qp.is_null()) {
            (real.ibv_destroy_qp)((**qp).real);
            (**qp).copies.free();
        }
        for mw in &things.mws {
            windows::dealloc_below((**mw).real);
        }
        for srq in things.srqs.iter().filter(|srq| !srq.is_null()) {
            (real.ibv_destroy_srq)((**srq).real);
        }
        for xrcd in &things.xrcds {
            xrc::close_below(&**xrcd);
        }
        for cq in things.cqs.iter().filter(|cq| !cq.is_null()) {
            (real.ibv_destroy_cq)((**cq).real);
        }
        for channel in &things.channels {
            (real.ibv_destroy_comp_channel)((**channel).real);
        }
        for ah in &things.ahs {
            (real.ibv_destroy_ah)((**ah).real);
        }
        for mr in &things.mrs {
            (real.ibv_dereg_mr)((**mr).real);
        }
        for (_, scratch) in things.lent.drain() {
            scratch.free();
        }
        for pd in parents_last(things).into_iter().rev() {
            if let Some(scratch) = (*pd).scratch.take() {
                scratch.free();
            }
            (real.ibv_dealloc_pd)((*pd).real);
        }
        for td in &things.tds {
            domains::dealloc_td_below((**td).real);
        }
        for context in &things.contexts {
            (real.ibv_close_device)((**context).real);
        }
        if let Some(list) = things.list.take() {
            (real.ibv_free_device_list)(list);
        }
    }
}

/// Domains, and then those that are parents of others.
fn parents_last(things: &Things) -> Vec<*mut Pd> {
    let mut all: Vec<_> = things.pds.iter().copied().collect();
    // SAFETY: what is in the set is alive.
    all.sort_by_key(|pd| unsafe { (**pd).parent.is_some() });
    all
}

/// Chooses a device below for each that the program has open, and then for those that it knows: the one of its name, or another.
unsafe fn choose_devices(things: &mut Things) -> Result<(), String> {
    for device in &things.devices {
        // SAFETY: devices are never freed.
        unsafe { (**device).real = std::ptr::null_mut() };
    }
    // SAFETY: nobody uses a device of before.
    let mut used: Vec<*mut Device> = unsafe {
        let contexts = things.contexts.iter();
        contexts.map(|context| (**context).device).collect()
    };
    used.sort_unstable();
    used.dedup();
    // SAFETY: the list is the libibverbs's, and kept.
    let below = match unsafe { things.below() } {
        Err(_) if used.is_empty() => return Ok(()),
        below => below?,
    };
    if below.is_empty() && used.is_empty() {
        return Ok(());
    }
    let known = things.devices.iter().copied();
    let unused: Vec<_> = known
        .filter(|device| used.binary_search(device).is_err())
        .collect();
    used.extend(unused);
    if below.is_empty() {
        return Err(
            "there is no HCA here: `snaprig verbs -- snaprig ckpt restart DIR` gives it one".into(),
        );
    }
    for (number, device) in used.into_iter().enumerate() {
        // SAFETY: devices are never freed; those below are in the list.
        unsafe {
            let same = below
                .iter()
                .find(|below| (***below).name == (*device).device.name);
            let chosen = *same.unwrap_or(&below[number % below.len()]);
            (*device).stand_for(chosen);
        }
    }
    Ok(())
}

/// Makes everything again that stood on the libibverbs `before`; what others must know of it.
///
/// # Safety
/// Whoever calls has the lock, and no thread of the program runs.
pub unsafe fn make(state: &mut State, part: Part, before: &Real) -> Result<Made, String> {
    let Some(real) = real() else {
        return Err("there is no libibverbs".into());
    };
    let things = &mut state.things;
    // SAFETY: what is in the tables is alive.
    unsafe {
        give_up(before, things);
        things.restarts += 1;
        choose_devices(things)?;
        for context in things.contexts.iter() {
            open(real, &mut **context)?;
        }
        for channel in things.channels.iter() {
            make_channel(real, &mut **channel)?;
        }
        for td in things.tds.iter() {
            let ours = &mut **td;
            ours.real = domains::alloc_td_below(Context::of(ours.td.context).real);
            if ours.real.is_null() {
                return Err(failed("a thread domain cannot be made"));
            }
        }
        for pd in parents_last(things) {
            let ours = &mut *pd;
            ours.real = domains::alloc_below(ours);
            if ours.real.is_null() {
                return Err(failed("a protection domain cannot be made"));
            }
        }
        for xrcd in things.xrcds.iter() {
            let ours = &mut **xrcd;
            let context = Context::of(ours.xrcd.context).real;
            ours.real = xrc::open_below(context, ours.file.as_ref());
            if ours.real.is_null() {
                return Err(failed("a domain of XRC cannot be opened"));
            }
        }
        make_queues(real, things)?;
        state.foresee_keys()?;
    }
    let State { process, things } = state;
    let listener = things.manage_again(part == Part::Moves)?;
    let own = process.qps.iter_mut().flatten().map(|qp| &mut qp.receives);
    for queue in own.chain(process.shared.iter_mut().flatten()) {
        queue.unlend_all();
    }
    // SAFETY: the same.
    let names = unsafe { publish(real, things)? };
    Ok(Made { names, listener })
}

unsafe fn open(real: &Real, context: &mut Context) -> Result<(), String> {
    // SAFETY: the device below was chosen before, and is in the list.
    unsafe {
        let device = &*context.device;
        context.real = (real.ibv_open_device)(device.real);
        if context.real.is_null() {
            return Err(failed("the HCA cannot be opened"));
        }
        context.verbs.context.cmd_fd = (*context.real).cmd_fd;
        let mut attr: ibv_device_attr = zeroed();
        (real.ibv_query_device)(context.real, &mut attr);
        context.real_ports = attr.phys_port_cnt;
        context.local_keys.clear();
        context.by_number.clear();
        let added = context.gate.add((*context.real).async_fd);
        added.map_err(|error| format!("the HCA's events: {error}"))
    }
}

impl Things {
    /// Descriptors below are those of a libibverbs that is gone.
    pub fn forget_below(&self) {
        // SAFETY: what is in the sets is alive.
        let contexts = self.contexts.iter().map(|one| unsafe { &(**one).gate });
        // SAFETY: the same.
        let channels = self.channels.iter().map(|one| unsafe { &(**one).gate });
        let all = contexts.chain(channels).chain(self.manager.gates());
        all.for_each(Gate::forget_below);
    }
}

unsafe fn make_channel(real: &Real, channel: &mut Channel) -> Result<(), String> {
    // SAFETY: its context is open again.
    unsafe {
        channel.real = (real.ibv_create_comp_channel)(Context::of(channel.channel.context).real);
        if channel.real.is_null() {
            return Err(failed("a completion channel cannot be made"));
        }
        let added = channel.gate.add((*channel.real).fd);
        added.map_err(|error| format!("a completion channel: {error}"))
    }
}

/// The completion queues of send queues that will be shorter below than they are, each once a send queue.
///
/// # Safety
/// What is in the tables is alive, and contexts are open below.
unsafe fn asked_for(things: &Things) -> Vec<u32> {
    let mut asked = Vec::new();
    for qp in things.qps.iter().filter(|qp| !qp.is_null()) {
        // SAFETY: the caller says so.
        unsafe {
            let base = &(**qp).ex.qp_base;
            let device = Context::of(base.context).device_below();
            let takes = device.map_or(u32::MAX, |device| device.max_qp_wr as u32);
            if takes < (**qp).granted.max_send_wr && !base.send_cq.is_null() {
                asked.push(Cq::of(base.send_cq).place);
            }
        }
    }
    asked
}

unsafe fn make_queues(real: &Real, things: &mut Things) -> Result<(), String> {
    // SAFETY: what is in the tables is alive, and contexts, channels and domains are made.
    unsafe {
        let asked = asked_for(things);
        for cq in things.cqs.iter().filter(|cq| !cq.is_null()) {
            let ours = &mut **cq;
            let context = Context::of(ours.ex.context);
            let channel = match ours.ex.channel.is_null() {
                true => std::ptr::null_mut(),
                false => Channel::of(ours.ex.channel).real,
            };
            let mut made = ours.made;
            made.entries += asked.iter().filter(|at| **at == ours.place).count() as u32 * ASKED_MAX;
            if let Some(device) = context.device_below() {
                made.entries = made.entries.min(device.max_cqe as u32);
            }
            ours.real = cq::create_below(real, context.real, channel, cq.cast(), &made);
            if ours.real.is_null() {
                return Err(failed("a completion queue cannot be made"));
            }
        }
        for srq in things.srqs.iter().filter(|srq| !srq.is_null()) {
            let ours = &mut **srq;
            let context = Context::of(ours.srq.context);
            let mut attr = ours.attr;
            if let Some(device) = context.device_below() {
                attr.max_wr = attr.max_wr.min(device.max_srq_wr as u32);
                attr.max_sge = attr.max_sge.min(device.max_srq_sge as u32);
            }
            (ours.real, _) =
                srq::create_below(real, Pd::of(ours.srq.pd).real, *srq, attr, ours.xrc);
            if ours.real.is_null() {
                return Err(failed("a shared receive queue cannot be made"));
            }
        }
        for mr in things.mrs.iter() {
            let ours = &mut **mr;
            let range = Range {
                address: ours.mr.addr,
                length: ours.mr.length,
                iova: ours.iova,
                access: ours.access,
                is_null: ours.is_null,
            };
            let pd = Pd::of(ours.mr.pd).real;
            ours.real = register(real, pd, &range);
            ours.stand_in = None;
            if ours.real.is_null() && errno() == libc::EFAULT {
                // The program has unmapped it since: only its keys are left.
                let Scratch { bytes, real } = Scratch::new(pd, PAGE_BYTES)?;
                (ours.real, ours.stand_in) = (real, Some(bytes));
            }
            if ours.real.is_null() {
                return Err(failed("memory cannot be registered"));
            }
            let context = Context::of(ours.mr.context);
            context.local_keys.insert(ours.mr.lkey, (*ours.real).lkey);
        }
        for mw in things.mws.iter() {
            let ours = &mut **mw;
            ours.real = windows::alloc_below(Pd::of(ours.mw.pd).real, ours.mw.r#type);
            if ours.real.is_null() {
                return Err(failed("a memory window cannot be made"));
            }
            // The next binding of type 1 is the next key of both.
            if ours.mw.r#type == IBV_MW_TYPE_1 {
                ours.key = ours.mw.rkey;
            }
            ours.key_below = (*ours.real).rkey;
        }
        for qp in things.qps.iter().filter(|qp| !qp.is_null()) {
            let ours = &mut **qp;
            let (init, granted) = (ours.init, ours.granted);
            let context = Context::of(ours.ex.qp_base.context);
            ours.real = qp::create_below(real, context, *qp, &init);
            let below = mem::replace(&mut ours.granted, granted);
            ours.inline_below = below.max_inline_data;
            ours.sends_below = qp::sends_max(&below, &granted);
            if ours.real.is_null() {
                return Err(failed("a queue pair cannot be made"));
            }
            context.by_number.insert((*ours.real).qp_num, ours.place);
        }
    }
    Ok(())
}

/// What others must know.
///
/// # Safety
/// As for [`make`].
pub unsafe fn publish(real: &Real, things: &Things) -> Result<Published, String> {
    let mut made = Published::default();
    // SAFETY: what is in the tables is alive, and made again.
    unsafe {
        let mut ports = std::collections::BTreeMap::new();
        for context in &things.contexts {
            let context = &**context;
            let below = known_of(context);
            let known = (*context.device)
                .known
                .clone()
                .unwrap_or_else(|| below.clone());
            let real_guid = u64::from_be((real.ibv_get_device_guid)((*context.device).real));
            ports.insert(context.port(), real_guid);
            for (number, port) in (1..).zip(&known.ports) {
                let at = usize::from(context.real_port(number)).saturating_sub(1);
                let Some(now) = below.ports.get(at) else {
                    continue;
                };
                let mut attr: _compat_ibv_port_attr = zeroed();
                (real.ibv_query_port)(context.real, at as u8 + 1, &mut attr);
                made.ports.push(Port {
                    guid: context.port(),
                    lid: port.lid,
                    real_guid,
                    real_lid: now.lid,
                    mtu: attr.active_mtu,
                });
                for (index, gid) in &port.gids {
                    let same = now.gids.iter().find(|(at, _)| at == index);
                    if let Some((_, now)) = same.or(now.gids.first()) {
                        made.gids.push((context.port(), *gid, *now));
                    }
                }
            }
        }
        for qp in things.qps.iter().filter(|qp| !qp.is_null()) {
            let ours = &**qp;
            let base = &ours.ex.qp_base;
            let name = ours.name();
            let real = Name {
                port: ports.get(&name.port).copied().unwrap_or(name.port),
                number: (*ours.real).qp_num,
            };
            // One that receives for XRC has none: its shared receive queues have.
            let domain = match base.pd.is_null() {
                true => Domain(0),
                false => Pd::of(base.pd).domain,
            };
            made.queue_pairs.push((name, real, domain));
        }
        for srq in things.srqs.iter().filter(|srq| !srq.is_null()) {
            let ours = &**srq;
            if let Some(XrcSrq { number, .. }) = ours.xrc {
                let port = Context::of(ours.srq.context).port();
                let (real, domain) = (xrc::number_below(ours.real), Pd::of(ours.srq.pd).domain);
                made.shared.push((Name { port, number }, real, domain));
            }
        }
        for mr in &things.mrs {
            let ours = &**mr;
            made.keys.push(Key {
                domain: Pd::of(ours.mr.pd).domain,
                port: Context::of(ours.mr.context).port(),
                key: ours.mr.rkey,
                real: (*ours.real).rkey,
            });
        }
        for mw in &things.mws {
            let ours = &**mw;
            made.windows.push(Key {
                domain: Pd::of(ours.mw.pd).domain,
                port: Context::of(ours.mw.context).port(),
                key: ours.key,
                real: ours.key_below,
            });
        }
    }
    Ok(made)
}

/// Connects with what the others have made: all that is not of phases that follow.
///
/// # Safety
/// As for [`make`].
pub unsafe fn connect(state: &mut State, all: Vec<Made>) -> Result<(), String> {
    let Some(real) = real() else {
        return Err("there is no libibverbs".into());
    };
    let (names, listeners): (Vec<_>, Vec<_>) =
        all.into_iter().map(|one| (one.names, one.listener)).unzip();
    state.things.names = Names::new(names, None);
    state.process.fail_alone(&state.things.names);
    // SAFETY: what is in the tables is alive, and made again.
    unsafe {
        for ah in state.things.ahs.iter() {
            let ours = &mut **ah;
            let context = Context::of(ours.ah.context);
            let mut attr = state.things.real_address(context, &ours.attr);
            ours.real = (real.ibv_create_ah)(Pd::of(ours.ah.pd).real, &mut attr);
            if ours.real.is_null() {
                return Err(failed("an address handle cannot be made"));
            }
        }
        for qp in &state.things.opened {
            let ours = &mut **qp;
            ours.real = xrc::open_qp_below(&state.things, ours);
            if ours.real.is_null() {
                return Err(failed("a queue pair of another process cannot be opened"));
            }
        }
        let qps = state.things.qps.clone();
        let qps = || qps.iter().copied().filter(|qp| !qp.is_null());
        for qp in qps() {
            check_datagrams(real, &*qp)?;
            raise(real, state, &*qp, &[IBV_QPS_INIT])?;
        }
        for queue in receive_queues(state) {
            post_receives(state, queue)?;
        }
        for qp in qps() {
            raise(real, state, &*qp, &[IBV_QPS_RTR, IBV_QPS_RTS])?;
            for (gid, lid) in &(*qp).groups {
                let gid = ibv_gid { raw: *gid };
                if (real.ibv_attach_mcast)((*qp).real, &gid, *lid) != 0 {
                    return Err(failed("a multicast group cannot be joined"));
                }
            }
        }
    }
    let State { process, things } = state;
    things.connect_again(process, &listeners)
}

/// The program's receives that were below are so again.
///
/// # Safety
/// As for [`make`].
pub unsafe fn post_receives(state: &mut State, queue: Queue) -> Result<(), String> {
    if let Queue::Receives(place) = queue
        && let Some(qp) = get(&state.things.qps, place)
        // SAFETY: what is in the table is alive.
        && unsafe { (*qp).ex.qp_base.state == IBV_QPS_RESET }
    {
        return Ok(());
    }
    let State { process, things } = state;
    serve::post_again(process, things, queue)
}

/// A datagram is one packet: such as the program has sent must fit here, too.
///
/// # Safety
/// As for [`make`].
unsafe fn check_datagrams(real: &Real, qp: &Qp) -> Result<(), String> {
    let base = &qp.ex.qp_base;
    if base.qp_type != IBV_QPT_UD || base.state == IBV_QPS_RESET {
        return Ok(());
    }
    // SAFETY: contexts are made again; attributes are of numbers.
    let (port, mtu) = unsafe {
        let context = Context::of(base.context);
        let port = context.real_port(qp.attr.port_num);
        let mut attr: _compat_ibv_port_attr = zeroed();
        (real.ibv_query_port)(context.real, port, &mut attr);
        (port, 128u64 << attr.active_mtu)
    };
    match qp.longest > mtu {
        true => Err(format!(
            "queue pair {:#x} sends datagrams of {} bytes, and port {port} here takes {mtu} (MTU)",
            base.qp_num, qp.longest
        )),
        false => Ok(()),
    }
}

/// What can be modified on the way to a state (ibv_modify_qp(3)), and what has to be.
fn attributes_of(kind: ibv_qp_type, to: ibv_qp_state) -> i32 {
    match (kind, to) {
        (IBV_QPT_UD, IBV_QPS_INIT) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY,
        (_, IBV_QPS_INIT) => IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
        (IBV_QPT_RC | IBV_QPT_XRC_RECV, IBV_QPS_RTR) => {
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER
        }
        (IBV_QPT_UC | IBV_QPT_XRC_SEND, IBV_QPS_RTR) => {
            IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
        }
        (IBV_QPT_XRC_RECV, IBV_QPS_RTS) => IBV_QP_TIMEOUT | IBV_QP_SQ_PSN,
        (IBV_QPT_RC | IBV_QPT_XRC_SEND, IBV_QPS_RTS) => {
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC
        }
        (_, IBV_QPS_RTS) => IBV_QP_SQ_PSN,
        _ => 0,
    }
}

/// Brings a queue pair through these states, as far as the program has.
///
/// # Safety
/// As for [`make`].
pub unsafe fn raise(
    real: &Real,
    state: &State,
    qp: &Qp,
    through: &[ibv_qp_state],
) -> Result<(), String> {
    let pair = state
        .process
        .qps
        .get(qp.place as usize)
        .and_then(Option::as_ref);
    let is_failed = pair.is_some_and(|pair| pair.stage == Stage::Failed);
    let reached = match qp.ex.qp_base.state {
        IBV_QPS_SQD => IBV_QPS_RTS,
        // One that has failed receives nothing any more, and what it has is flushed again.
        reached if is_failed && reached != IBV_QPS_RESET => IBV_QPS_ERR,
        reached => reached,
    };
    for to in through {
        let to = match (reached, *to) {
            (IBV_QPS_ERR, IBV_QPS_RTR) => IBV_QPS_ERR,
            (IBV_QPS_ERR, IBV_QPS_INIT) => IBV_QPS_INIT,
            (IBV_QPS_ERR, _) => break,
            (_, to) if to > reached => break,
            (_, to) => to,
        };
        let mask = IBV_QP_STATE | attributes_of(qp.ex.qp_base.qp_type, to);
        let mut attr = qp.attr;
        attr.qp_state = to;
        // SAFETY: the queue pair and its context are made again.
        let done = unsafe {
            let mut below = state.things.real_attr(qp, &attr, mask);
            (real.ibv_modify_qp)(qp.real, &mut below, mask)
        };
        if done != 0 {
            let error = std::io::Error::from_raw_os_error(done);
            let name = qp.ex.qp_base.qp_num;
            return Err(format!(
                "queue pair {name:#x} cannot be connected again: {error}"
            ));
        }
    }
    Ok(())
}

/// Posts what nobody has carried out of a queue pair's requests.
///
/// # Safety
/// As for [`make`].
pub unsafe fn post_sends(state: &mut State, qp: &mut Qp) -> Result<(), String> {
    let Some(pair) = state.process.qp(qp.place) else {
        return Ok(());
    };
    pair.limit_sends(qp.sends_below.map(|room| room as usize));
    // Datagrams that were below are under way, or lost.
    let lasts = pair.service != Service::Datagram;
    for (number, posted) in pair.sends.outstanding().filter(|_| lasts) {
        let at = At::of(&pair.sends, number);
        // SAFETY: the queue pair is made again, and so is what its requests name.
        let done = unsafe { post_again(&state.things, qp, pair.peer, &posted.request, at) };
        if done != 0 {
            let error = std::io::Error::from_raw_os_error(done);
            return Err(format!(
                "{}: a request is not taken again: {error}",
                pair.name
            ));
        }
    }
    // SAFETY: the same.
    unsafe { release(state, qp) };
    Ok(())
}

/// Posts what nobody has carried out, and lets receives that waited have what came.
///
/// # Safety
/// As for [`make`].
pub unsafe fn refill(state: &mut State) -> Result<(), String> {
    let Some(real) = real() else {
        return Err("there is no libibverbs".into());
    };
    // SAFETY: what is in the tables is alive, and made again.
    unsafe {
        let qps = state.things.qps.clone();
        for qp in qps.into_iter().filter(|qp| !qp.is_null()) {
            post_sends(state, &mut *qp)?;
        }
        for srq in state.things.srqs.iter().filter(|srq| !srq.is_null()) {
            let ours = &mut **srq;
            if ours.attr.srq_limit > 0 {
                (real.ibv_modify_srq)(ours.real, &mut ours.attr, IBV_SRQ_LIMIT);
            }
        }
        serve_all(state)?;
        for cq in state.things.cqs.iter().filter(|cq| !cq.is_null()) {
            let ours = &**cq;
            if let Some(of_solicited) = ours.armed {
                cq::arm_below(ours.real, of_solicited);
            }
        }
    }
    Ok(())
}
