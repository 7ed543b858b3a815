//! Devices: the list, opening, queries.

use std::{
    ffi::{CStr, c_char, c_int},
    mem::{MaybeUninit, size_of},
    os::fd::IntoRawFd,
    ptr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use rustix::event::{EventfdFlags, eventfd};
use snaprig_hca::{
    control::{find_port, guid},
    model::Model,
    port::{GIDS_MAX, PKEYS_MAX},
};
use snaprig_verbs_abi::{strings, *};
use snaprig_verbs_files::{device_name, paths};

use super::{
    Context, MUTEX, cq, extended, fabric, joined, memory, minus_one, null, post, qp, set_errno, srq,
};
use crate::client::Fabric;

/// A device, as it is allocated.
#[repr(C)]
pub(crate) struct Device {
    device: ibv_device,
    fabric: Arc<Fabric>,
    hca: u32,
    /// Lists and contexts that have it; changed by who holds [`DEVICES`].
    users: AtomicUsize,
}

/// The devices that are used, by address. A device is the same pointer in every list: librdmacm
/// takes one that it does not know for another device, and one that is missing for a removed one.
static DEVICES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

impl Device {
    fn new(fabric: &Arc<Fabric>, hca: u32) -> Box<Self> {
        let name = device_name(hca);
        Box::new(Self {
            device: ibv_device {
                _ops: _ibv_device_ops {
                    _dummy1: None,
                    _dummy2: None,
                },
                node_type: IBV_NODE_CA,
                transport_type: IBV_TRANSPORT_IB,
                name: text(&name),
                dev_name: text(&format!("uverbs{hca}")),
                dev_path: text(&format!("/sys/class/infiniband_verbs/uverbs{hca}")),
                ibdev_path: text(&format!("/sys/class/infiniband/{name}")),
            },
            fabric: fabric.clone(),
            hca,
            users: AtomicUsize::new(1),
        })
    }

    /// A use of the device of an HCA.
    fn hold(fabric: &Arc<Fabric>, hca: u32) -> *mut Self {
        let mut devices = DEVICES
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        for &device in devices.iter() {
            // SAFETY: whatever is in the list is a box that is not freed: whoever releases the last
            // use takes it out, under the lock that is held here, before freeing it.
            let known = unsafe { &*(device as *const Self) };
            if known.hca == hca && Arc::ptr_eq(&known.fabric, fabric) {
                known.users.fetch_add(1, Ordering::Relaxed);
                return device as *mut Self;
            }
        }
        let device = Box::into_raw(Self::new(fabric, hca));
        devices.push(device as usize);
        device
    }

    /// # Safety
    /// `device` came from `hold`, and the caller gives up one use that `hold` gave and that nobody
    /// else gives up.
    unsafe fn release(device: *mut Self) {
        let mut devices = DEVICES
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        // SAFETY: the caller has a use of the device, and a device is freed only when its last use
        // is given up, so that it is alive here.
        if unsafe { (*device).users.fetch_sub(1, Ordering::Relaxed) } == 1 {
            devices.retain(|known| *known != device as usize);
            drop(devices);
            // SAFETY: the count was 1 under the lock, and the device is in the list no more, so
            // that nobody has or can get another use; the pointer came from `Box::into_raw` in
            // `hold`.
            drop(unsafe { Box::from_raw(device) });
        }
    }
}

pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let fabric = match fabric() {
        Ok(fabric) => fabric,
        Err(error) => {
            // rdma-core's library warns so, too; without a word, nobody would know why.
            eprintln!("libibverbs (snaprig): {error}");
            if !count.is_null() {
                // SAFETY: the pointer is not null, and ibv_get_device_list(3) has the program pass
                // a place for one int then.
                unsafe { *count = 0 };
            }
            return null(error.errno());
        }
    };
    let mut list: Vec<*mut ibv_device> = fabric
        .visible()
        .map(|hca| Device::hold(&fabric, hca).cast())
        .collect();
    if !count.is_null() {
        // SAFETY: the pointer is not null, and ibv_get_device_list(3) has the program pass a place
        // for one int then.
        unsafe { *count = list.len() as c_int };
    }
    list.push(ptr::null_mut());
    Box::into_raw(list.into_boxed_slice()).cast()
}

pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    // SAFETY: ibv_free_device_list(3) has the program pass a list of `ibv_get_device_list`, and
    // give it up. That is a boxed slice whose last entry is its one null pointer, so that its
    // length is found before its end; each other entry is a use of a device that is given up once.
    unsafe {
        let mut count = 0;
        while !(*list.add(count)).is_null() {
            Device::release((*list.add(count)).cast());
            count += 1;
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(
            list,
            count + 1,
        )));
    }
}

pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the program passes a device from a list that it has not freed, or of a context that
    // it has not closed, so that its box is alive; the name is in it, and nobody changes it.
    unsafe { &raw const (*device).name }.cast()
}

pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
    // SAFETY: the program passes a device from a list that it has not freed, or of a context that
    // it has not closed: a box of a `Device`, which begins with the C structure, and whose number
    // nobody changes.
    guid(unsafe { (*device.cast::<Device>()).hca }).to_be()
}

pub unsafe extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    // SAFETY: the program passes a device from a list that it has not freed, or of a context that
    // it has not closed: a box of a `Device`, which begins with the C structure, and whose number
    // nobody changes.
    unsafe { (*device.cast::<Device>()).hca as c_int }
}

pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: ibv_open_device(3) has the program pass a device from a list that it has not freed: a
    // box of a `Device`, which begins with the C structure and is alive during this call.
    let ours = unsafe { &*device.cast::<Device>() };
    // First: what can fail here must not leave the daemon with a context that nobody has.
    let command = match eventfd(0, EventfdFlags::CLOEXEC) {
        Ok(command) => command,
        Err(error) => return null(error.raw_os_error()),
    };
    let (number, events) = match ours.fabric.open_context(ours.hca) {
        Ok(opened) => opened,
        Err(error) => return null(error.errno()),
    };
    let mut verbs = MaybeUninit::<verbs_context>::zeroed();
    let table = verbs.as_mut_ptr();
    // SAFETY: `table` points to `verbs`, on this stack, which nothing else refers to. It is of
    // integers, pointers and optional functions, so that the zeroes that it was made of are a value
    // of it before the members are written here.
    unsafe {
        fill(&mut *table);
        (*table).context.device = device;
        (*table).context.async_fd = events.into_raw_fd();
        // Programs duplicate it, to hand it to ibv_import_device(3), which says no.
        (*table).context.cmd_fd = command.into_raw_fd();
        (*table).context.num_comp_vectors = model_of(ours).vectors as c_int;
        let context = Box::new(Context {
            verbs: verbs.assume_init(),
            fabric: ours.fabric.clone(),
            device: Device::hold(&ours.fabric, ours.hca),
            number,
            hca: ours.hca,
            objects: Mutex::default(),
        });
        &raw mut (*Box::into_raw(context)).verbs.context
    }
}

fn model_of(device: &Device) -> Model {
    let name = device.fabric.hcas.get(device.hca as usize).copied();
    Model::of(name.unwrap_or_default())
}

pub(super) fn model(context: &Context) -> Model {
    let name = context.fabric.hcas.get(context.hca as usize).copied();
    Model::of(name.unwrap_or_default())
}

