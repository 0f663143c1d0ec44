//! One end of a simulated TCP connection: what a kernel does for it.
//!
//! In:    segments from the other end, bytes from the process, and the time. Out: segments, bytes, and how it ended.
//! Never: delivers a byte twice, out of order or after a gap. Whatever is not acknowledged is sent again after 0.2 s, and
//!        then after pauses that double each time: a connection that a cut has hit is silent for long after healing.
//!
//! Left out: congestion control beyond slow start, fast retransmit, selective acknowledgements, TIME_WAIT.

use std::collections::{BTreeMap, VecDeque};
use std::io::ErrorKind;

/// Bytes that a kernel keeps for the other end, and for its process.
const BUFFER: usize = 64 << 10;
/// The first pause before bytes are sent again, and the longest one.
const RESEND_US: u64 = 200_000;
const RESEND_US_MAX: u64 = 120_000_000;
/// The first pause before a call is repeated, and how often it is.
const CALL_AGAIN_US: u64 = 1_000_000;
const CALLS_MAX: u32 = 6;
/// How often bytes are sent again before the connection is given up; and if its process has closed it.
const RESENDS_MAX: u32 = 15;
const ORPHAN_RESENDS_MAX: u32 = 8;
/// How often a silent end is asked whether it is there, where no other limit is set.
const PROBES_MAX: u32 = 9;

/// What travels between two ends.
#[derive(Debug, Clone)]
pub(super) enum Segment {
    /// A call.
    Syn,
    /// Somebody listens there.
    SynAck,
    /// Bytes from this place of the stream on; `fin`: and then the end of it.
    Data { at: u64, bytes: Vec<u8>, fin: bool },
    /// Everything before `upto` has come, and there is room for more up to `window_end`.
    Ack { upto: u64, window_end: u64 },
    /// Are you there, and have you room?
    Probe,
    /// There is no such connection.
    Rst,
}

