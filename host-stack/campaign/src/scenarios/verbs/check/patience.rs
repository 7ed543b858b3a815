//! Who is not answered gives up in the time that its queue pair's attributes say (timeout and
//! retry_cnt of ibv_modify_qp(3)), counted from when something last moved.

use snaprig_hca::Status;

use super::{Ended, Outcome, Side};

/// How a run breaks it.
pub fn check(outcome: &Outcome<Ended>) -> Option<String> {
    outcome.end.each(in_time)
}

fn in_time(_: &Ended, side: &Side, _: &Side) -> Result<(), String> {
    let failed = side.first_failed();
    let Some(failed) = failed.filter(|done| done.status == Status::RetryExceeded) else {
        return Ok(());
    };
    let posted_ns = side
        .sent
        .get(failed.wr_id as usize)
        .map(|sent| sent.posted_ns);
    let since_ns = side.moved_ns.max(posted_ns.unwrap_or(0));
    let took_ns = failed.time_ns.saturating_sub(since_ns);
    let most_ns = side.gives_up_ns;
    (took_ns <= most_ns)
        .then_some(())
        .ok_or_else(|| format!("it took {took_ns} ns, not {most_ns}"))
}
