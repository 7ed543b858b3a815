use super::*;

const HOST: Conn = 1;
const SNAPIFY: Conn = 2;
const PID: Pid = 7;

fn program(proxy: bool) -> Program {
    Program {
        name: "sink".into(),
        bytes: 1,
        window: 0,
        argv: vec![],
        env: vec![],
        libraries: vec![],
        proxy,
    }
}

fn outputs(machine: &mut Machine, inputs: impl IntoIterator<Item = Input>) -> Vec<Output> {
    inputs.into_iter().for_each(|input| machine.handle(input));
    std::iter::from_fn(|| machine.poll_output()).collect()
}

fn hello(pipe: Pipe, why: Purpose) -> Input {
    Input::Hello(pipe, Hello { pid: PID, why })
}

fn create(proxy: bool) -> [Input; 2] {
    [
        Input::Host(HOST, ToDaemon::Create(program(proxy))),
        Input::Spawned(HOST, Ok((PID, "/sink".into()))),
    ]
}

/// A machine with one process that runs.
fn running(proxy: bool) -> Machine {
    let mut machine = Machine::default();
    let started = hello(10, Purpose::Started { port: 5 });
    let told = outputs(&mut machine, create(proxy).into_iter().chain([started]));
    let created = FromDaemon::Created {
        pid: PID,
        port: 5,
        path: "/sink".into(),
    };
    assert!(told.contains(&Output::Tell(HOST, created)));
    machine
}

const SNAPIFY_CONNECTS: Input = Input::Host(SNAPIFY, ToDaemon::Snapify);

fn restore(proxy: bool) -> Input {
    let restore = Request::Restore {
        snapshot: "/s".into(),
        number: 0,
        local_store: vec![],
        from: snaprig_wire::scif::HOST,
        binaries: vec![],
        proxy,
    };
    Input::Request(SNAPIFY, restore)
}

fn flushed(pipe: Pipe) -> [Output; 2] {
    [Output::Say(pipe, Reply::Flushed), Output::Drop(pipe)]
}

#[test]
fn a_flush_is_answered_when_the_owner_has_written_what_came_before() {
    let mut machine = running(true);
    let told = outputs(&mut machine, [hello(11, Purpose::Flush)]);
    assert_eq!(told, [Output::Drain(11, PID)]);
    let told = outputs(&mut machine, [Input::Drained(11)]);
    assert_eq!(told, [Output::Tell(HOST, FromDaemon::Flush(11))]);
    // Another one's answer is none.
    let wrong = Input::Host(HOST, ToDaemon::Flushed(12));
    assert_eq!(outputs(&mut machine, [wrong]), []);
    let right = Input::Host(HOST, ToDaemon::Flushed(11));
    assert_eq!(outputs(&mut machine, [right.clone()]), flushed(11));
    assert_eq!(outputs(&mut machine, [right]), []);
}

#[test]
fn without_a_proxy_there_is_nothing_to_flush() {
    let mut machine = running(false);
    let told = outputs(&mut machine, [hello(11, Purpose::Flush)]);
    assert_eq!(told, flushed(11));
}

#[test]
fn a_flush_of_a_process_that_is_gone_ends() {
    let mut machine = running(true);
    outputs(&mut machine, [hello(11, Purpose::Flush)]);
    let gone = [Input::PipeGone(11), Input::Drained(11)];
    assert_eq!(outputs(&mut machine, gone), []);
    outputs(&mut machine, [hello(12, Purpose::Flush)]);
    outputs(&mut machine, [Input::HostGone(HOST)]);
    let told = outputs(&mut machine, [Input::Drained(12)]);
    assert_eq!(told, [Output::Drop(12)]);
}

#[test]
fn a_program_that_ends_at_once_is_examined_before_it_is_cleaned_up() {
    let mut machine = Machine::default();
    outputs(&mut machine, create(false));
    let exit = Exit::Code(127);
    let told = outputs(&mut machine, [Input::Exited(PID, exit)]);
    assert_eq!(told, [Output::Examine(PID, exit)]);
    let why = failure(80, "liba.so is missing");
    let told = outputs(&mut machine, [Input::Examined(PID, why)]);
    let failed = FromDaemon::Failed {
        errno: 80,
        why: "liba.so is missing".into(),
    };
    let expected = [Output::Tell(HOST, failed), Output::CleanUp(PID)];
    assert_eq!(told, expected);
}