fn fill(table: &mut verbs_context) {
    table.sz = size_of::<verbs_context>();
    table.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    table.context.mutex = MUTEX;
    table.query_port = Some(query_port);
    table.advise_mr = Some(memory::advise_mr);
    table.alloc_null_mr = Some(memory::alloc_null_mr);
    table.alloc_parent_domain = Some(memory::alloc_parent_domain);
    table.alloc_td = Some(memory::alloc_td);
    table.dealloc_td = Some(memory::dealloc_td);
    table.modify_cq = Some(cq::modify_cq);
    table.create_cq_ex = Some(cq::create_cq_ex);
    table.query_device_ex = Some(query_device_ex);
    table.query_rt_values = Some(query_rt_values);
    table.open_qp = Some(qp::open_qp);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.open_xrcd = Some(memory::open_xrcd);
    table.close_xrcd = Some(memory::close_xrcd);
    let ops = &mut table.context.ops;
    ops.alloc_mw = Some(memory::alloc_mw);
    ops.bind_mw = Some(extended::bind_mw);
    ops.dealloc_mw = Some(memory::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: ibv_close_device(3) has the program pass a context of `ibv_open_device` and give it
    // up, with all objects of it destroyed. Both descriptors are its own and are closed once. Its
    // box is freed by the pointer that `ibv_open_device` returned, which may write to all of it, as
    // one made of `ours` may not; `ours` is not used after that. The use of the device that it had
    // is given up once.
    unsafe {
        let ours = Context::of(context);
        let answer = ours.fabric.close_context(ours.number);
        libc::close((*context).async_fd);
        libc::close((*context).cmd_fd);
        let device = ours.device;
        drop(Box::from_raw(Context::whole(context)));
        Device::release(device);
        // A daemon that is gone closed it long ago.
        let _ = answer;
        0
    }
}

fn attributes(context: &Context) -> ibv_device_attr {
    let model = model(context);
    // SAFETY: the structure is of integers and bytes alone, so that zeroes are a value of it.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    attr.fw_ver = text(model.firmware);
    attr.node_guid = guid(context.hca).to_be();
    attr.sys_image_guid = attr.node_guid;
    attr.max_mr_size = 1 << 46;
    attr.page_size_cap = 0xffff_f000;
    attr.vendor_id = model.vendor_id;
    attr.vendor_part_id = model.part_id;
    attr.hw_ver = model.hardware_version;
    attr.max_qp = model.qps as c_int;
    attr.max_qp_wr = model.queue_slots as c_int;
    attr.device_cap_flags = IBV_DEVICE_BAD_PKEY_CNTR
        | IBV_DEVICE_BAD_QKEY_CNTR
        | IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_N_NOTIFY_CQ
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_XRC;
    attr.max_sge = model.sges as c_int;
    attr.max_sge_rd = model.sges as c_int;
    attr.max_cq = model.cqs as c_int;
    attr.max_cqe = model.cq_entries as c_int;
    attr.max_mr = model.regions as c_int;
    attr.max_pd = model.pds as c_int;
    attr.max_qp_rd_atom = model.rd_atomic as c_int;
    attr.max_qp_init_rd_atom = model.rd_atomic as c_int;
    attr.max_res_rd_atom = (model.rd_atomic * model.qps) as c_int;
    attr.atomic_cap = IBV_ATOMIC_HCA;
    attr.max_mw = model.windows as c_int;
    attr.max_mcast_grp = snaprig_hca::port::GROUPS_MAX as c_int;
    attr.max_mcast_qp_attach = model.group_members as c_int;
    attr.max_total_mcast_qp_attach = attr.max_mcast_grp * attr.max_mcast_qp_attach;
    attr.max_ah = model.address_handles as c_int;
    attr.max_srq = model.srqs as c_int;
    attr.max_srq_wr = model.srq_slots as c_int;
    attr.max_srq_sge = model.sges as c_int;
    attr.max_pkeys = PKEYS_MAX as u16;
    attr.local_ca_ack_delay = 15;
    attr.phys_port_cnt = model.ports as u8;
    attr
}

pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: ibv_query_device(3) has the program pass an open context, and a place for the
    // attributes, which are written and not read.
    unsafe { *attr = attributes(Context::of(context)) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: ibv_query_device_ex(3) has the program pass an open context, null or an input that it
    // can read, and a place of `size` bytes for the answer. No more than `size` of them are
    // written, and no more than the structure's own length is read of `full`, which is of integers,
    // so that zeroes are a value of it.
    unsafe {
        if !input.is_null() && (*input).comp_mask != 0 || size < size_of::<ibv_device_attr>() {
            return libc::EINVAL;
        }
        let context = Context::of(context);
        let mut full: ibv_device_attr_ex = std::mem::zeroed();
        full.orig_attr = attributes(context);
        full.device_cap_flags_ex = full.orig_attr.device_cap_flags.into();
        full.completion_timestamp_mask = u64::MAX;
        full.hca_core_clock = 1_000_000;
        full.phys_port_cnt_ex = model(context).ports;
        let bytes = size.min(size_of::<ibv_device_attr_ex>());
        ptr::write_bytes(attr.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast::<u8>(), bytes);
    }
    0
}

unsafe extern "C" fn query_rt_values(
    _context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: ibv_query_rt_values_ex(3) has the program pass a structure whose mask it has set, and
    // which this call alone uses meanwhile.
    unsafe {
        if (*values).comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
            (*values).comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
        }
        let now = crate::client::now_ns();
        (*values).raw_clock.tv_sec = (now / 1_000_000_000) as i64;
        (*values).raw_clock.tv_nsec = (now % 1_000_000_000) as i64;
    }
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: ibv_query_port(3) has the program pass a context that `ibv_open_device` returned and
    // that it has not closed.
    let context = unsafe { Context::of(context) };
    let Some((_, port)) = find_port(&context.fabric.memory, context.hca, number) else {
        return libc::EINVAL;
    };
    // SAFETY: the structure is of integers alone, so that zeroes are a value of it.
    let mut full: ibv_port_attr = unsafe { std::mem::zeroed() };
    let up = port.up.get() != 0;
    let mtu = match model(context).mtu {
        2048 => IBV_MTU_2048,
        _ => IBV_MTU_4096,
    };
    full.state = if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    full.max_mtu = mtu;
    full.active_mtu = mtu;
    full.gid_tbl_len = GIDS_MAX as c_int;
    full.port_cap_flags =
        IBV_PORT_SYS_IMAGE_GUID_SUP | IBV_PORT_CM_SUP | IBV_PORT_EXTENDED_SPEEDS_SUP;
    full.max_msg_sz = 1 << 30;
    full.bad_pkey_cntr = port.bad_pkeys.get();
    full.qkey_viol_cntr = port.bad_qkeys.get();
    full.pkey_tbl_len = PKEYS_MAX as u16;
    full.lid = port.lid.get() as u16;
    full.sm_lid = snaprig_hca::control::FIRST_LID;
    full.max_vl_num = 1;
    full.subnet_timeout = 18;
    full.active_width = 2;
    full.active_speed = 32;
    full.phys_state = if up { 5 } else { 3 };
    full.link_layer = IBV_LINK_LAYER_INFINIBAND;
    let bytes = size.min(size_of::<ibv_port_attr>());
    // SAFETY: the callers, ibv_query_port(3) of the header and the one below, pass a place of
    // `size` bytes; no more than that is written, and no more than the structure's own length is
    // read of `full`.
    unsafe {
        ptr::write_bytes(attr.cast::<u8>(), 0, size);
        ptr::copy_nonoverlapping((&raw const full).cast::<u8>(), attr.cast::<u8>(), bytes);
    }
    0
}

