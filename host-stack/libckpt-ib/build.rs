//! Gives the library its name, and the names that programs find in it: those of libibverbs, without a version, which ld.so(8)
//! takes for any.

use snaprig_versioned_build::Library;

/// Functions of libibverbs that take or give objects.
const INTERPOSED: [&str; 55] = [
    "_ibv_query_gid_ex",
    "_ibv_query_gid_table",
    "ibv_ack_async_event",
    "ibv_ack_cq_events",
    "ibv_alloc_pd",
    "ibv_attach_mcast",
    "ibv_close_device",
    "ibv_create_ah",
    "ibv_create_ah_from_wc",
    "ibv_create_comp_channel",
    "ibv_create_cq",
    "ibv_create_qp",
    "ibv_create_srq",
    "ibv_dealloc_pd",
    "ibv_dereg_mr",
    "ibv_destroy_ah",
    "ibv_destroy_comp_channel",
    "ibv_destroy_cq",
    "ibv_destroy_qp",
    "ibv_destroy_srq",
    "ibv_detach_mcast",
    "ibv_free_device_list",
    "ibv_get_async_event",
    "ibv_get_cq_event",
    "ibv_get_device_guid",
    "ibv_get_device_index",
    "ibv_get_device_list",
    "ibv_get_device_name",
    "ibv_get_pkey_index",
    "ibv_import_device",
    "ibv_import_dm",
    "ibv_import_mr",
    "ibv_import_pd",
    "ibv_init_ah_from_wc",
    "ibv_modify_qp",
    "ibv_modify_srq",
    "ibv_open_device",
    "ibv_qp_to_qp_ex",
    "ibv_query_device",
    "ibv_query_ece",
    "ibv_query_gid",
    "ibv_query_gid_type",
    "ibv_query_pkey",
    "ibv_query_port",
    "ibv_query_qp",
    "ibv_query_qp_data_in_order",
    "ibv_query_srq",
    "ibv_reg_dmabuf_mr",
    "ibv_reg_mr",
    "ibv_reg_mr_iova",
    "ibv_reg_mr_iova2",
    "ibv_rereg_mr",
    "ibv_resize_cq",
    "ibv_resolve_eth_l2_from_gid",
    "ibv_set_ece",
];

/// Functions of libc by which programs reach the connection manager's device, and by which they load libraries.
const OF_LIBC: [&str; 9] = [
    "close", "dlopen", "dlsym", "dlvsym", "fstat", "fstat64", "open", "open64", "write",
];

fn main() {
    let library = Library::new("libsnaprig_ckpt_ib.so.0");
    let mut script = String::from("{ global: ");
    for name in INTERPOSED.into_iter().chain(OF_LIBC) {
        library.link(format_args!("--defsym={name}=snaprig_ckpt_ib_{name}"));
        script += &format!("{name}; ");
    }
    script += "};\n";
    let script = library.write("interposed.map", &script);
    library.link(format_args!("--version-script={}", script.display()));
    library.write("interposed.rs", &table());
    library.stays_loaded();
}

/// A table of those of libibverbs, for those who ask for them by name.
fn table() -> String {
    let (mut declared, mut listed) = (String::new(), String::new());
    for name in INTERPOSED {
        declared += &format!("fn snaprig_ckpt_ib_{name}(); ");
        listed += &format!("(c\"{name}\", snaprig_ckpt_ib_{name}), ");
    }
    format!(
        "unsafe extern \"C\" {{ {declared} }}\n\
         static OURS: [(&CStr, unsafe extern \"C\" fn()); {}] = [{listed}];\n",
        INTERPOSED.len()
    )
}
