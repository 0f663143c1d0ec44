//! The claim machine: which state follows which, and what is to be done on the way.
//!
//! In:    a state and an event. Out: the next state and the actions, from the table in `transitions.rs`.
//! Never: does anything itself: no request, no timer, no clock. `driver/` carries the actions out.

use std::fmt;

use crate::transitions::TRANSITIONS;

/// Where a claim is. Names with a request in flight end in -ing, as in the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "docs/claim-machine.md, made from `meaning`, has the words")]
pub enum State {
    New,
    Registering,
    Waiting,
    Activating,
    Active,
    Renewing,
    Releasing,
    Withdrawing,
    Aborting,
    RetryingRegister,
    RetryingActivate,
    RetryingRenew,
    RetryingRelease,
    RetryingWithdraw,
    RetryingAbort,
    Released,
    Withdrawn,
    Aborted,
    Done,
    Fail,
}

/// The requests that a claim's life is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Request {
    /// POST: make the claim.
    Register,
    /// PATCH `status=active`: is it my turn?
    Activate,
    /// PATCH `ttl=...`: the ttl starts again.
    Renew,
    /// PATCH `status=released`.
    Release,
    /// PATCH `status=withdrawn`.
    Withdraw,
    /// PATCH `status=aborted`.
    Abort,
}

/// The timers of one claim; it has at most one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// How long the claim may wait for its turn; in an ending state: how long its last request is repeated.
    Timeout,
    /// Until a request that failed is sent again.
    Retry,
    /// Until the next renewal.
    Renew,
    /// Until the claim asks again whether it is its turn.
    Activate,
}

/// What happens to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Event {
    /// It begins.
    Start,
    /// The server answered with this status. No answer at all, or none that makes sense, counts as a 5xx: what became
    /// of the request is not known.
    Response(u16),
    /// A timer has run out.
    Fired(Timer),
    /// SIGINT, SIGTERM, SIGHUP, or the main process is gone.
    Signal,
    /// The client wants to give its claim up.
    ReleaseRequested,
}

/// When a row of the table applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// Always; the claim begins.
    Start,
    /// The response has exactly this status.
    Status(u16),
    /// The server refuses: any 4xx that no other row of the state names.
    Refusal,
    /// The same in a state that retries a 404.
    RefusalExcept404,
    /// The request may be sent again: any 5xx, no response, one that no row names, 408 (too slow) and 429 (too many).
    Failure,
    /// The same, and 404: an address that is up, but does not serve claims yet.
    FailureOr404,
    /// The timer has run out.
    Fired(Timer),
    /// A signal.
    Signal,
    /// The client wants to give its claim up.
    ReleaseRequested,
}

/// What is to be done on the way into the next state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Send a request.
    Send(Request),
    /// Start a timer, or restart it.
    Start(Timer),
    /// Forget a timer.
    Cancel(Timer),
    /// Tell the client.
    Notify(Notice),
}

/// What a client is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Notice {
    /// It holds the resource.
    Acquired,
    /// Its claim has been given up, and the server knows.
    Released,
    /// It was not its turn in time.
    TimedOut,
    /// The server refuses ("terminate client"): whatever it held is lost.
    Refused,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The state before.
    pub from: State,
    /// What has to happen.
    pub on: Condition,
    /// The state after.
    pub to: State,
    /// What is done on the way.
    pub then: &'static [Action],
}

/// The row for this event in this state, if the event means anything there. A row that names a status goes before one
/// that names its class.
pub fn step(state: State, event: Event) -> Option<&'static Row> {
    let rows = || TRANSITIONS.iter().filter(|row| row.from == state);
    let exact = match event {
        Event::Response(status) => rows().find(|row| row.on == Condition::Status(status)),
        _ => None,
    };
    exact.or_else(|| rows().find(|row| row.on.matches(event)))
}

impl Condition {
    /// Whether an event meets it.
    pub fn matches(self, event: Event) -> bool {
        match (self, event) {
            (Self::Start, Event::Start)
            | (Self::Signal, Event::Signal)
            | (Self::ReleaseRequested, Event::ReleaseRequested) => true,
            (Self::Fired(timer), Event::Fired(fired)) => timer == fired,
            (Self::Status(wanted), Event::Response(status)) => wanted == status,
            (Self::Refusal, Event::Response(status)) => is_refusal(status),
            (Self::RefusalExcept404, Event::Response(status)) => is_refusal(status) && status != 404,
            (Self::Failure, Event::Response(status)) => !is_refusal(status),
            (Self::FailureOr404, Event::Response(status)) => !is_refusal(status) || status == 404,
            _ => false,
        }
    }
}

/// Whether the server will not change its mind: 408 and 429 ask for the same request again, later.
pub fn is_refusal(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 429)
}

impl State {
    /// All of them, in the order in which a claim's life goes.
    pub const ALL: [Self; 20] = [
        Self::New,
        Self::Registering,
        Self::RetryingRegister,
        Self::Waiting,
        Self::Activating,
        Self::RetryingActivate,
        Self::Active,
        Self::Renewing,
        Self::RetryingRenew,
        Self::Releasing,
        Self::RetryingRelease,
        Self::Withdrawing,
        Self::RetryingWithdraw,
        Self::Aborting,
        Self::RetryingAbort,
        Self::Released,
        Self::Withdrawn,
        Self::Aborted,
        Self::Done,
        Self::Fail,
    ];

