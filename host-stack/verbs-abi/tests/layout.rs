//! Sizes, offsets and values, judged by a C compiler with the header of Debian's library.

use std::{
    io::Write,
    mem::offset_of,
    process::{Command, Stdio},
};

use snaprig_verbs_abi::*;

/// Panics with the compiler's words if it refuses.
fn compile(checks: &str) {
    let mut gcc = Command::new("gcc")
        .args(["-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gcc");
    let program = format!("#include <infiniband/verbs.h>\n{checks}");
    gcc.stdin
        .take()
        .unwrap()
        .write_all(program.as_bytes())
        .unwrap();
    let output = gcc.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn size<T, F>(_: fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

/// Checks of types, in C. A field followed by names in parentheses is an anonymous union of C with
/// these members; a type followed by a path has no name in C, and is what this path leads to. A
/// struct with a field too many or too few here does not compile.
macro_rules! layout {
    ($($kind:ident $type:ident $(= $of:ident . $path:literal)? {
        $($field:ident $(($($member:ident),*))?),*
    })*) => {{
        let mut checks = String::new();
        $(
            layout!(@whole $kind $type $($field)*);
            let c = concat!(stringify!($kind), " ", stringify!($type));
            $(
                let _ = c;
                let c = concat!("__typeof__(((struct ", stringify!($of), " *)0)->", $path, ")");
            )?
            checks += &format!(
                "_Static_assert(sizeof({c}) == {} && _Alignof({c}) == {}, \"{}\");\n",
                size_of::<$type>(), align_of::<$type>(), stringify!($type),
            );
            $(layout!(@field checks c $type $field $(($($member)*))?);)*
        )*
        checks
    }};
    (@whole struct $type:ident $($field:ident)*) => {
        let _ = |whole: $type| { let $type { $($field: _),* } = whole; };
    };
    (@whole union $type:ident $($field:ident)*) => {};
    (@field $checks:ident $c:ident $type:ident $union:ident ($($member:ident)*)) => {
        $(layout!(@check $checks $c $type stringify!($member), ($union.$member));)*
    };
    (@field $checks:ident $c:ident $type:ident $field:ident) => {
        layout!(@check $checks $c $type stringify!($field), ($field));
    };
    (@check $checks:ident $c:ident $type:ident $name:expr, ($($path:tt)+)) => {
        let name = $name.trim_start_matches("r#");
        $checks += &format!(
            "_Static_assert(offsetof({0}, {name}) == {1} && sizeof((({0} *)0)->{name}) == {2}, \
             \"{3}.{name}\");\n",
            $c,
            offset_of!($type, $($path)+),
            // SAFETY: this closure is only there for its type; nobody calls it.
            size(|whole: *const $type| unsafe { &raw const (*whole).$($path)+ }),
            stringify!($type),
        );
    };
}

#[test]
#[cfg_attr(
    not(has_verbs_h_44),
    ignore = "libibverbs-dev 44 is not installed (ci/setup installs it)"
)]
fn types_are_laid_out_as_in_c() {
    let checks = layout! {
        union ibv_gid { raw, global }
        struct ibv_gid_global = ibv_gid_entry."gid.global" { subnet_prefix, interface_id }
        struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        struct ibv_grh { version_tclass_flow, paylen, next_hdr, hop_limit, sgid, dgid }
        struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        struct ibv_ah { context, pd, handle }
        struct ibv_async_event { element, event_type }
        union ibv_async_event_element = ibv_async_event."element" { cq, qp, srq, wq, port_num }
        struct _ibv_device_ops { _dummy1, _dummy2 }
        struct ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        struct ibv_context_ops {
            _compat_query_device, _compat_query_port, _compat_alloc_pd, _compat_dealloc_pd,
            _compat_reg_mr, _compat_rereg_mr, _compat_dereg_mr, alloc_mw, bind_mw, dealloc_mw,
            _compat_create_cq, poll_cq, req_notify_cq, _compat_cq_event, _compat_resize_cq,
            _compat_destroy_cq, _compat_create_srq, _compat_modify_srq, _compat_query_srq,
            _compat_destroy_srq, post_srq_recv, _compat_create_qp, _compat_query_qp,
            _compat_modify_qp, _compat_destroy_qp, post_send, post_recv, _compat_create_ah,
            _compat_destroy_ah, _compat_attach_mcast, _compat_detach_mcast, _compat_async_event
        }
        struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        struct ibv_values_ex { comp_mask, raw_clock }
        struct verbs_context {
            query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
            create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
            destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
            dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table,
            create_rwq_ind_table, destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex,
            r#priv, query_device_ex, ibv_destroy_flow, ABI_placeholder2, ibv_create_flow,
            ABI_placeholder1, open_qp, create_qp_ex, get_srq_num, create_srq_ex, open_xrcd,
            close_xrcd, _ABI_placeholder3, sz, context
        }
        struct ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm(imm_data, invalidated_rkey), qp_num,
            src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits
        }
        struct ibv_comp_channel { context, fd, refcnt }
        struct ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed
        }
        struct ibv_poll_cq_attr { comp_mask }
        struct ibv_wc_tm_info { tag, r#priv }
        struct ibv_cq_ex {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
            async_events_completed, comp_mask, status, wr_id, start_poll, next_poll, end_poll,
            read_opcode, read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp,
            read_wc_flags, read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan,
            read_flow_tag, read_tm_info, read_completion_wallclock_ns
        }
        struct ibv_cq_init_attr_ex {
            cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain
        }
        struct ibv_moderate_cq { cq_count, cq_period }
        struct ibv_modify_cq_attr { attr_mask, moderate }
        struct ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd,
            max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom,
            max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw,
            max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach,
            max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr,
            max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt
        }
        struct ibv_query_device_ex_input { comp_mask }
        struct ibv_odp_caps { general_caps, per_transport_caps }
        struct ibv_odp_caps_per_transport = ibv_odp_caps."per_transport_caps" {
            rc_odp_caps, uc_odp_caps, ud_odp_caps
        }
        struct ibv_tso_caps { max_tso, supported_qpts }
        struct ibv_rss_caps {
            supported_qpts, max_rwq_indirection_tables, max_rwq_indirection_table_size,
            rx_hash_fields_mask, rx_hash_function
        }
        struct ibv_packet_pacing_caps { qp_rate_limit_min, qp_rate_limit_max, supported_qpts }
        struct ibv_tm_caps { max_rndv_hdr_size, max_num_tags, flags, max_ops, max_sge }
        struct ibv_cq_moderation_caps { max_cq_count, max_cq_period }
        struct ibv_pci_atomic_caps { fetch_add, swap, compare_swap }
        struct ibv_device_attr_ex {
            orig_attr, comp_mask, odp_caps, completion_timestamp_mask, hca_core_clock,
            device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
            raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
            phys_port_cnt_ex
        }
        struct ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
            qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
            init_type_reply, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2
        }
        struct ibv_flow_attr { comp_mask, r#type, size, priority, num_of_specs, port, flags }
        struct ibv_flow { comp_mask, context, handle }
        struct ibv_flow_action { context }
        struct ibv_counters_init_attr { comp_mask }
        struct ibv_counters { context }
        struct ibv_counter_attach_attr { counter_desc, index, comp_mask }
        struct ibv_pd { context, handle }
        struct ibv_td_init_attr { comp_mask }
        struct ibv_td { context }
        struct ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context }
        struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        struct ibv_mw { context, pd, rkey, handle, r#type }
        struct ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        struct ibv_mw_bind { wr_id, send_flags, bind_info }
        struct ibv_alloc_dm_attr { length, log_align_req, comp_mask }
        struct ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle }
        struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        struct ibv_rx_hash_conf {
            rx_hash_function, rx_hash_key_len, rx_hash_key, rx_hash_fields_mask
        }
        struct ibv_qp_init_attr_ex {
            qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
            create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags
        }
        struct ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type }
        struct ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit
        }
        struct ibv_qp_rate_limit_attr { rate_limit, max_burst_sz, typical_pkt_sz, comp_mask }
        struct ibv_ece { vendor_id, options, comp_mask }
        struct ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex,
            cond, events_completed
        }
        struct ibv_qp_ex {
            qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
            wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
            wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
            wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
            wr_atomic_write
        }
        struct ibv_srq_attr { max_wr, max_sge, srq_limit }
        struct ibv_srq_init_attr { srq_context, attr }
        struct ibv_tm_cap { max_num_tags, max_ops }
        struct ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap }
        struct ibv_srq { context, srq_context, pd, handle, mutex, cond, events_completed }
        struct ibv_xrcd_init_attr { comp_mask, fd, oflags }
        struct ibv_xrcd { context }
        struct ibv_sge { addr, length, lkey }
        struct ibv_data_buf { addr, length }
        struct ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm(imm_data, invalidate_rkey), wr,
            qp_type, op(bind_mw, tso)
        }
        union ibv_send_wr_wr = ibv_send_wr."wr" { rdma, atomic, ud }
        struct ibv_send_wr_rdma = ibv_send_wr."wr.rdma" { remote_addr, rkey }
        struct ibv_send_wr_atomic = ibv_send_wr."wr.atomic" { remote_addr, compare_add, swap, rkey }
        struct ibv_send_wr_ud = ibv_send_wr."wr.ud" { ah, remote_qpn, remote_qkey }
        union ibv_send_wr_qp_type = ibv_send_wr."qp_type" { xrc }
        struct ibv_send_wr_xrc = ibv_send_wr."qp_type.xrc" { remote_srqn }
        struct ibv_send_wr_bind_mw = ibv_send_wr."bind_mw" { mw, rkey, bind_info }
        struct ibv_send_wr_tso = ibv_send_wr."tso" { hdr, hdr_sz, mss }
        struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
        struct ibv_ops_wr { wr_id, next, opcode, flags, tm }
        struct ibv_ops_wr_tm = ibv_ops_wr."tm" { unexpected_cnt, handle, add }
        struct ibv_ops_wr_tm_add = ibv_ops_wr."tm.add" { recv_wr_id, sg_list, num_sge, tag, mask }
        struct ibv_wq_init_attr {
            wq_context, wq_type, max_wr, max_sge, pd, cq, comp_mask, create_flags
        }
        struct ibv_wq_attr { attr_mask, wq_state, curr_wq_state, flags, flags_mask }
        struct ibv_wq {
            context, wq_context, pd, cq, wq_num, handle, state, wq_type, post_recv, mutex, cond,
            events_completed, comp_mask
        }
        struct ibv_rwq_ind_table { context, ind_tbl_handle, ind_tbl_num, comp_mask }
        struct ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask }
    };
    compile(&checks);
    all_types_are_in(&checks);
}

