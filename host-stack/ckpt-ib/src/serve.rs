//! What came in lent receives finds the program's.

use crate::{
    Below, Completion, Process,
    completions::SUCCESS,
    cookie::{Cookie, Queue},
    process::{Came, Whose},
    receives::Arrived,
};

/// A completion has come from below: it is put by, or is of what was lent. Then, the queue that was lent to: its receives may be
/// served now.
pub fn settle<S, R>(
    process: &mut Process<S, R>,
    below: &mut impl Below<S, R>,
    cq: u32,
    (came, completion): (Came, Completion),
) -> Option<Queue> {
    match process.completed(came) {
        Whose::Program(wr_id) => {
            if let Some(queue) = process.cq(cq) {
                queue.put_by(Completion {
                    wr_id,
                    ..completion
                });
            }
            None
        }
        Whose::Lent => {
            take_lent(process, below, cq, came.cookie, completion);
            Some(came.cookie.queue)
        }
        Whose::Nobody => None,
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
pub fn serve<S, R>(
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
        let cookie = Cookie {
            queue,
            own: false,
            number,
        };
        below.receive(request, cookie)?;
    }
    Ok(())
}