    /// Whether nothing can follow.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Released | Self::Withdrawn | Self::Aborted | Self::Done | Self::Fail)
    }

    /// Whether the claim holds its resource, as far as the machine goes; the ttl is the driver's to watch.
    pub fn is_holding(self) -> bool {
        matches!(self, Self::Active | Self::Renewing | Self::RetryingRenew)
    }

    /// The request whose response it waits for.
    pub fn request(self) -> Option<Request> {
        match self {
            Self::Registering => Some(Request::Register),
            Self::Activating => Some(Request::Activate),
            Self::Renewing => Some(Request::Renew),
            Self::Releasing => Some(Request::Release),
            Self::Withdrawing => Some(Request::Withdraw),
            Self::Aborting => Some(Request::Abort),
            _ => None,
        }
    }

    /// The request that it waits to send again.
    pub fn retries(self) -> Option<Request> {
        match self {
            Self::RetryingRegister => Some(Request::Register),
            Self::RetryingActivate => Some(Request::Activate),
            Self::RetryingRenew => Some(Request::Renew),
            Self::RetryingRelease => Some(Request::Release),
            Self::RetryingWithdraw => Some(Request::Withdraw),
            Self::RetryingAbort => Some(Request::Abort),
            _ => None,
        }
    }

    /// What it means, for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::New => "not begun",
            Self::Registering => "the POST that makes the claim is on its way",
            Self::RetryingRegister => "the POST failed; it is repeated under the same idempotency key",
            Self::Waiting => "in the queue, about to ask for its turn",
            Self::Activating => "asks whether it is its turn; with `?wait=` the server answers when it is",
            Self::RetryingActivate => "asking failed; it is repeated",
            Self::Active => "holds the resource until the next renewal is due",
            Self::Renewing => "holds the resource, the renewal is on its way",
            Self::RetryingRenew => "the renewal failed; it is repeated while the ttl lasts",
            Self::Releasing => "says that it is released",
            Self::RetryingRelease => "saying so failed; it is repeated",
            Self::Withdrawing => "leaves the queue: its time to wait is over",
            Self::RetryingWithdraw => "leaving failed; it is repeated",
            Self::Aborting => "gives up because of a signal",
            Self::RetryingAbort => "giving up failed; it is repeated, fast",
            Self::Released => "final: given up, and the server knows",
            Self::Withdrawn => "final: left the queue",
            Self::Aborted => "final: ended by a signal, and the server knows",
            Self::Done => "final: nothing more can be done; the server's ttl does the rest",
            Self::Fail => "final: the server refused",
        }
    }
}

/// As the specification writes it.
impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::New => "new",
            Self::Waiting => "waiting",
            Self::Active => "active",
            Self::Released => "released",
            Self::Withdrawn => "withdrawn",
            Self::Aborted => "aborted",
            Self::Done => "done",
            Self::Fail => "fail",
            Self::RetryingRegister => "retrying register",
            Self::RetryingActivate => "retrying activate",
            Self::RetryingRenew => "retrying renew",
            Self::RetryingRelease => "retrying release",
            Self::RetryingWithdraw => "retrying withdraw",
            Self::RetryingAbort => "retrying abort",
            requesting => return fmt::Debug::fmt(requesting, f),
        };
        f.write_str(name)
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("-"),
            Self::Status(status) => write!(f, "response {status}"),
            Self::Refusal => f.write_str("response 4xx"),
            Self::RefusalExcept404 => f.write_str("response 4xx except 404"),
            Self::Failure => f.write_str("response 5xx, 408, 429"),
            Self::FailureOr404 => f.write_str("response 5xx, 404, 408, 429"),
            Self::Fired(timer) => write!(f, "{timer} timer"),
            Self::Signal => f.write_str("signal"),
            Self::ReleaseRequested => f.write_str("client releases"),
        }
    }
}

impl fmt::Display for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Timeout => "timeout",
            Self::Retry => "retry",
            Self::Renew => "renew",
            Self::Activate => "activate",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send(Request::Register) => f.write_str("send POST"),
            Self::Send(Request::Activate) => f.write_str("send PATCH status=active"),
            Self::Send(Request::Renew) => f.write_str("send PATCH ttl"),
            Self::Send(Request::Release) => f.write_str("send PATCH status=released"),
            Self::Send(Request::Withdraw) => f.write_str("send PATCH status=withdrawn"),
            Self::Send(Request::Abort) => f.write_str("send PATCH status=aborted"),
            Self::Start(timer) => write!(f, "start {timer} timer"),
            Self::Cancel(timer) => write!(f, "cancel {timer} timer"),
            Self::Notify(Notice::Acquired) => f.write_str("tell: acquired"),
            Self::Notify(Notice::Released) => f.write_str("tell: released"),
            Self::Notify(Notice::TimedOut) => f.write_str("tell: timed out"),
            Self::Notify(Notice::Refused) => f.write_str("tell: refused"),
        }
    }
}