/// Types that the header declares and does not define, or that are opaque here.
const NOT_IN_C: [&str; 3] = [
    "_compat_ibv_port_attr",
    "ibv_flow_action_esp_attr",
    "verbs_ex_private",
];

/// Anonymous unions of C, checked as fields of their structs.
const ANONYMOUS: [&str; 3] = ["ibv_wc_imm", "ibv_send_wr_imm", "ibv_send_wr_op"];

fn all_types_are_in(checks: &str) {
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for line in source.lines() {
            let line = line
                .strip_prefix("pub struct ")
                .or(line.strip_prefix("pub union "));
            let Some(name) = line.and_then(|line| line.split_whitespace().next()) else {
                continue;
            };
            let known = NOT_IN_C.contains(&name) || ANONYMOUS.contains(&name);
            assert!(
                known || checks.contains(&format!("\"{name}\"")),
                "{name} is not checked"
            );
        }
    }
}

#[test]
#[cfg_attr(
    not(has_verbs_h_44),
    ignore = "libibverbs-dev 44 is not installed (ci/setup installs it)"
)]
fn constants_have_their_values_in_c() {
    let check = |(name, value)| format!("_Static_assert({name} == {value}, \"{name}\");\n");
    compile(&constants().map(check).collect::<String>());
}

#[test]
fn the_old_port_attributes_are_the_first_of_the_new() {
    macro_rules! same {
        ($($field:ident)*) => {
            let _ = |old: _compat_ibv_port_attr| {
                let _compat_ibv_port_attr { $($field: _),* } = old;
            };
            $(assert_eq!(
                offset_of!(_compat_ibv_port_attr, $field),
                offset_of!(ibv_port_attr, $field)
            );)*
        };
    }
    same! {
        state max_mtu active_mtu gid_tbl_len port_cap_flags max_msg_sz bad_pkey_cntr qkey_viol_cntr
        pkey_tbl_len lid sm_lid lmc max_vl_num sm_sl subnet_timeout init_type_reply active_width
        active_speed phys_state link_layer flags
    }
    assert_eq!(
        size_of::<_compat_ibv_port_attr>(),
        offset_of!(ibv_port_attr, port_cap_flags2)
    );
}
