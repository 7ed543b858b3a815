//! The graph by itself: its rules one by one.

mod scene;

use super::*;

const P: ProcessId = 1;
const Q: ProcessId = 2;
const B: BufferId = 7;
const BYTES: u64 = 16;

fn graph() -> Graph {
    let mut graph = Graph::default();
    graph.add_buffer(B, BYTES, false, false, None);
    graph
}

fn run_with(process: ProcessId, pipeline: PipelineId, mode: Mode, add_ref: bool) -> Work {
    let uses = vec![Use {
        buffer: B,
        range: 0..BYTES,
        mode,
        add_ref,
    }];
    Work::Run {
        process,
        pipeline,
        uses,
    }
}

fn run(process: ProcessId, pipeline: PipelineId, mode: Mode) -> Work {
    run_with(process, pipeline, mode, false)
}

fn read() -> Work {
    let all = 0..BYTES;
    Work::Read {
        buffer: B,
        ranges: vec![all],
    }
}

fn write(to: Option<ProcessId>) -> Work {
    let all = 0..BYTES;
    Work::Write {
        buffer: B,
        ranges: vec![all.clone()],
        all,
        to,
        whole: false,
    }
}

fn submit(graph: &mut Graph, work: Work, after: &[OpId]) -> OpId {
    graph.submit(work, after).expect("it makes sense")
}

/// What has been asked for since, movements of bytes done at once.
fn outputs(graph: &mut Graph) -> Vec<Output> {
    let mut all = Vec::new();
    while let Some(output) = graph.poll_output() {
        if let Output::Move(id, _) = &output {
            graph.handle(Input::Moved(*id, Ok(())));
        }
        all.push(output);
    }
    all
}

fn started(graph: &mut Graph) -> Vec<OpId> {
    let runs = outputs(graph)
        .into_iter()
        .filter_map(|output| match output {
            Output::Run(id) => Some(id),
            _ => None,
        });
    runs.collect()
}

fn finish(graph: &mut Graph, id: OpId) {
    graph.handle(Input::Returned(id, Ok(vec![])));
}

fn died() -> CoiError {
    CoiError::CardLost { node: 1 }
}

#[test]
fn readers_run_beside_each_other_and_a_writer_waits_for_them() {
    let mut graph = graph();
    let a = submit(&mut graph, run(P, 1, Mode::Read), &[]);
    let b = submit(&mut graph, run(Q, 2, Mode::Read), &[]);
    let c = submit(&mut graph, run(P, 3, Mode::Write), &[]);
    assert_eq!(started(&mut graph), [a, b]);
    finish(&mut graph, a);
    assert!(started(&mut graph).is_empty());
    finish(&mut graph, b);
    assert_eq!(started(&mut graph), [c]);
}

#[test]
fn a_pipeline_runs_one_after_the_other_even_if_the_first_waits() {
    let mut graph = graph();
    let event = submit(&mut graph, Work::UserEvent, &[]);
    let a = submit(&mut graph, run(P, 1, Mode::Read), &[event]);
    let b = submit(&mut graph, run(P, 1, Mode::Read), &[]);
    assert!(started(&mut graph).is_empty());
    graph.signal(event).expect("a user event");
    assert_eq!(started(&mut graph), [a]);
    finish(&mut graph, a);
    assert_eq!(started(&mut graph), [b]);
}

#[test]
fn a_transfer_does_not_wait_for_run_functions_and_they_wait_for_it() {
    let mut graph = graph();
    let a = submit(&mut graph, run(P, 1, Mode::Write), &[]);
    assert_eq!(started(&mut graph), [a]);
    let b = submit(&mut graph, read(), &[]);
    let c = submit(&mut graph, run(Q, 2, Mode::Read), &[]);
    let Some(Output::Move(moving, _)) = graph.poll_output() else {
        panic!("the read begins");
    };
    assert_eq!(moving, b);
    finish(&mut graph, a);
    assert!(!outputs(&mut graph).contains(&Output::Run(c)));
    graph.handle(Input::Moved(b, Ok(())));
    assert_eq!(started(&mut graph), [c]);
}