#[test]
fn the_end_is_told_when_nothing_is_left_of_the_process() {
    let mut machine = running(true);
    let exit = Exit::Signal(11);
    let told = outputs(&mut machine, [Input::Exited(PID, exit)]);
    assert_eq!(told, [Output::CleanUp(PID)]);
    let told = outputs(&mut machine, [Input::CleanedUp(PID)]);
    assert_eq!(told, [Output::Tell(HOST, FromDaemon::Exited(exit))]);
}

#[test]
fn what_a_restored_process_writes_goes_to_whoever_adopts_it() {
    for proxy in [true, false] {
        let mut machine = Machine::default();
        outputs(&mut machine, [SNAPIFY_CONNECTS, restore(proxy)]);
        let inputs = [
            Input::Restored(SNAPIFY, Ok(PID)),
            hello(11, Purpose::Restarted { port: 6 }),
        ];
        let told = outputs(&mut machine, inputs);
        let restored = Reply::Restored { pid: PID, port: 6 };
        assert_eq!(told.last(), Some(&Output::Answer(SNAPIFY, restored)));
        let adopt = Input::Host(HOST, ToDaemon::Adopt { pid: PID });
        let told = outputs(&mut machine, [adopt]);
        let mut expected = vec![Output::Tell(HOST, FromDaemon::Adopted)];
        expected.extend(proxy.then_some(Output::Proxy(HOST, PID)));
        assert_eq!(told, expected);
    }
}

#[test]
fn a_restore_waits_for_the_end_of_a_process_whose_host_is_gone() {
    let mut machine = running(true);
    let told = outputs(&mut machine, [Input::HostGone(HOST)]);
    assert_eq!(told, [Output::Kill(PID)]);
    let told = outputs(&mut machine, [SNAPIFY_CONNECTS, restore(true)]);
    assert_eq!(told, []);
    let told = outputs(&mut machine, [Input::Exited(PID, Exit::Signal(9))]);
    assert_eq!(told, [Output::CleanUp(PID)]);
    let told = outputs(&mut machine, [Input::CleanedUp(PID)]);
    assert!(matches!(told[..], [Output::Restore(SNAPIFY, _)]));
}

#[test]
fn a_restore_that_waits_is_over_when_nobody_wants_it_any_more() {
    let mut machine = Machine::default();
    let start = Input::Host(HOST, ToDaemon::Create(program(false)));
    outputs(&mut machine, [start, Input::HostGone(HOST)]);
    let wanted = [SNAPIFY_CONNECTS, restore(true), Input::HostGone(SNAPIFY)];
    assert_eq!(outputs(&mut machine, wanted), []);
    let failed = Input::Spawned(HOST, Err(failure(12, "no memory")));
    let told = outputs(&mut machine, [failed]);
    let restores = |told: &Output| matches!(told, Output::Restore(..));
    assert!(!told.iter().any(restores), "{told:?}");
}

/// What asked for the pause hangs up last: after the process, and what owned it.
#[test]
fn a_process_that_ended_while_it_was_paused_is_buried() {
    let mut machine = running(true);
    let pause = Input::Request(SNAPIFY, Request::Pause { pid: PID });
    let exit = Exit::Signal(9);
    let inputs = [
        SNAPIFY_CONNECTS,
        pause,
        hello(11, Purpose::Signalled),
        Input::Exited(PID, exit),
        Input::CleanedUp(PID),
    ];
    outputs(&mut machine, inputs);
    let told = outputs(&mut machine, [Input::HostGone(SNAPIFY)]);
    let exited = Output::Tell(HOST, FromDaemon::Exited(exit));
    assert_eq!(told, [Output::Drop(11), exited]);
}

#[test]
fn a_process_that_was_asked_to_end_is_told_to_be_elsewhere() {
    let mut machine = running(true);
    let ask = |request| Input::Request(SNAPIFY, request);
    let inputs = [
        SNAPIFY_CONNECTS,
        ask(Request::Pause { pid: PID }),
        hello(11, Purpose::Signalled),
        Input::Reply(11, Reply::Agreed),
        ask(Request::End { pid: PID }),
        Input::Exited(PID, Exit::Code(0)),
        Input::PipeGone(11),
    ];
    outputs(&mut machine, inputs);
    let told = outputs(&mut machine, [Input::CleanedUp(PID)]);
    let elsewhere = Output::Tell(HOST, FromDaemon::SwappedOut);
    assert!(told.contains(&elsewhere), "{told:?}");
}
