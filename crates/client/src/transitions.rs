//! The table of the claim machine, row for row that of the specification.
//!
//! In:    nothing. Out: [`TRANSITIONS`], which `step` reads, and from which docs/claim-machine.md is made.
//! Never: differs from the specification: `tests/specification.rs` has its rows a second time, and compares.
//!
//! Where the specification slips it was settled: a signal while activating leads to `Aborting` (a PATCH is sent), a 201
//! leads to `active` like the 200 of an activation, with the same actions; 408 and 429 are retried like a 5xx.

use crate::machine::{
    Action::{self, Cancel, Notify, Send, Start},
    Condition::{
        self, Failure, FailureOr404, Fired, Refusal, RefusalExcept404, ReleaseRequested, Signal, Status,
    },
    Notice::{Acquired, Refused, Released as WasReleased, TimedOut},
    Request::{Abort, Activate, Register, Release, Renew, Withdraw},
    Row,
    State::{self, *},
    Timer,
};

const fn row(from: State, on: Condition, to: State, then: &'static [Action]) -> Row {
    Row { from, on, to, then }
}

const TIMEOUT: Condition = Fired(Timer::Timeout);
const RETRY: Condition = Fired(Timer::Retry);

/// Every transition that there is. What is not here means nothing to a claim.
#[rustfmt::skip] // columns line up with the specification
pub const TRANSITIONS: &[Row] = &[
    //  from              on                     to                then
    row(New,              Condition::Start,      Registering,      &[Send(Register), Start(Timer::Timeout)]),

    row(Registering,      Status(201),           Active,           &[Start(Timer::Renew), Cancel(Timer::Timeout), Notify(Acquired)]),
    row(Registering,      Status(202),           Waiting,          &[Start(Timer::Activate)]),
    row(Registering,      RefusalExcept404,      Fail,             &[Notify(Refused)]),
    row(Registering,      FailureOr404,          RetryingRegister, &[Start(Timer::Retry)]),
    row(Registering,      TIMEOUT,               Done,             &[Notify(TimedOut)]),
    row(Registering,      Signal,                Done,             &[Cancel(Timer::Timeout)]),

    row(RetryingRegister, RETRY,                 Registering,      &[Send(Register)]),
    row(RetryingRegister, TIMEOUT,               Done,             &[Notify(TimedOut)]),
    row(RetryingRegister, Signal,                Done,             &[Cancel(Timer::Timeout)]),

    row(Waiting,          Fired(Timer::Activate), Activating,      &[Send(Activate)]),
    row(Waiting,          TIMEOUT,               Withdrawing,      &[Send(Withdraw), Cancel(Timer::Activate)]),
    row(Waiting,          Signal,                Aborting,         &[Send(Abort), Cancel(Timer::Activate)]),

    row(Activating,       Status(200),           Active,           &[Start(Timer::Renew), Cancel(Timer::Timeout), Notify(Acquired)]),
    row(Activating,       Status(409),           Waiting,          &[Start(Timer::Activate)]),
    row(Activating,       Refusal,               Fail,             &[Notify(Refused)]),
    row(Activating,       Failure,               RetryingActivate, &[Start(Timer::Retry)]),
    row(Activating,       TIMEOUT,               Withdrawing,      &[Send(Withdraw)]),
    row(Activating,       Signal,                Aborting,         &[Send(Abort)]),

    row(RetryingActivate, RETRY,                 Activating,       &[Send(Activate)]),
    row(RetryingActivate, TIMEOUT,               Withdrawing,      &[Send(Withdraw), Cancel(Timer::Retry)]),
    row(RetryingActivate, Signal,                Aborting,         &[Send(Abort), Cancel(Timer::Retry)]),

    row(Active,           Fired(Timer::Renew),   Renewing,         &[Send(Renew)]),
    row(Active,           ReleaseRequested,      Releasing,        &[Send(Release), Cancel(Timer::Renew)]),
    row(Active,           Signal,                Aborting,         &[Send(Abort), Cancel(Timer::Renew)]),

    row(Renewing,         Status(200),           Active,           &[Start(Timer::Renew)]),
    row(Renewing,         Refusal,               Fail,             &[Notify(Refused)]),
    row(Renewing,         Failure,               RetryingRenew,    &[Start(Timer::Retry)]),
    row(Renewing,         ReleaseRequested,      Releasing,        &[Send(Release)]),
    row(Renewing,         Signal,                Aborting,         &[Send(Abort)]),

    row(RetryingRenew,    RETRY,                 Renewing,         &[Send(Renew)]),
    row(RetryingRenew,    ReleaseRequested,      Releasing,        &[Send(Release), Cancel(Timer::Retry)]),
    row(RetryingRenew,    Signal,                Aborting,         &[Send(Abort), Cancel(Timer::Retry)]),

    row(Releasing,        Status(204),           Released,         &[Notify(WasReleased)]),
    row(Releasing,        Refusal,               Fail,             &[Notify(Refused)]),
    row(Releasing,        Failure,               RetryingRelease,  &[Start(Timer::Retry)]),
    row(Releasing,        TIMEOUT,               Done,             &[]),
    row(Releasing,        Signal,                Done,             &[]),

    row(RetryingRelease,  RETRY,                 Releasing,        &[Send(Release)]),
    row(RetryingRelease,  TIMEOUT,               Done,             &[]),
    row(RetryingRelease,  Signal,                Done,             &[]),

    row(Withdrawing,      Status(204),           Withdrawn,        &[]),
    row(Withdrawing,      Refusal,               Fail,             &[Notify(Refused)]),
    row(Withdrawing,      Failure,               RetryingWithdraw, &[Start(Timer::Retry)]),
    row(Withdrawing,      TIMEOUT,               Done,             &[]),
    row(Withdrawing,      Signal,                Done,             &[]),

    row(RetryingWithdraw, RETRY,                 Withdrawing,      &[Send(Withdraw)]),
    row(RetryingWithdraw, TIMEOUT,               Done,             &[]),
    row(RetryingWithdraw, Signal,                Done,             &[]),

    row(Aborting,         Status(204),           Aborted,          &[]),
    row(Aborting,         Refusal,               Fail,             &[Notify(Refused)]),
    row(Aborting,         Failure,               RetryingAbort,    &[Start(Timer::Retry)]),
    row(Aborting,         TIMEOUT,               Done,             &[]),
    row(Aborting,         Signal,                Done,             &[]),

    row(RetryingAbort,    RETRY,                 Aborting,         &[Send(Abort)]),
    row(RetryingAbort,    TIMEOUT,               Done,             &[]),
    row(RetryingAbort,    Signal,                Done,             &[]),
];