/// Programs of old bring a shorter structure; those of today call [`query_port`] themselves.
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    number: u8,
    attr: *mut _compat_ibv_port_attr,
) -> c_int {
    // SAFETY: a program of old passes an open context and a place for the shorter structure, which
    // is the size that is told to `query_port`, so that it writes no further.
    unsafe {
        query_port(
            context,
            number,
            attr.cast(),
            size_of::<_compat_ibv_port_attr>(),
        )
    }
}

unsafe fn gid(context: *mut ibv_context, port: u8, index: c_int) -> Option<[u8; 16]> {
    // SAFETY: the callers pass on a context that the program got from `ibv_open_device` and has not
    // closed.
    let context = unsafe { Context::of(context) };
    let (_, port) = find_port(&context.fabric.memory, context.hca, port)?;
    port.gid(usize::try_from(index).ok()?)
}

pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut ibv_gid,
) -> c_int {
    // SAFETY: ibv_query_gid(3) has the program pass an open context, and a place for a GID, which
    // is written and not read.
    unsafe {
        match gid(context, port, index) {
            Some(gid) => {
                (*out).raw = gid;
                0
            }
            None => minus_one(libc::EINVAL),
        }
    }
}

unsafe fn entry(context: *mut ibv_context, port: u32, index: u32) -> Option<ibv_gid_entry> {
    // SAFETY: the callers pass on a context that the program got from `ibv_open_device` and has not
    // closed, which is all that `gid` asks for.
    let raw = unsafe { gid(context, u8::try_from(port).ok()?, index as c_int) }?;
    Some(ibv_gid_entry {
        gid: ibv_gid { raw },
        gid_index: index,
        port_num: port,
        gid_type: IBV_GID_TYPE_IB,
        ndev_ifindex: 0,
    })
}

pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    _size: usize,
) -> c_int {
    // SAFETY: ibv_query_gid_ex(3) has the program pass an open context, and a place for an entry,
    // which is written and not read.
    unsafe {
        match entry(context, port, index) {
            _ if flags != 0 => libc::EINVAL,
            Some(found) if found.gid.raw != [0; 16] => {
                *out = found;
                0
            }
            Some(_) => libc::ENODATA,
            None => libc::EINVAL,
        }
    }
}

pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    out: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    _size: usize,
) -> isize {
    if flags != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: ibv_query_gid_table(3) has the program pass an open context and an array of `room`
    // entries, and `count` is less than `room` when an entry is written.
    unsafe {
        let ports = model(Context::of(context)).ports;
        let all = (1..=ports).flat_map(|port| (0..GIDS_MAX as u32).map(move |index| (port, index)));
        let there = all.filter_map(|(port, index)| entry(context, port, index));
        let mut count = 0;
        for found in there.filter(|found| found.gid.raw != [0; 16]) {
            if count == room {
                return -(libc::EINVAL as isize);
            }
            *out.add(count) = found;
            count += 1;
        }
        count as isize
    }
}

pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // SAFETY: the program passes an open context, and a place for one number, which is written and
    // not read.
    unsafe {
        if gid(context, port, index as c_int).is_none() {
            return minus_one(libc::EINVAL);
        }
        *kind = IBV_GID_TYPE_IB;
    }
    0
}

pub unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    // SAFETY: ibv_query_pkey(3) has the program pass an open context, and a place for one key,
    // which is written and not read.
    unsafe {
        let context = Context::of(context);
        let port = find_port(&context.fabric.memory, context.hca, port);
        let pkey = usize::try_from(index)
            .ok()
            .and_then(|index| port?.1.pkey(index));
        match pkey {
            Some(pkey) => {
                *out = pkey.to_be();
                0
            }
            // As rdma-core's, which finds no such file in sysfs.
            None => minus_one(libc::ENOENT),
        }
    }
}

pub unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    let mut there = 0;
    for index in 0..PKEYS_MAX as c_int {
        // SAFETY: the program passes an open context, as it has to for ibv_query_pkey(3); the key's
        // place is a variable on this stack.
        if unsafe { ibv_query_pkey(context, port, index, &mut there) } == 0 && there == pkey {
            return index;
        }
    }
    set_errno(libc::ENOENT);
    -1
}

pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

pub unsafe extern "C" fn ibv_read_sysfs_file(
    directory: *const c_char,
    file: *const c_char,
    into: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the program passes two strings that end with a null byte, and a place of `size`
    // bytes. At most `size - 1` bytes and a null byte are written to it, and nothing if `size` is
    // 0; the bytes are this function's own, so that they do not overlap the place.
    unsafe {
        let path =
            [CStr::from_ptr(directory), CStr::from_ptr(file)].map(|part| part.to_string_lossy());
        let path = path.join("/");
        let mut bytes = match (paths::kind(&path, joined), std::fs::read(path)) {
            (Some(paths::Kind::File(content)), _) => content.into_bytes(),
            (_, Ok(bytes)) => bytes,
            _ => return minus_one(libc::ENOENT),
        };
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        let count = bytes.len().min(size.saturating_sub(1));
        ptr::copy_nonoverlapping(bytes.as_ptr().cast(), into, count);
        if size > 0 {
            *into.add(count) = 0;
        }
        count as c_int
    }
}

pub extern "C" fn ibv_import_device(_fd: c_int) -> *mut ibv_context {
    null(libc::EOPNOTSUPP)
}

macro_rules! string {
    ($($name:ident($of:ty);)*) => {
        $(        pub extern "C" fn $name(value: $of) -> *const c_char {
            strings::$name(value).as_ptr()
        })*
    };
}

string! {
    ibv_node_type_str(ibv_node_type);
    ibv_port_state_str(ibv_port_state);
    ibv_event_type_str(ibv_event_type);
    ibv_wc_status_str(ibv_wc_status);
}

macro_rules! rate {
    ($($name:ident($from:ty) -> $to:ty;)*) => {
        $(        pub extern "C" fn $name(value: $from) -> $to {
            strings::$name(value)
        })*
    };
}

rate! {
    ibv_rate_to_mult(ibv_rate) -> c_int;
    mult_to_ibv_rate(c_int) -> ibv_rate;
    ibv_rate_to_mbps(ibv_rate) -> c_int;
    mbps_to_ibv_rate(c_int) -> ibv_rate;
}
