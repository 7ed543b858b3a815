//! Devices and contexts.

use std::{
    collections::{HashMap, VecDeque},
    ffi::{c_char, c_int, c_uint},
    mem::{size_of, zeroed},
    ptr,
};

use snaprig_verbs_abi::*;

use crate::{
    address, cq, domains,
    event::Gate,
    memory,
    objects::{Context, Device, Shadow, is_ours},
    plugin, post, qp,
    real::{errno, null, real, set_errno},
    srq,
    state::{Things, lock},
    windows, xrc,
};

impl Device {
    /// Another one is below from now on. The program knows its device by name, but looks for files where the device that is
    /// there has them.
    ///
    /// # Safety
    /// The one below is of the list.
    pub unsafe fn stand_for(&mut self, below: *mut ibv_device) {
        // SAFETY: as above.
        let real = unsafe { &*below };
        (self.real, self.below) = (below, real.name);
        let own = &mut self.device;
        (own.dev_name, own.dev_path) = (real.dev_name, real.dev_path);
        own.ibdev_path = real.ibdev_path;
    }
}

/// What tells a device of ours from one of the libibverbs below, which has nothing there. There is one of it: functions that can be
/// inlined may have several addresses.
#[inline(never)]
unsafe extern "C" fn mark(_: *mut ibv_context) {}

/// Whether a device is ours.
unsafe fn is_our_device(device: *mut ibv_device) -> bool {
    // SAFETY: the callers have it of a list of devices, ours or another.
    let found = unsafe { (*device)._ops._dummy2 };
    found.is_some_and(|found| ptr::eq(found as *const (), mark as *const ()))
}

impl Things {
    /// The devices of the libibverbs below. The list is there until there is another.
    ///
    /// # Safety
    /// Nobody uses a device below that is in no list any more.
    pub unsafe fn below(&mut self) -> Result<Vec<*mut ibv_device>, String> {
        // SAFETY: the list has `count` entries, and stays until it is freed here.
        unsafe {
            let Some(real) = real() else {
                return Err("there is no libibverbs".into());
            };
            let mut count = 0;
            let list = (real.ibv_get_device_list)(&mut count);
            if list.is_null() {
                let error = std::io::Error::from_raw_os_error(errno());
                return Err(format!("there are no HCAs here: {error}"));
            }
            let found = (0..count as usize).map(|index| *list.add(index)).collect();
            if let Some(before) = self.list.replace(list) {
                (real.ibv_free_device_list)(before);
            }
            Ok(found)
        }
    }

    /// The program's devices: those that stand for what there is.
    unsafe fn list_devices(&mut self) -> Result<Vec<*mut Device>, c_int> {
        // SAFETY: devices of ours have those of the list from here on, unless they are gone.
        unsafe {
            let all = self.below().map_err(|_| errno())?;
            let mut found = Vec::new();
            for below in all {
                let known = self.devices.iter().copied();
                let known: Vec<_> = known
                    .filter(|ours| (**ours).below == (*below).name)
                    .collect();
                for device in &known {
                    (**device).real = below;
                }
                match known.is_empty() {
                    false => found.extend(known),
                    true => found.push(self.new_device(below)),
                }
            }
            Ok(found)
        }
    }

    /// A device that the program has not seen yet.
    unsafe fn new_device(&mut self, below: *mut ibv_device) -> *mut Device {
        // SAFETY: the one below is of the list.
        unsafe {
            let mut device = ptr::read(below);
            device._ops = _ibv_device_ops {
                _dummy1: None,
                _dummy2: Some(mark),
            };
            let (guid, index) = real().map_or((0, -1), |real| {
                let index = (real.ibv_get_device_index)(below);
                ((real.ibv_get_device_guid)(below), index)
            });
            let device = Box::into_raw(Box::new(Device {
                device,
                real: below,
                below: (*below).name,
                guid,
                index,
                known: None,
            }));
            self.devices.push(device);
            device
        }
    }
}

fn fill(table: &mut verbs_context) {
    table.sz = size_of::<verbs_context>();
    table.context.abi_compat = __VERBS_ABI_IS_EXTENDED;
    table.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    table.query_port = Some(query_port);
    table.advise_mr = Some(memory::advise_mr);
    table.create_cq_ex = Some(cq::create_cq_ex);
    table.modify_cq = Some(cq::modify_cq);
    table.query_device_ex = Some(query_device_ex);
    table.query_rt_values = Some(query_rt_values);
    table.create_qp_ex = Some(qp::create_qp_ex);
    table.create_srq_ex = Some(srq::create_srq_ex);
    table.get_srq_num = Some(srq::get_srq_num);
    table.alloc_null_mr = Some(memory::alloc_null_mr);
    table.alloc_parent_domain = Some(domains::alloc_parent_domain);
    table.alloc_td = Some(domains::alloc_td);
    table.dealloc_td = Some(domains::dealloc_td);
    table.open_xrcd = Some(xrc::open_xrcd);
    table.close_xrcd = Some(xrc::close_xrcd);
    table.open_qp = Some(xrc::open_qp);
    let ops = &mut table.context.ops;
    ops.alloc_mw = Some(windows::alloc_mw);
    ops.bind_mw = Some(windows::bind_mw);
    ops.dealloc_mw = Some(windows::dealloc_mw);
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_srq_recv = Some(post::post_srq_recv);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
}