impl Segment {
    /// Its bytes on the wire, headers included.
    pub(super) fn len(&self) -> u64 {
        40 + if let Self::Data { bytes, .. } = self { bytes.len() as u64 } else { 0 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has called, and nobody has answered.
    Calling,
    /// It was called, and the caller does not know yet that it answered.
    Called,
    Open,
    Broken(ErrorKind),
}

/// What goes out.
#[derive(Debug)]
struct Outgoing {
    /// The place of the first byte that is kept.
    base: u64,
    kept: VecDeque<u8>,
    /// The process has nothing more to say. In the stream that counts as one byte.
    fin: bool,
    /// Everything before this place is acknowledged, and before that sent.
    acked: u64,
    next: u64,
    /// The other end has room up to this place.
    window_end: u64,
    /// So much may be on its way at once.
    flight_max: u64,
    /// Since when nothing was acknowledged, though there is something to be sent.
    since_us: Option<u64>,
    /// When something was last sent, and how often it was since the last acknowledgement.
    sent_us: u64,
    resends: u32,
}

impl Outgoing {
    fn end(&self) -> u64 {
        self.base + self.kept.len() as u64
    }

    fn is_done(&self) -> bool {
        self.acked >= self.end() + u64::from(self.fin)
    }

    /// Sends what may be sent now.
    fn send(&mut self, now_us: u64, segment_len: u64, out: &mut Vec<Segment>) {
        let end = self.end();
        if self.next < end || (self.fin && self.next == end) {
            self.since_us.get_or_insert(now_us);
        }
        loop {
            let limit = end.min(self.window_end).min(self.acked + self.flight_max);
            let len = limit.saturating_sub(self.next).min(segment_len);
            let fin = self.fin && self.next + len == end;
            if len == 0 && !fin {
                return;
            }
            let start = (self.next - self.base) as usize;
            let bytes = self.kept.range(start..start + len as usize).copied().collect();
            out.push(Segment::Data { at: self.next, bytes, fin });
            self.next += len + u64::from(fin);
            self.sent_us = now_us;
            if fin {
                return;
            }
        }
    }

    fn acknowledged(&mut self, upto: u64, now_us: u64) -> bool {
        if upto <= self.acked {
            return false;
        }
        let end = self.end();
        self.flight_max = (self.flight_max + upto - self.acked).min(BUFFER as u64);
        self.kept.drain(..(upto.min(end) - self.base) as usize);
        self.base = upto.min(end);
        (self.acked, self.next) = (upto, self.next.max(upto));
        self.resends = 0;
        self.since_us = (!self.is_done()).then_some(now_us);
        self.sent_us = now_us;
        true
    }
}

/// What comes in.
#[derive(Debug, Default)]
struct Incoming {
    /// What the process has not read yet.
    unread: VecDeque<u8>,
    /// The next byte that is missing, and what came from beyond it.
    next: u64,
    ahead: BTreeMap<u64, (Vec<u8>, bool)>,
    /// The other end has nothing more to say.
    ended: bool,
    /// The room that the other end knows of.
    told_window_end: u64,
}

impl Incoming {
    fn window_end(&self) -> u64 {
        self.next + BUFFER.saturating_sub(self.unread.len()) as u64
    }

    fn take(&mut self, at: u64, bytes: Vec<u8>, fin: bool) {
        self.ahead.entry(at).or_insert((bytes, fin));
        while let Some((at, (bytes, fin))) = self.ahead.pop_first() {
            if at > self.next {
                self.ahead.insert(at, (bytes, fin));
                return;
            }
            let end = at + bytes.len() as u64;
            if end >= self.next && !self.ended {
                self.unread.extend(&bytes[(self.next - at) as usize..]);
                self.next = end + u64::from(fin);
                self.ended = fin;
            }
        }
    }

    fn ack(&mut self) -> Segment {
        self.told_window_end = self.window_end();
        Segment::Ack { upto: self.next, window_end: self.told_window_end }
    }
}

/// One end.
#[derive(Debug)]
pub(super) struct Socket {
    state: State,
    outgoing: Outgoing,
    incoming: Incoming,
    /// The process has let go of it.
    closed: bool,
    /// The longest segment of this way through the network.
    segment_len: u64,
    /// As the process has set them: see `sockets.rs`.
    unacknowledged_us_max: Option<u64>,
    alive_every_us: Option<u64>,
    /// When the other end was last heard, and asked whether it is there, and how often in vain.
    heard_us: u64,
    probed_us: u64,
    probes: u32,
}

impl Socket {
    fn new(state: State, now_us: u64, segment_len: u64) -> Self {
        let outgoing = Outgoing {
            base: 0,
            kept: VecDeque::new(),
            fin: false,
            acked: 0,
            next: 0,
            window_end: BUFFER as u64,
            flight_max: 10 * segment_len,
            since_us: None,
            sent_us: now_us,
            resends: 0,
        };
        let incoming = Incoming { told_window_end: BUFFER as u64, ..Incoming::default() };
        Self {
            state,
            outgoing,
            incoming,
            closed: false,
            segment_len,
            unacknowledged_us_max: None,
            alive_every_us: None,
            heard_us: now_us,
            probed_us: now_us,
            probes: 0,
        }
    }

    /// The end that calls.
    pub(super) fn call(now_us: u64, segment_len: u64, out: &mut Vec<Segment>) -> Self {
        out.push(Segment::Syn);
        Self::new(State::Calling, now_us, segment_len)
    }

    /// The end that was called.
    pub(super) fn called(now_us: u64, segment_len: u64, out: &mut Vec<Segment>) -> Self {
        out.push(Segment::SynAck);
        Self::new(State::Called, now_us, segment_len)
    }

    pub(super) fn tune(&mut self, unacknowledged_us_max: Option<u64>, alive_every_us: Option<u64>) {
        (self.unacknowledged_us_max, self.alive_every_us) = (unacknowledged_us_max, alive_every_us);
    }

    /// Whether the call was answered; an error if it was refused, or nobody answers.
    pub(super) fn connected(&self) -> Option<Result<(), ErrorKind>> {
        match self.state {
            State::Calling => None,
            State::Broken(error) => Some(Err(error)),
            State::Called | State::Open => Some(Ok(())),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether the kernel need not know of it any more.
    pub(super) fn is_over(&self) -> bool {
        self.closed && (matches!(self.state, State::Broken(_)) || self.outgoing.is_done())
    }

    /// Takes bytes of the process; `None`: there is no room for any.
    pub(super) fn write(
        &mut self,
        bytes: &[u8],
        now_us: u64,
        out: &mut Vec<Segment>,
    ) -> Option<Result<usize, ErrorKind>> {
        if let State::Broken(error) = self.state {
            return Some(Err(error));
        }
        if self.outgoing.fin {
            return Some(Err(ErrorKind::BrokenPipe));
        }
        let len = bytes.len().min(BUFFER - self.outgoing.kept.len().min(BUFFER));
        if len == 0 && !bytes.is_empty() {
            return None;
        }
        self.outgoing.kept.extend(&bytes[..len]);
        self.outgoing.send(now_us, self.segment_len, out);
        Some(Ok(len))
    }

    /// Gives the process at most `max` bytes: none at the end of the stream; `None`: nothing has come.
    pub(super) fn read(&mut self, max: usize, out: &mut Vec<Segment>) -> Option<Result<Vec<u8>, ErrorKind>> {
        if !self.incoming.unread.is_empty() {
            let len = max.min(self.incoming.unread.len());
            let bytes = self.incoming.unread.drain(..len).collect();
            // The other end may be waiting for room.
            if self.incoming.window_end() >= self.incoming.told_window_end + BUFFER as u64 / 2 {
                out.push(self.incoming.ack());
            }
            return Some(Ok(bytes));
        }
        match self.state {
            _ if self.incoming.ended => Some(Ok(Vec::new())),
            State::Broken(error) => Some(Err(error)),
            _ => None,
        }
    }

    /// The process has nothing more to say.
    pub(super) fn finish(&mut self, now_us: u64, out: &mut Vec<Segment>) {
        self.outgoing.fin = true;
        if self.state != State::Calling {
            self.outgoing.send(now_us, self.segment_len, out);
        }
    }

    /// The process lets go of it. Whoever has not read everything resets the connection; otherwise what was written is sent.
    pub(super) fn close(&mut self, now_us: u64, out: &mut Vec<Segment>) {
        self.closed = true;
        match self.state {
            State::Broken(_) => {}
            State::Calling => self.state = State::Broken(ErrorKind::ConnectionAborted),
            _ if !self.incoming.unread.is_empty() => self.reset(out),
            _ => self.finish(now_us, out),
        }
    }

    fn reset(&mut self, out: &mut Vec<Segment>) {
        out.push(Segment::Rst);
        self.state = State::Broken(ErrorKind::ConnectionReset);
    }

    /// A segment has come.
    pub(super) fn take(&mut self, segment: Segment, now_us: u64, out: &mut Vec<Segment>) {
        if matches!(self.state, State::Broken(_)) {
            return;
        }
        (self.heard_us, self.probes) = (now_us, 0);
        match (self.state, &segment) {
            (State::Calling, Segment::SynAck) => {
                self.state = State::Open;
                out.push(self.incoming.ack());
                return self.outgoing.send(now_us, self.segment_len, out);
            }
            (State::Calling, Segment::Rst) => {
                self.state = State::Broken(ErrorKind::ConnectionRefused);
                return;
            }
            (State::Calling, _) => return,
            (State::Called, Segment::Ack { .. } | Segment::Data { .. } | Segment::Probe) => {
                self.state = State::Open;
            }
            _ => {}
        }
        match segment {
            Segment::Syn => out.push(Segment::SynAck),
            Segment::SynAck | Segment::Probe => out.push(self.incoming.ack()),
            Segment::Rst => self.state = State::Broken(ErrorKind::ConnectionReset),
            Segment::Ack { upto, window_end } => {
                self.outgoing.acknowledged(upto, now_us);
                self.outgoing.window_end = self.outgoing.window_end.max(window_end);
                self.outgoing.send(now_us, self.segment_len, out);
            }
            Segment::Data { at, bytes, fin } => {
                // Nobody is there to read it.
                if self.closed && at + bytes.len() as u64 > self.incoming.next {
                    return self.reset(out);
                }
                self.incoming.take(at, bytes, fin);
                out.push(self.incoming.ack());
            }
        }
    }

    /// When the kernel has to look after this end by itself.
    pub(super) fn due_us(&self) -> Option<u64> {
        let outgoing = &self.outgoing;
        match (self.state, outgoing.since_us) {
            (State::Broken(_) | State::Called, _) => None,
            (State::Calling, _) => Some(outgoing.sent_us + (CALL_AGAIN_US << outgoing.resends)),
            (State::Open, Some(since_us)) => {
                let pause_us = (RESEND_US << outgoing.resends.min(20)).min(RESEND_US_MAX);
                let limit_us = self.unacknowledged_us_max.map_or(u64::MAX, |max_us| since_us + max_us);
                Some((outgoing.sent_us + pause_us).min(limit_us))
            }
            (State::Open, None) => {
                let every_us = self.alive_every_us.filter(|_| !self.closed)?;
                Some(self.heard_us.max(self.probed_us) + every_us)
            }
        }
    }

    /// That moment has come.
    pub(super) fn look_after(&mut self, now_us: u64, out: &mut Vec<Segment>) {
        match (self.state, self.outgoing.since_us) {
            (State::Calling, _) => self.call_again(now_us, out),
            (State::Open, Some(since_us)) => self.send_again(since_us, now_us, out),
            (State::Open, None) => self.probe(now_us, out),
            _ => {}
        }
    }

    fn call_again(&mut self, now_us: u64, out: &mut Vec<Segment>) {
        if self.outgoing.resends >= CALLS_MAX {
            self.state = State::Broken(ErrorKind::TimedOut);
            return;
        }
        out.push(Segment::Syn);
        self.outgoing.resends += 1;
        self.outgoing.sent_us = now_us;
    }

    fn send_again(&mut self, since_us: u64, now_us: u64, out: &mut Vec<Segment>) {
        let resends_max = if self.closed { ORPHAN_RESENDS_MAX } else { RESENDS_MAX };
        let too_long = self.unacknowledged_us_max.is_some_and(|max_us| now_us - since_us >= max_us);
        if too_long || self.outgoing.resends >= resends_max {
            self.state = State::Broken(ErrorKind::TimedOut);
            return;
        }
        self.outgoing.resends += 1;
        if self.outgoing.next > self.outgoing.acked {
            // One segment, until it is acknowledged; then the others behind it.
            self.outgoing.next = self.outgoing.acked;
            self.outgoing.flight_max = self.segment_len;
            self.outgoing.send(now_us, self.segment_len, out);
        } else {
            // The other end has no room: has it by now?
            out.push(Segment::Probe);
        }
        self.outgoing.sent_us = now_us;
    }

    fn probe(&mut self, now_us: u64, out: &mut Vec<Segment>) {
        let gone = match self.unacknowledged_us_max {
            Some(max_us) => self.probes > 0 && now_us - self.heard_us >= max_us,
            None => self.probes >= PROBES_MAX,
        };
        if gone {
            out.push(Segment::Rst);
            self.state = State::Broken(ErrorKind::TimedOut);
            return;
        }
        out.push(Segment::Probe);
        self.probes += 1;
        self.probed_us = now_us;
    }

    /// Something between the two ends breaks the connection.
    pub(super) fn cut_off(&mut self) {
        self.state = State::Broken(ErrorKind::ConnectionReset);
    }
}
