//! The structures of the connection manager's commands, judged by a C compiler with the kernel's header.

use std::{
    io::Write,
    mem::offset_of,
    process::{Command, Stdio},
};

use snaprig_verbs_cm::abi::*;

/// Panics with the compiler's words if it refuses.
fn compile(program: &str) {
    let mut cc = Command::new("cc")
        .args(["-fsyntax-only", "-Wall", "-Werror", "-x", "c", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    let mut stdin = cc.stdin.take().expect("a pipe");
    stdin.write_all(program.as_bytes()).expect("it reads");
    drop(stdin);
    let output = cc.wait_with_output().expect("a child");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Says in C that a structure is as large as the one here, and that fields are where those here are.
macro_rules! checks {
    ($($type:ident = $c:literal { $($field:ident = $c_field:literal),* $(,)? })*) => {{
        let mut checks = String::new();
        $(
            checks += &format!(
                "_Static_assert(sizeof({}) == {}, \"{}\");\n", $c, size_of::<$type>(), stringify!($type)
            );
            $(
                checks += &format!(
                    "_Static_assert(offsetof({}, {}) == {}, \"{}.{}\");\n",
                    $c, $c_field, offset_of!($type, $field), stringify!($type), $c_field,
                );
            )*
        )*
        checks
    }};
}

#[test]
#[cfg_attr(
    not(has_file = "/usr/include/rdma/rdma_user_cm.h"),
    ignore = "no rdma/rdma_user_cm.h (linux-libc-dev, ci/setup installs it)"
)]
fn structures_are_those_of_the_header() {
    let checks = checks! {
        Header = "struct rdma_ucm_cmd_hdr" { command = "cmd", request_bytes = "in", answer_bytes = "out" }
        CreateId = "struct rdma_ucm_create_id" {
            uid = "uid", response = "response", port_space = "ps", qp_type = "qp_type",
        }
        IdAnswer = "struct rdma_ucm_create_id_resp" { id = "id" }
        OfId = "struct rdma_ucm_destroy_id" { response = "response", id = "id" }
        OfId = "struct rdma_ucm_migrate_id" { response = "response", id = "id" }
        EventsReportedAnswer = "struct rdma_ucm_destroy_id_resp" { events_reported = "events_reported" }
        EventsReportedAnswer = "struct rdma_ucm_migrate_resp" { events_reported = "events_reported" }
        BindIp = "struct rdma_ucm_bind_ip" { response = "response", address = "addr", id = "id" }
        Bind = "struct rdma_ucm_bind" { id = "id", address_bytes = "addr_size", address = "addr" }
        ResolveIp = "struct rdma_ucm_resolve_ip" { source = "src_addr", target = "dst_addr", id = "id" }
        ResolveAddr = "struct rdma_ucm_resolve_addr" {
            id = "id", source_bytes = "src_size", source = "src_addr", target = "dst_addr",
        }
        ResolveRoute = "struct rdma_ucm_resolve_route" { id = "id", timeout_ms = "timeout_ms" }
        Query = "struct rdma_ucm_query" { response = "response", id = "id", option = "option" }
        QueryRouteAnswer = "struct rdma_ucm_query_route_resp" {
            node_guid = "node_guid", path = "ib_route", source = "src_addr", target = "dst_addr",
            num_paths = "num_paths", port_num = "port_num", device_index = "ibdev_index",
        }
        QueryAddrAnswer = "struct rdma_ucm_query_addr_resp" {
            node_guid = "node_guid", port_num = "port_num", pkey = "pkey", source_bytes = "src_size",
            target_bytes = "dst_size", source = "src_addr", target = "dst_addr", device_index = "ibdev_index",
        }
        PathRecord = "struct ib_user_path_rec" {
            dgid = "dgid", sgid = "sgid", dlid = "dlid", slid = "slid", flow_label = "flow_label",
            reversible = "reversible", mtu = "mtu", pkey = "pkey", numb_path = "numb_path", rate = "rate",
            packet_life_time = "packet_life_time", preference = "preference",
        }
        ConnParam = "struct rdma_ucm_conn_param" {
            qp_num = "qp_num", qkey = "qkey", private_data = "private_data",
            private_data_bytes = "private_data_len", srq = "srq", responder_resources = "responder_resources",
            initiator_depth = "initiator_depth", flow_control = "flow_control", retry_count = "retry_count",
            rnr_retry_count = "rnr_retry_count", valid = "valid",
        }
        UdParam = "struct rdma_ucm_ud_param" {
            qp_num = "qp_num", qkey = "qkey", ah_attr = "ah_attr", private_data = "private_data",
            private_data_bytes = "private_data_len",
        }
        Ece = "struct rdma_ucm_ece" { vendor_id = "vendor_id", attr_mod = "attr_mod" }
        Connect = "struct rdma_ucm_connect" { param = "conn_param", id = "id", ece = "ece" }
        Listen = "struct rdma_ucm_listen" { id = "id", backlog = "backlog" }
        Accept = "struct rdma_ucm_accept" { uid = "uid", param = "conn_param", id = "id", ece = "ece" }
        Reject = "struct rdma_ucm_reject" {
            id = "id", private_data_bytes = "private_data_len", reason = "reason", private_data = "private_data",
        }
        Disconnect = "struct rdma_ucm_disconnect" { id = "id" }
        InitQpAttr = "struct rdma_ucm_init_qp_attr" { response = "response", id = "id", qp_state = "qp_state" }
        Notify = "struct rdma_ucm_notify" { id = "id", event = "event" }
        JoinIpMcast = "struct rdma_ucm_join_ip_mcast" {
            response = "response", uid = "uid", address = "addr", id = "id",
        }
        JoinMcast = "struct rdma_ucm_join_mcast" {
            response = "response", uid = "uid", id = "id", join_flags = "join_flags", address = "addr",
        }
        GetEvent = "struct rdma_ucm_get_event" { response = "response" }
        EventAnswer = "struct rdma_ucm_event_resp" {
            uid = "uid", id = "id", event = "event", status = "status", param = "param", ece = "ece",
        }
        SetOption = "struct rdma_ucm_set_option" {
            value = "optval", id = "id", level = "level", name = "optname", value_bytes = "optlen",
        }
        AhAttr = "struct ib_uverbs_ah_attr" { dlid = "dlid", is_global = "is_global", port_num = "port_num" }
        QpAttr = "struct ib_uverbs_qp_attr" {
            qp_attr_mask = "qp_attr_mask", ah_attr = "ah_attr", alt_ah_attr = "alt_ah_attr",
            max_send_wr = "max_send_wr", pkey_index = "pkey_index", alt_timeout = "alt_timeout",
        }
    };
    compile(&format!(
        "#include <stddef.h>\n#include <netinet/in.h>\n#include <rdma/rdma_user_cm.h>\n{checks}"
    ));
}