#[test]
fn an_operation_whose_dependency_fails_is_not_started_and_fails_alike() {
    let mut graph = graph();
    let a = submit(&mut graph, run(P, 1, Mode::Write), &[]);
    let b = submit(&mut graph, read(), &[a]);
    let c = submit(&mut graph, run(Q, 2, Mode::Read), &[b]);
    assert_eq!(started(&mut graph), [a]);
    graph.handle(Input::Returned(a, Err(died())));
    let all = [a, b, c].map(|id| Output::Completed(id, Err(died())));
    assert_eq!(outputs(&mut graph), all);
    assert_eq!(graph.result(c), Err(died()));
    let d = submit(&mut graph, read(), &[c]);
    assert_eq!(outputs(&mut graph), [Output::Completed(d, Err(died()))]);
}

#[test]
fn an_unregistered_event_is_canceled_and_what_depends_on_it_goes_on() {
    let mut graph = graph();
    let event = submit(&mut graph, Work::UserEvent, &[]);
    let a = submit(&mut graph, run(P, 1, Mode::Read), &[event]);
    graph.unregister(event).expect("a user event");
    assert_eq!(started(&mut graph), [a]);
    assert_eq!(graph.result(event), Err(CoiError::Canceled));
    assert!(graph.signal(a).is_err());
}

#[test]
fn references_hold_up_run_functions_and_no_transfers() {
    let mut graph = graph();
    let a = submit(&mut graph, run_with(P, 1, Mode::Read, true), &[]);
    assert_eq!(started(&mut graph), [a]);
    // It has given back more than it was seen to take: the news of that is still on its way.
    let (process, buffer) = (P, B);
    graph.handle(Input::Released {
        process,
        buffer,
        count: 2,
    });
    graph.handle(Input::Returned(a, Ok(vec![(B, 2)])));
    let b = submit(&mut graph, run(P, 1, Mode::Read), &[]);
    let c = submit(&mut graph, read(), &[]);
    let done = outputs(&mut graph);
    assert!(done.contains(&Output::Completed(c, Ok(()))) && !done.contains(&Output::Run(b)));
    graph.handle(Input::Released {
        process,
        buffer,
        count: 1,
    });
    assert_eq!(started(&mut graph), [b]);
}

#[test]
fn a_buffer_outlives_the_references_of_its_processes_and_not_those_of_the_host() {
    let mut graph = graph();
    let (process, buffer) = (P, B);
    graph.handle(Input::Counted {
        process,
        buffer,
        count: 2,
    });
    let a = submit(&mut graph, run_with(P, 1, Mode::Read, false), &[]);
    assert!(started(&mut graph).is_empty());
    graph.handle(Input::Counted {
        process,
        buffer,
        count: -2,
    });
    assert_eq!(started(&mut graph), [a]);
    graph.handle(Input::Returned(a, Ok(vec![(B, 1)])));
    graph.handle(Input::Counted {
        process,
        buffer,
        count: 1,
    });
    let last = submit(&mut graph, Work::Destroy { buffer }, &[]);
    assert!(!outputs(&mut graph).contains(&Output::Completed(last, Ok(()))));
    graph.handle(Input::Released {
        process,
        buffer,
        count: 1,
    });
    assert!(outputs(&mut graph).contains(&Output::Completed(last, Ok(()))));
}

#[test]
fn a_process_that_is_gone_fails_what_is_meant_for_it_and_holds_nothing() {
    let mut graph = graph();
    let a = submit(&mut graph, run_with(P, 1, Mode::Read, true), &[]);
    assert_eq!(started(&mut graph), [a]);
    finish(&mut graph, a);
    let b = submit(&mut graph, run(P, 1, Mode::Read), &[]);
    let c = submit(&mut graph, run(Q, 2, Mode::Read), &[]);
    graph.handle(Input::Gone(P, died()));
    let done = outputs(&mut graph);
    assert!(done.contains(&Output::Completed(b, Err(died()))) && done.contains(&Output::Run(c)));
}