exported! {
    fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
        plugin::register();
        let found = lock().things.list_devices();
        if !count.is_null() {
            *count = found.as_ref().map_or(0, |found| found.len() as c_int);
        }
        match found {
            Ok(mut found) => {
                found.push(ptr::null_mut());
                Box::into_raw(found.into_boxed_slice()).cast()
            }
            Err(errno) => null(errno),
        }
    }

    fn ibv_free_device_list(list: *mut *mut ibv_device) {
        if list.is_null() {
            return;
        }
        let mut count = 0;
        while !(*list.add(count)).is_null() {
            count += 1;
        }
        if count > 0 && !is_our_device(*list) {
            return real().map_or((), |real| (real.ibv_free_device_list)(list));
        }
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(list, count + 1)));
    }

    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
        (&raw const (*device).name).cast()
    }

    fn ibv_get_device_guid(device: *mut ibv_device) -> u64 {
        if !is_our_device(device) {
            return real().map_or(0, |real| (real.ibv_get_device_guid)(device));
        }
        Device::of(device).guid
    }

    fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
        if !is_our_device(device) {
            return real().map_or(-1, |real| (real.ibv_get_device_index)(device));
        }
        Device::of(device).index
    }

    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
        let Some(real) = real() else {
            return null(libc::ENOSYS);
        };
        if !is_our_device(device) {
            return (real.ibv_open_device)(device);
        }
        let state = &mut *lock();
        let device = device.cast::<Device>();
        if (*device).real.is_null() {
            return null(libc::ENODEV);
        }
        let below = (real.ibv_open_device)((*device).real);
        if below.is_null() {
            return ptr::null_mut();
        }
        let gate = match Gate::new((*below).async_fd) {
            Ok(gate) => gate,
            Err(error) => {
                (real.ibv_close_device)(below);
                return null(error.raw_os_error());
            }
        };
        let mut attr = zeroed();
        (real.ibv_query_device)(below, &mut attr);
        let mut verbs: verbs_context = zeroed();
        fill(&mut verbs);
        verbs.context.device = device.cast();
        verbs.context.cmd_fd = (*below).cmd_fd;
        verbs.context.async_fd = gate.fd;
        verbs.context.num_comp_vectors = (*below).num_comp_vectors;
        let context = Box::into_raw(Box::new(Context {
            verbs,
            real: below,
            device,
            attr,
            real_ports: attr.phys_port_cnt,
            gate,
            pending: VecDeque::new(),
            local_keys: HashMap::new(),
            by_number: HashMap::new(),
        }));
        state.things.contexts.insert(context);
        (*context).pointer()
    }

    fn ibv_close_device(context: *mut ibv_context) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours(context) {
            return (real.ibv_close_device)(context);
        }
        let state = &mut *lock();
        let ours: *mut Context = Context::of(context);
        let closed = match (*ours).real.is_null() {
            true => 0,
            false => (real.ibv_close_device)((*ours).real),
        };
        if closed == 0 {
            state.things.contexts.remove(&ours);
            drop(Box::from_raw(ours));
        }
        closed
    }

    // Another process's, by a descriptor: there is no telling what that has.
    fn ibv_import_device(_fd: c_int) -> *mut ibv_context {
        null(libc::EOPNOTSUPP)
    }

    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        if !is_ours(context) {
            return real().map_or(libc::ENOSYS, |real| (real.ibv_query_device)(context, attr));
        }
        let _state = lock();
        *attr = Context::of(context).attr;
        0
    }

    fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut _compat_ibv_port_attr,
    ) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours(context) {
            return (real.ibv_query_port)(context, port, attr);
        }
        let state = lock();
        let ours = Context::of(context);
        let done = (real.ibv_query_port)(ours.real, ours.real_port(port), attr);
        if done == 0 && let Some((lid, sm_lid)) = address::known_lids(&state.things, ours, port) {
            ((*attr).lid, (*attr).sm_lid) = (lid, sm_lid);
        }
        done
    }

    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours(context) {
            return (real.ibv_query_gid)(context, port, index, gid);
        }
        let state = lock();
        let ours = Context::of(context);
        if let Some(known) = address::known_gid(&state.things, ours, port, index as u32) {
            (*gid).raw = known;
            return 0;
        }
        (real.ibv_query_gid)(ours.real, ours.real_port(port), index, gid)
    }

    fn ibv_query_gid_type(context: *mut ibv_context, port: u8, index: c_uint, kind: *mut u32) -> c_int {
        let real_context = match is_ours(context) {
            true => Context::of(context).real,
            false => context,
        };
        // The private function of this name has another version in each release: the public one says the same.
        let mut entry: ibv_gid_entry = zeroed();
        let asked = real().map_or(libc::ENOSYS, |real| {
            (real._ibv_query_gid_ex)(real_context, port.into(), index, &mut entry, 0, size_of::<ibv_gid_entry>())
        });
        match asked {
            0 => {
                *kind = entry.gid_type;
                0
            }
            errno => {
                set_errno(errno);
                -1
            }
        }
    }

    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        size: usize,
    ) -> c_int {
        let Some(real) = real() else {
            return libc::ENOSYS;
        };
        if !is_ours(context) {
            return (real._ibv_query_gid_ex)(context, port, index, entry, flags, size);
        }
        let state = lock();
        let ours = Context::of(context);
        let below = u32::from(ours.real_port(port as u8));
        let done = (real._ibv_query_gid_ex)(ours.real, below, index, entry, flags, size);
        if done == 0 {
            (*entry).port_num = port;
            if let Some(known) = address::known_gid(&state.things, ours, port as u8, index) {
                (*entry).gid.raw = known;
            }
        }
        done
    }

    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        room: usize,
        flags: u32,
        size: usize,
    ) -> isize {
        let Some(real) = real() else {
            return -(libc::ENOSYS as isize);
        };
        if !is_ours(context) {
            return (real._ibv_query_gid_table)(context, entries, room, flags, size);
        }
        let state = lock();
        let ours = Context::of(context);
        let count = (real._ibv_query_gid_table)(ours.real, entries, room, flags, size);
        for index in 0..count.max(0) as usize {
            let entry = entries.byte_add(index * size);
            let (port, at) = ((*entry).port_num as u8, (*entry).gid_index);
            if let Some(known) = address::known_gid(&state.things, ours, port, at) {
                (*entry).gid.raw = known;
            }
        }
        count
    }

    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours(context) {
            return (real.ibv_query_pkey)(context, port, index, pkey);
        }
        let _state = lock();
        let ours = Context::of(context);
        (real.ibv_query_pkey)(ours.real, ours.real_port(port), index, pkey)
    }

    fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours(context) {
            return (real.ibv_get_pkey_index)(context, port, pkey);
        }
        let _state = lock();
        let ours = Context::of(context);
        (real.ibv_get_pkey_index)(ours.real, ours.real_port(port), pkey)
    }

    fn ibv_resolve_eth_l2_from_gid(
        context: *mut ibv_context,
        attr: *mut ibv_ah_attr,
        mac: *mut u8,
        vlan: *mut u16,
    ) -> c_int {
        let Some(real) = real() else {
            return -1;
        };
        if !is_ours(context) {
            return (real.ibv_resolve_eth_l2_from_gid)(context, attr, mac, vlan);
        }
        let state = lock();
        let ours = Context::of(context);
        let mut below = state.things.real_address(ours, &*attr);
        (real.ibv_resolve_eth_l2_from_gid)(ours.real, &mut below, mac, vlan)
    }
}

