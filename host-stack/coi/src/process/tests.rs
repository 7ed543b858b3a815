//! A process without a card: what its listeners bring, in whatever order they are run.

use std::{path::Path, thread};

use snaprig_offload_wire::coi::RunResult;
use snaprig_scif::{client::SOCKET, host::HostNode};

use super::*;
use crate::ops::{Foreign, Order};

/// Long enough to copy that another thread comes between.
const VALUE_BYTES: usize = 32 << 20;

fn process(rig: &Path) -> Process {
    let endpoint = || Endpoint::open(rig).expect("the node is there");
    let links = Links {
        control: Arc::new(endpoint()),
        dma: Arc::new(endpoint()),
        command: Line::new(endpoint()),
        notice: Line::new(endpoint()),
        pipelines: BTreeMap::new(),
    };
    let engine = Engine {
        rig: rig.to_owned(),
        node: 1,
    };
    let place = Place {
        engine,
        pid: 1,
        port: 1,
        path: String::new(),
    };
    let options = ProcessOptions::default();
    Process(Inner::new(place, links, options, Vec::new(), endpoint()))
}

/// References that a run function took end with their process, even if its result and its end come at
/// once: what the machine hears first, the graph hears first.
#[test]
fn the_graph_hears_what_the_machine_says_in_its_order() {
    let rig = tempfile::tempdir().expect("a directory");
    let _node = HostNode::start(rig.path().join(SOCKET)).expect("a node");
    let process = process(rig.path());
    let inner = &process.0;
    ops::add_process(inner);
    let body = ops::buffer_without_card(&process);
    inner.handle(Input::AddPipeline(0));
    let mut room = vec![0; VALUE_BYTES];
    // SAFETY: it outlives the operation, which has ended with the process below.
    let returned = unsafe { Foreign::new(room.as_mut_ptr(), room.len()) };
    let request = RunFunction {
        function: 0,
        buffers: Vec::new(),
        misc: Vec::new(),
        return_len: 0,
        tell_start: false,
    };
    let order = Order::default();
    ops::submit_run(&process, 0, 1, request, Vec::new(), returned, order).expect("it is queued");
    inner.handle(Input::Sent(0, 0));
    let result = RunResult::Returned {
        value: vec![1; VALUE_BYTES],
        added: vec![(body.id, 1)],
        told: 1,
    };
    thread::scope(|scope| {
        scope.spawn(|| inner.handle(Input::Result(0, 0, result)));
        while process.status().finished == 0 {
            thread::yield_now();
        }
        inner.handle(Input::RigGone);
    });
    assert!(ops::is_idle(body.id), "a process that is gone holds it");
}
