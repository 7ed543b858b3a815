//! What the library exports, and which of it a program of today never calls. The truth is
//! [`MAP`]; the macros give parts of it to a macro that makes functions.

/// The version script of the library.
pub const MAP: &str = include_str!("../libibverbs.map");

/// Calls `$make! { name name ... }` with the functions of `IBVERBS_PRIVATE_34`: what rdma-core's
/// providers call. The version has one symbol more, [`PRIVATE_BOOL`].
#[macro_export]
macro_rules! private_functions {
    ($make:ident) => {
        $make! {
            __ioctl_final_num_attrs
            __verbs_log
            _verbs_init_and_alloc_context
            execute_ioctl
            ibv_cmd_advise_mr
            ibv_cmd_alloc_dm
            ibv_cmd_alloc_mw
            ibv_cmd_alloc_pd
            ibv_cmd_attach_mcast
            ibv_cmd_close_xrcd
            ibv_cmd_create_ah
            ibv_cmd_create_counters
            ibv_cmd_create_cq
            ibv_cmd_create_cq_ex
            ibv_cmd_create_flow
            ibv_cmd_create_flow_action_esp
            ibv_cmd_create_qp
            ibv_cmd_create_qp_ex
            ibv_cmd_create_qp_ex2
            ibv_cmd_create_rwq_ind_table
            ibv_cmd_create_srq
            ibv_cmd_create_srq_ex
            ibv_cmd_create_wq
            ibv_cmd_dealloc_mw
            ibv_cmd_dealloc_pd
            ibv_cmd_dereg_mr
            ibv_cmd_destroy_ah
            ibv_cmd_destroy_counters
            ibv_cmd_destroy_cq
            ibv_cmd_destroy_flow
            ibv_cmd_destroy_flow_action
            ibv_cmd_destroy_qp
            ibv_cmd_destroy_rwq_ind_table
            ibv_cmd_destroy_srq
            ibv_cmd_destroy_wq
            ibv_cmd_detach_mcast
            ibv_cmd_free_dm
            ibv_cmd_get_context
            ibv_cmd_modify_cq
            ibv_cmd_modify_flow_action_esp
            ibv_cmd_modify_qp
            ibv_cmd_modify_qp_ex
            ibv_cmd_modify_srq
            ibv_cmd_modify_wq
            ibv_cmd_open_qp
            ibv_cmd_open_xrcd
            ibv_cmd_poll_cq
            ibv_cmd_post_recv
            ibv_cmd_post_send
            ibv_cmd_post_srq_recv
            ibv_cmd_query_context
            ibv_cmd_query_device_any
            ibv_cmd_query_mr
            ibv_cmd_query_port
            ibv_cmd_query_qp
            ibv_cmd_query_srq
            ibv_cmd_read_counters
            ibv_cmd_reg_dm_mr
            ibv_cmd_reg_dmabuf_mr
            ibv_cmd_reg_mr
            ibv_cmd_req_notify_cq
            ibv_cmd_rereg_mr
            ibv_cmd_resize_cq
            ibv_query_gid_type
            ibv_read_ibdev_sysfs_file
            verbs_init_cq
            verbs_open_device
            verbs_register_driver_34
            verbs_set_ops
            verbs_uninit_context
        }
    };
}

/// The one private symbol that is data: a C `bool`.
pub const PRIVATE_BOOL: &str = "verbs_allow_disassociate_destroy";

/// Calls `$make! { name name ... }` with the functions that are exported twice: as
/// `name@@IBVERBS_1.1`, and as `name@IBVERBS_1.0` for programs linked against libibverbs 1.0, with
/// the structs of that time. (`ibv_register_driver@IBVERBS_1.1` is old too, and has no successor.)
#[macro_export]
macro_rules! old_functions {
    ($make:ident) => {
        $make! {
            ibv_ack_async_event
            ibv_ack_cq_events
            ibv_alloc_pd
            ibv_attach_mcast
            ibv_close_device
            ibv_create_ah
            ibv_create_cq
            ibv_create_qp
            ibv_create_srq
            ibv_dealloc_pd
            ibv_dereg_mr
            ibv_destroy_ah
            ibv_destroy_cq
            ibv_destroy_qp
            ibv_destroy_srq
            ibv_detach_mcast
            ibv_free_device_list
            ibv_get_async_event
            ibv_get_cq_event
            ibv_get_device_guid
            ibv_get_device_list
            ibv_get_device_name
            ibv_modify_qp
            ibv_modify_srq
            ibv_open_device
            ibv_query_device
            ibv_query_gid
            ibv_query_pkey
            ibv_query_port
            ibv_query_qp
            ibv_query_srq
            ibv_reg_mr
            ibv_resize_cq
        }
    };
}