#[test]
fn what_is_mapped_is_not_for_others_until_it_is_unmapped() {
    let mut graph = graph();
    let (buffer, range) = (B, 0..BYTES);
    let map = Work::Map {
        buffer,
        range,
        mode: Mode::Write,
    };
    let map = submit(&mut graph, map, &[]);
    for work in [read(), run(P, 1, Mode::Read), Work::Destroy { buffer }] {
        let refused = graph.submit(work, &[]).map_err(|error| error.code());
        assert_eq!(refused, Err(15));
    }
    submit(&mut graph, Work::Unmap { map }, &[]);
    let twice = graph.submit(Work::Unmap { map }, &[]);
    assert_eq!(twice.map_err(|error| error.code()), Err(14));
    let a = submit(&mut graph, run(P, 1, Mode::Read), &[]);
    assert_eq!(started(&mut graph), [a]);
}

#[test]
fn a_map_that_waits_keeps_nothing_valid_on_the_host() {
    let mut graph = Graph::default();
    graph.add_buffer(B, BYTES, true, false, None);
    let (buffer, range) = (B, 0..BYTES);
    let map = Work::Map {
        buffer,
        range: range.clone(),
        mode: Mode::Read,
    };
    let a = submit(&mut graph, run(P, 1, Mode::Write), &[]);
    let b = submit(&mut graph, run(P, 1, Mode::Write), &[]);
    let map = submit(&mut graph, map, &[b]);
    assert_eq!(started(&mut graph), [a]);
    finish(&mut graph, a);
    assert_eq!(started(&mut graph), [b]);
    finish(&mut graph, b);
    let brought = Step::FromProcess {
        process: P,
        buffer,
        range: range.clone(),
        staged: false,
    };
    assert!(outputs(&mut graph).contains(&Output::Move(map, vec![brought])));
    // Who looks at it sees it as it was, whatever a process does meanwhile.
    let c = submit(&mut graph, run(P, 1, Mode::Write), &[]);
    assert_eq!(started(&mut graph), [c]);
    assert_eq!(graph.valid(B, &range, Place::Host), (true, true));
}

#[test]
fn a_write_goes_to_the_host_if_that_is_valid_and_moves_nothing() {
    let mut graph = graph();
    let a = submit(&mut graph, run(Q, 1, Mode::Read), &[]);
    assert_eq!(started(&mut graph), [a]);
    finish(&mut graph, a);
    let b = submit(&mut graph, write(None), &[]);
    let put = Step::Put {
        buffer: B,
        range: 0..BYTES,
        staged: false,
    };
    assert!(outputs(&mut graph).contains(&Output::Move(b, vec![put])));
    assert_eq!(graph.valid(B, &(0..BYTES), Place::Host), (true, true));
    let there = graph.valid(B, &(0..BYTES), Place::Process(Q));
    assert_eq!(there, (false, false));
}

#[test]
fn nothing_is_moved_of_a_buffer_that_nobody_has_written_to() {
    let mut graph = Graph::default();
    graph.add_buffer(B, BYTES, false, true, None);
    let a = submit(&mut graph, run(P, 1, Mode::Write), &[]);
    assert_eq!(outputs(&mut graph), [Output::Run(a)]);
}

#[test]
fn a_pipeline_and_a_buffer_go_when_nothing_uses_them_any_more() {
    let mut graph = graph();
    let a = submit(&mut graph, run_with(P, 1, Mode::Read, true), &[]);
    let drained = submit(&mut graph, Work::Barrier { pipeline: 1 }, &[]);
    let gone = submit(&mut graph, Work::Destroy { buffer: B }, &[]);
    assert_eq!(started(&mut graph), [a]);
    finish(&mut graph, a);
    assert!(outputs(&mut graph).contains(&Output::Completed(drained, Ok(()))));
    assert!(graph.is_pending(gone));
    let (process, buffer, count) = (P, B, 1);
    graph.handle(Input::Released {
        process,
        buffer,
        count,
    });
    assert_eq!(outputs(&mut graph), [Output::Completed(gone, Ok(()))]);
}

