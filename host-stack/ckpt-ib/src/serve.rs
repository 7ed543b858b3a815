//! What came in lent receives finds the program's.

use crate::{
    Below, Completion, Process,
    completions::SUCCESS,
    cookie::{Cookie, Queue},
    process::{Came, Whose},
    receives::{Arrived, Receives},
};

/// A completion has come from below: it is put by, or is of what was lent. Receives may be served then ([`serve`]).
pub fn settle<S, R>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    cq: u32,
    (came, completion): (Came, Completion),
) {
    match process.completed(came) {
        Whose::Program(wr_id) => {
            if let Some(queue) = process.cq(cq) {
                queue.put_by(Completion {
                    wr_id,
                    ..completion
                });
            }
        }
        Whose::Lent => take_lent(process, below, cq, came.cookie, completion),
        Whose::Nobody => {}
    }
}

/// A receive that was lent has completed: what came in it waits for one of the program's.
pub fn take_lent<S, R>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    cq: u32,
    cookie: Cookie,
    completion: Completion,
) {
    let data = below.lent(cookie, &completion);
    if completion.status == SUCCESS
        && let Some(receives) = process.receives(cookie.queue)
    {
        receives.arrive(Arrived {
            completion,
            cq,
            data,
        });
    }
}

/// Serves receives of the program that wait with what came in lent ones, and posts those that need not wait any more.
pub fn serve<S, R: Default>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    queue: Queue,
) -> Result<(), String> {
    while let Some((arrived, wr_id, request)) = process
        .receives(queue)
        .and_then(|receives| receives.serve())
    {
        below.fill(&request, &arrived.data);
        if let Some(cq) = process.cq(arrived.cq) {
            cq.put_by(Completion {
                wr_id,
                ..arrived.completion
            });
        }
    }
    let Some(receives) = process.receives(queue) else {
        return Ok(());
    };
    while let Some((number, request)) = receives.release() {
        if !below.receive(request, cookie(queue, number))? {
            return no_room(receives, number);
        }
    }
    Ok(())
}

/// Posts the program's receives that no message has taken into another queue below than the one that they were in. Those for
/// which it has no room wait.
pub fn post_again<S, R: Default>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    queue: Queue,
) -> Result<(), String> {
    let Some(receives) = process.receives(queue) else {
        return Ok(());
    };
    receives.forget_room();
    let mut left = None;
    for (number, request) in receives.outstanding() {
        if !below.receive(request, cookie(queue, number))? {
            left = Some(number);
            break;
        }
    }
    left.map_or(Ok(()), |number| no_room(receives, number))
}

fn cookie(queue: Queue, number: u64) -> Cookie {
    Cookie {
        queue,
        own: false,
        number,
    }
}

fn no_room<R: Default>(receives: &mut Receives<R>, number: u64) -> Result<(), String> {
    match receives.no_room(number) {
        true => Ok(()),
        false => Err("a queue without any receive takes none".into()),
    }
}
