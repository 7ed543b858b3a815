//! What programs make of how their calls have ended.

use snaprig_scif::node::{Input, Op, Value};

use super::{
    calls::{Caller, Request, Thread},
    program::Act,
    run::World,
    stream,
};

impl World {
    /// A call has ended.
    pub fn told(&mut self, who: Caller, what: &Request, result: Result<Value, i32>) {
        match who {
            Caller::Connecting(talk) => self.told_connecting(talk, what, result),
            Caller::Listener(program) => self.told_listener(program, what, result),
            Caller::Side(side, _) if self.sides[side].closing => {}
            Caller::Side(side, Thread::Send) => self.told_send(side, what, result),
            Caller::Side(side, Thread::Receive) => self.told_receive(side, result),
            Caller::Side(side, Thread::Move) => self.told_move(side, what, result),
        }
    }

    fn told_connecting(&mut self, number: usize, what: &Request, result: Result<Value, i32>) {
        let Some(endpoint) = self.talking[number].endpoint else {
            return;
        };
        let talk = self.work.talks[number].clone();
        match (what, result) {
            (Request::Bind, Ok(_)) => self.connect_endpoint(number, endpoint),
            (_, Ok(_)) => {
                let connection = self.talking[number].connection;
                self.talking[number].endpoint = None;
                let side = self.side(talk.client, endpoint);
                self.sides[side].connection = Some(connection);
                self.connections.insert(connection, (number, Some(side)));
                self.begin(side, number, 0);
            }
            (_, Err(_)) => {
                let is_bound = matches!(what, Request::Connect(_));
                if !talk.insists || !is_bound || self.talking[number].left == 0 {
                    self.talking[number].endpoint = None;
                    let who = Caller::Connecting(number);
                    self.tell_node(who, 0, None, Input::Close(endpoint));
                }
                self.later(talk.client, talk.pause_ns, Act::Connect(number));
            }
        }
    }

    fn told_listener(&mut self, program: usize, what: &Request, result: Result<Value, i32>) {
        let (who, listener) = (Caller::Listener(program), self.programs[program].listener);
        let own = &self.work.listeners[program];
        match (what, result) {
            (Request::Bind, Ok(_)) => {
                let op = Op::Listen(own.backlog);
                self.call(who, listener, Request::Listen, op);
            }
            (Request::Listen, Ok(_)) => self.act(program, Act::Accept),
            (Request::Accept, Ok(value)) => {
                let pause_ns = own.pause_ns;
                self.later(program, pause_ns, Act::Accept);
                if let Value::Accepted { endpoint, .. } = value {
                    let side = self.side(program, endpoint);
                    self.step(side, Thread::Receive);
                }
            }
            _ => {}
        }
    }

    fn told_send(&mut self, side: usize, what: &Request, result: Result<Value, i32>) {
        let was_blind = self.was_blind(side);
        let party = &mut self.sides[side];
        party.tired[0] = result == Err(libc::EINTR);
        match (result, what) {
            (Ok(Value::Count(count)), Request::Send(all)) => {
                party.sent += count;
                party.part += count;
                if count == *all {
                    party.part = 0;
                    party.step[0] += 1;
                }
                self.next_step(side, Thread::Send);
            }
            (Ok(_), Request::Send(all)) => {
                party.sent += all;
                party.step[0] += 1;
                party.part = 0;
                self.next_step(side, Thread::Send);
            }
            // Nothing went, and it tries again; a blind one does not know that.
            (Err(libc::EINTR), _) if !was_blind => self.next_step(side, Thread::Send),
            (result, _) => {
                party.lost_count |= result == Err(libc::EINTR);
                self.is_over(side, Thread::Send);
            }
        }
    }

    fn was_blind(&self, side: usize) -> bool {
        let party = &self.sides[side];
        let connecting = party.role.is_some_and(|(_, role)| role == 0);
        let at = party.step[0].wrapping_sub(usize::from(connecting));
        let script = self.script(side);
        script.is_some_and(|script| script.sends.get(at).is_some_and(|send| send.blind))
    }

