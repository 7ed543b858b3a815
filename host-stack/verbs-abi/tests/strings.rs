//! Names and conversions against `strings.golden`, made by a C program that asked Debian's library
//! for the same ranges: a line for each value whose answer is another than that of the value before.

use std::{
    ffi::{CStr, c_int},
    fmt::{Display, Write},
    ops::Range,
};

use snaprig_verbs_abi::*;

const VALUES: Range<c_int> = -3..300;

fn answers<A: Display>(all: &mut String, name: &str, range: Range<c_int>, f: impl Fn(c_int) -> A) {
    let mut last = None;
    for value in range {
        let answer = f(value).to_string();
        if last.as_ref() != Some(&answer) {
            writeln!(all, "{name} {value} {answer}").unwrap();
            last = Some(answer);
        }
    }
}

#[test]
fn every_answer_is_that_of_the_library() {
    let text = |name: &'static CStr| name.to_str().unwrap();
    let mut all = String::new();
    answers(&mut all, "ibv_node_type_str", VALUES, |v| {
        text(ibv_node_type_str(v))
    });
    answers(&mut all, "ibv_port_state_str", VALUES, |v| {
        text(ibv_port_state_str(v as u32))
    });
    answers(&mut all, "ibv_event_type_str", VALUES, |v| {
        text(ibv_event_type_str(v as u32))
    });
    answers(&mut all, "ibv_wc_status_str", VALUES, |v| {
        text(ibv_wc_status_str(v as u32))
    });
    answers(&mut all, "ibv_rate_to_mult", VALUES, |v| {
        ibv_rate_to_mult(v as u32)
    });
    answers(&mut all, "ibv_rate_to_mbps", VALUES, |v| {
        ibv_rate_to_mbps(v as u32)
    });
    answers(&mut all, "mult_to_ibv_rate", -3..3000, mult_to_ibv_rate);
    answers(
        &mut all,
        "mbps_to_ibv_rate",
        -3..3_000_000,
        mbps_to_ibv_rate,
    );
    assert_eq!(all, include_str!("strings.golden"));
}

#[test]
fn no_value_is_too_absurd() {
    for value in [c_int::MIN, c_int::MAX] {
        assert_eq!(ibv_node_type_str(value), c"unknown");
        assert_eq!(ibv_port_state_str(value as u32), c"unknown");
        assert_eq!(ibv_event_type_str(value as u32), c"unknown");
        assert_eq!(ibv_wc_status_str(value as u32), c"unknown");
        assert_eq!(ibv_rate_to_mult(value as u32), -1);
        assert_eq!(ibv_rate_to_mbps(value as u32), -1);
        assert_eq!(mult_to_ibv_rate(value), IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(value), IBV_RATE_MAX);
    }
}
