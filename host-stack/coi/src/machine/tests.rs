//! The machine by itself.

use super::*;

const NOW: Duration = Duration::ZERO;

fn function() -> RunFunction {
    RunFunction {
        function: 1,
        buffers: vec![],
        misc: vec![],
        return_len: 1,
        tell_start: true,
    }
}

/// A process with one run function (ticket 1) in flight, paused and settled.
fn paused() -> Machine {
    let mut machine = Machine::new(1, 7);
    for input in [
        Input::AddPipeline(0),
        Input::Run(1, 0, function()),
        Input::Sent(0, 0),
        Input::Pause(2),
        Input::Answer(0, Answer::Done),
        Input::Settle(3, vec![0], 0),
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(told(&mut machine), [(2, true), (3, true)]);
    machine
}

/// Who has been told since, and whether it ended well.
fn told(machine: &mut Machine) -> Vec<(Ticket, bool)> {
    std::iter::from_fn(|| machine.poll_output())
        .filter_map(|output| match output {
            Output::Done(ticket, result) => Some((ticket, result.is_ok())),
            _ => None,
        })
        .collect()
}

fn result(value: u8) -> RunResult {
    RunResult::Returned {
        value: vec![value],
        added: vec![],
        told: 0,
    }
}

#[test]
fn who_passes_without_a_ticket_is_waited_for_and_nobody_passes_a_pause() {
    for region in [Region::Lifecycle, Region::Rdma] {
        let mut machine = Machine::new(1, 7);
        assert!(machine.pass(region) && machine.leave(region));
        assert!(machine.pass(region));
        machine.handle(Input::Pause(1), NOW);
        assert!(!machine.pass(region));
        machine.handle(Input::Enter(2, region), NOW);
        assert!(machine.poll_output().is_none(), "somebody is inside");
        assert!(!machine.leave(region));
        machine.handle(Input::Leave(region), NOW);
        let marker = machine.poll_output();
        assert_eq!(marker, Some(Output::Command(0, Command::Shutdown)));
        machine.handle(Input::Answer(0, Answer::Done), NOW);
        assert_eq!(told(&mut machine), [(1, true)]);
        machine.handle(Input::Resume, NOW);
        assert_eq!(told(&mut machine), [(2, true)]);
    }
}

#[test]
fn a_process_is_wanted_by_calls_transfers_and_run_functions_wherever_it_is() {
    let mut machine = Machine::new(1, 7);
    machine.handle(Input::AddPipeline(0), NOW);
    assert!(!machine.is_wanted());
    assert!(machine.pass(Region::Rdma) && machine.is_wanted());
    assert!(machine.leave(Region::Rdma) && !machine.is_wanted());
    machine.handle(Input::Command(1, Command::Windows), NOW);
    assert!(machine.is_wanted());
    machine.handle(Input::Answer(0, Answer::Done), NOW);
    assert!(!machine.is_wanted());
    // Nor does a pause want it, or a process that is out; who calls that does.
    machine.handle(Input::Pause(2), NOW);
    assert!(!machine.is_wanted());
    machine.handle(Input::Answer(0, Answer::Done), NOW);
    assert!(!machine.is_wanted());
    machine.handle(Input::Run(3, 0, function()), NOW);
    assert!(machine.is_wanted());
    assert!(paused().is_wanted());
}

#[test]
fn nobody_passes_a_process_that_is_gone_or_those_who_wait() {
    let mut machine = paused();
    machine.handle(Input::Enter(4, Region::Rdma), NOW);
    assert!(!machine.pass(Region::Rdma));
    machine.handle(Input::Resume, NOW);
    assert!(machine.pass(Region::Rdma));
    machine.handle(Input::RigGone, NOW);
    assert!(!machine.pass(Region::Rdma));
}

#[test]
fn a_result_that_comes_before_resume_is_confirmed_waits_for_it() {
    let mut machine = paused();
    machine.handle(Input::Result(0, 0, result(1)), NOW);
    assert_eq!(told(&mut machine), []);
    machine.handle(Input::Resume, NOW);
    assert_eq!(told(&mut machine), [(1, true)]);
}

#[test]
fn a_hold_that_is_set_while_paused_holds_from_resume_on_until_the_next_one() {
    let mut machine = paused();
    for input in [
        Input::HoldAt(4, 0),
        Input::Run(5, 0, function()),
        Input::Resume,
        Input::Result(0, 0, result(1)),
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(told(&mut machine), [(4, true), (1, true)]);
    assert_eq!(machine.counts(), (1, 1));
    for input in [
        Input::Pause(6),
        Input::Answer(0, Answer::Done),
        Input::Resume,
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(machine.counts(), (2, 1));
}

#[test]
fn it_is_void_if_a_successor_comes_instead() {
    let mut machine = paused();
    machine.handle(Input::Result(0, 0, result(1)), NOW);
    machine.handle(Input::Lost(0, Link::Control), NOW);
    machine.handle(Input::Moved { node: 2, pid: 7 }, NOW);
    machine.handle(Input::Resume, NOW);
    assert_eq!(told(&mut machine), []);
    machine.handle(Input::Result(1, 0, result(1)), NOW);
    assert_eq!(told(&mut machine), [(1, true)]);
}

#[test]
fn a_pipeline_has_one_result_at_a_time_or_makes_no_sense() {
    let mut machine = paused();
    for value in [1, 2] {
        machine.handle(Input::Result(0, 0, result(value)), NOW);
    }
    machine.handle(Input::Resume, NOW);
    machine.handle(Input::End(4), NOW);
    assert_eq!(told(&mut machine), [(1, true), (4, false)]);
}

#[test]
fn a_settled_host_has_all_notices_and_keeps_early_ones_for_resume() {
    let mut machine = Machine::new(1, 7);
    for input in [
        Input::Pause(2),
        Input::Answer(0, Answer::Done),
        Input::Settle(3, vec![], 1),
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(told(&mut machine), [(2, true)]);
    machine.handle(Input::Notice(0, Notice::UserEvent(1)), NOW);
    let notice = |id| Some(Output::Notice(Notice::UserEvent(id)));
    assert_eq!(machine.poll_output(), notice(1));
    assert_eq!(told(&mut machine), [(3, true)]);
    machine.handle(Input::Notice(0, Notice::UserEvent(2)), NOW);
    assert_eq!(machine.poll_output(), None);
    machine.handle(Input::Resume, NOW);
    assert_eq!(machine.poll_output(), notice(2));
}

#[test]
fn a_run_function_begins_before_it_returns_whichever_is_heard_of_first() {
    let mut machine = Machine::new(1, 7);
    let started = Notice::Started {
        pipeline: 0,
        count: 1,
    };
    for input in [
        Input::AddPipeline(0),
        Input::Run(1, 0, function()),
        Input::Result(0, 0, result(1)),
        Input::Notice(0, started),
    ] {
        machine.handle(input, NOW);
    }
    let outputs: Vec<_> = std::iter::from_fn(|| machine.poll_output()).collect();
    assert!(matches!(
        outputs[..],
        [Output::Run(..), Output::Started(1), Output::Done(1, Ok(_))]
    ));
}

#[test]
fn a_number_is_free_again_once_its_pipeline_is_gone_and_counts_on() {
    let mut machine = Machine::new(1, 7);
    for input in [
        Input::AddPipeline(0),
        Input::AddPipeline(1),
        Input::Run(1, 0, function()),
        Input::Result(0, 0, result(1)),
        Input::RemovePipeline(0),
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(machine.free_pipeline(), Some(0));
    machine.handle(Input::AddPipeline(0), NOW);
    machine.handle(Input::Run(2, 0, function()), NOW);
    assert_eq!(
        (machine.sent(), machine.free_pipeline()),
        (vec![2, 0], Some(2))
    );
}

#[test]
fn what_was_said_after_references_were_told_of_waits_for_those_to_be_heard_of() {
    let mut machine = Machine::new(1, 7);
    let value = vec![1];
    let added = vec![(5, 1)];
    let heard = 1;
    let telling = RunResult::Returned {
        value,
        added,
        told: heard,
    };
    let (id, count) = (5, 1);
    let released = Notice::Released {
        id,
        count,
        told: heard,
    };
    let later = RunResult::Returned {
        value: vec![2],
        added: vec![],
        told: heard,
    };
    for input in [
        Input::AddPipeline(0),
        Input::AddPipeline(1),
        Input::Run(1, 0, function()),
        Input::Run(2, 1, function()),
        Input::Notice(0, released.clone()),
        Input::Result(0, 1, later),
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(told(&mut machine), []);
    machine.handle(Input::Result(0, 0, telling), NOW);
    let said: Vec<_> = std::iter::from_fn(|| machine.poll_output()).collect();
    let first = |output: &Output| matches!(output, Output::Done(1, Ok(_)));
    let at = said.iter().position(first).expect("it is told");
    let rest = &said[at + 1..];
    assert!(rest.contains(&Output::Notice(released)), "{said:?}");
    assert!(rest.iter().any(|one| matches!(one, Output::Done(2, Ok(_)))));
}

#[test]
fn results_that_wait_fail_with_everybody_else() {
    let mut machine = Machine::new(1, 7);
    let result = RunResult::Returned {
        value: vec![],
        added: vec![],
        told: 9,
    };
    for input in [
        Input::AddPipeline(0),
        Input::Run(1, 0, function()),
        Input::Result(0, 0, result),
        Input::RigGone,
    ] {
        machine.handle(input, NOW);
    }
    assert_eq!(told(&mut machine), [(1, false)]);
}