    fn told_receive(&mut self, side: usize, result: Result<Value, i32>) {
        self.sides[side].tired[1] = result == Err(libc::EINTR);
        match result {
            Ok(Value::Bytes(bytes)) if self.sides[side].role.is_none() => {
                self.hear_hello(side, &bytes);
            }
            Ok(Value::Bytes(bytes)) => {
                self.hear(side, &bytes);
                self.sides[side].step[1] += 1;
                self.next_step(side, Thread::Receive);
            }
            Err(libc::EINTR) => self.next_step(side, Thread::Receive),
            Err(libc::ECONNRESET) => {
                self.sides[side].drained = true;
                self.is_over(side, Thread::Receive);
            }
            _ => self.is_over(side, Thread::Receive),
        }
    }

    /// The first bytes of an accepted connection say which it is.
    fn hear_hello(&mut self, side: usize, bytes: &[u8]) {
        let party = &mut self.sides[side];
        party.hello.extend(bytes);
        party.came += bytes.len();
        let Ok(hello) = party.hello.as_slice().try_into().map(u64::from_le_bytes) else {
            return self.next_step(side, Thread::Receive);
        };
        let (connection, mark) = ((hello >> 32) as u32, hello & 0xffff_ffff);
        let Some((talk, peer)) = self
            .connections
            .get(&connection)
            .filter(|_| mark == u64::from(stream::HELLO_MARK))
        else {
            party.wrong = Some(format!("a connection begins with {hello:#x}"));
            return self.close(side);
        };
        let (talk, peer) = (*talk, *peer);
        (party.connection, party.peer) = (Some(connection), peer);
        match peer.filter(|peer| self.sides[*peer].peer.is_none()) {
            Some(peer) => self.sides[peer].peer = Some(side),
            None => self.sides[side].wrong = Some(format!("connection {connection} comes twice")),
        }
        self.begin(side, talk, 1);
        self.next_step(side, Thread::Receive);
    }

    fn hear(&mut self, side: usize, bytes: &[u8]) {
        let party = &mut self.sides[side];
        let (Some((_, role)), Some(connection)) = (party.role, party.connection) else {
            return;
        };
        let due = stream::bytes(connection, 1 - role, party.came, bytes.len());
        let all = self.work.all_bytes(party.role).unwrap_or(0);
        if party.wrong.is_none() && (due != bytes || party.came + bytes.len() > all) {
            let at = due.iter().zip(bytes).position(|(one, other)| one != other);
            let at = party.came + at.unwrap_or(bytes.len());
            party.wrong = Some(format!("byte {at} of {all} is not the one that was sent"));
        }
        party.came += bytes.len();
    }

    fn told_move(&mut self, side: usize, what: &Request, result: Result<Value, i32>) {
        let endpoint = self.sides[side].endpoint;
        match (result, what) {
            (Ok(Value::Mark(mark)), Request::Mark(jobs)) => {
                let (who, what) = (
                    Caller::Side(side, Thread::Move),
                    Request::Wait(jobs.clone()),
                );
                self.call(who, endpoint, what, Op::FenceWait(mark));
            }
            (Err(libc::ECONNRESET | libc::EBADF | libc::ENOTCONN), _) => {
                self.is_over(side, Thread::Move);
            }
            _ => {
                self.sides[side].step[2] += 1;
                self.next_step(side, Thread::Move);
            }
        }
    }

    /// A thread has ended; a side closes with the last one.
    pub fn is_over(&mut self, side: usize, thread: Thread) {
        let hasty = self.script(side).is_some_and(|script| script.hasty);
        let hasty = hasty || self.sides[side].lost_count;
        let party = &mut self.sides[side];
        party.over[thread as usize] = true;
        let [send, receive, mover] = party.over;
        let silent = party.role.is_none() && receive;
        if send && mover && (receive || hasty) || silent {
            self.close(side);
        }
    }

    /// A side closes, for good.
    pub fn close(&mut self, side: usize) {
        let party = &mut self.sides[side];
        if std::mem::replace(&mut party.closing, true) {
            return;
        }
        let (endpoint, program, role) = (party.endpoint, party.program, party.role);
        self.tell_node(
            Caller::Side(side, Thread::Send),
            0,
            None,
            Input::Close(endpoint),
        );
        if let Some((talk, 0)) = role {
            let pause_ns = self.work.talks[talk].pause_ns;
            self.later(program, pause_ns, Act::Connect(talk));
        }
    }
}