/// Two buffers that a process has no memory for, and a run function on each.
fn crowded() -> (Graph, OpId, OpId) {
    let mut graph = graph();
    graph.add_buffer(B + 1, BYTES, false, false, None);
    for buffer in graph.buffers.values_mut() {
        buffer.absent.insert(P);
    }
    let on = |buffer, pipeline| Work::Run {
        process: P,
        pipeline,
        uses: vec![Use {
            buffer,
            range: 0..BYTES,
            mode: Mode::Read,
            add_ref: false,
        }],
    };
    let first = submit(&mut graph, on(B, 1), &[]);
    let second = submit(&mut graph, on(B + 1, 2), &[]);
    (graph, first, second)
}

fn no_room() -> CoiError {
    CoiError::NoMemory("a buffer")
}

/// What is to be moved, and what has ended.
fn next(graph: &mut Graph) -> Vec<(OpId, Option<bool>)> {
    let outputs = std::iter::from_fn(|| graph.poll_output());
    let seen = outputs.filter_map(|output| match output {
        Output::Move(id, _) => Some((id, None)),
        Output::Completed(id, result) => Some((id, Some(result.is_ok()))),
        Output::Run(_) => None,
    });
    seen.collect()
}

#[test]
fn who_finds_no_room_beside_another_waits_for_its_end() {
    let (mut graph, first, second) = crowded();
    assert_eq!(next(&mut graph), [(first, None), (second, None)]);
    graph.handle(Input::Moved(first, Ok(())));
    graph.handle(Input::NoRoom(second, no_room()));
    assert_eq!(next(&mut graph), []);
    finish(&mut graph, first);
    assert_eq!(next(&mut graph), [(first, Some(true)), (second, None)]);
    graph.handle(Input::Moved(second, Ok(())));
    finish(&mut graph, second);
    assert_eq!(next(&mut graph), [(second, Some(true))]);
}

#[test]
fn who_finds_no_room_alone_fails_and_its_buffer_is_free() {
    let (mut graph, first, second) = crowded();
    next(&mut graph);
    graph.handle(Input::Moved(first, Ok(())));
    graph.handle(Input::NoRoom(second, no_room()));
    finish(&mut graph, first);
    next(&mut graph);
    graph.handle(Input::NoRoom(second, no_room()));
    assert_eq!(next(&mut graph), [(second, Some(false))]);
    assert!(graph.idle_since(B).is_some() && graph.idle_since(B + 1).is_some());
    assert_eq!(graph.result(second), Err(no_room()));
}

#[test]
fn two_that_take_each_others_room_have_it_one_after_the_other() {
    let (mut graph, first, second) = crowded();
    next(&mut graph);
    graph.handle(Input::NoRoom(second, no_room()));
    graph.handle(Input::NoRoom(first, no_room()));
    assert_eq!(next(&mut graph), [(first, None)]);
    // The first has what it needs: perhaps there is room for the second as well.
    graph.handle(Input::Moved(first, Ok(())));
    assert_eq!(next(&mut graph), [(second, None)]);
    graph.handle(Input::NoRoom(second, no_room()));
    assert_eq!(next(&mut graph), []);
    finish(&mut graph, first);
    assert_eq!(next(&mut graph), [(first, Some(true)), (second, None)]);
}

#[test]
fn room_comes_with_references_that_are_given_back_and_not_after_the_end_of_a_process() {
    for is_gone in [false, true] {
        let (mut graph, first, second) = crowded();
        next(&mut graph);
        graph.handle(Input::Moved(first, Ok(())));
        graph.handle(Input::Returned(first, Ok(vec![(B, 1)])));
        graph.handle(Input::NoRoom(second, no_room()));
        assert_eq!(next(&mut graph), [(first, Some(true))]);
        match is_gone {
            true => graph.handle(Input::Gone(P, died())),
            false => graph.handle(Input::Released {
                process: P,
                buffer: B,
                count: 1,
            }),
        }
        let expected = is_gone.then_some(false);
        assert_eq!(next(&mut graph), [(second, expected)]);
    }
}