in_tables! {
    fn query_port(
        context: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
        bytes: usize,
    ) -> c_int {
        let state = lock();
        let ours = Context::of(context);
        let Some(query) = (*ours.real_verbs()).query_port else {
            return libc::EOPNOTSUPP;
        };
        let done = query(ours.real, ours.real_port(port), attr, bytes);
        if done == 0 && let Some((lid, sm_lid)) = address::known_lids(&state.things, ours, port) {
            ((*attr).lid, (*attr).sm_lid) = (lid, sm_lid);
        }
        done
    }

    fn query_device_ex(
        context: *mut ibv_context,
        input: *const ibv_query_device_ex_input,
        attr: *mut ibv_device_attr_ex,
        bytes: usize,
    ) -> c_int {
        let _state = lock();
        let ours = Context::of(context);
        let Some(query) = (*ours.real_verbs()).query_device_ex else {
            return libc::EOPNOTSUPP;
        };
        let done = query(ours.real, input, attr, bytes);
        if done == 0 {
            (*attr).orig_attr = ours.attr;
        }
        done
    }

    fn query_rt_values(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int {
        let _state = lock();
        let ours = Context::of(context);
        match (*ours.real_verbs()).query_rt_values {
            Some(query) => query(ours.real, values),
            None => libc::EOPNOTSUPP,
        }
    }
}
