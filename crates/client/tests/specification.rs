//! The claim machine is the specification's, row for row; and docs/claim-machine.md is made from it.
//!
//! In:    the rows of the specification, written down here a second time, from the document and not from the code.
//! Out:   a difference, if there is one. `UPDATE_DOCS=1` writes the page anew.

#![allow(clippy::unwrap_used, reason = "a test that can't go on should say so and stop")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use leasehold_client::internals::machine::TRANSITIONS;
use leasehold_client::internals::machine::{Action, Condition, Event, Request, State, Timer, step};

/// source > destination > condition > actions, in the order of the document, with its slips settled:
/// (1) Activating, on a signal, goes to Aborting; (2) Registering, on 201, goes to active, and therefore also does what
/// every acquisition does; (3) aborted, released and withdrawn are final states; (4) 408 and 429 are retried like a 5xx.
const SPECIFICATION: &str = "
new > Registering > - > POST, +timeout
Aborting > aborted > 204 >
Aborting > done > signal >
Aborting > done > timeout >
Aborting > fail > 4xx > terminate
Aborting > retrying abort > 5xx, 408, 429 > +retry
Activating > Aborting > signal > PATCH aborted
Activating > Withdrawing > timeout > PATCH withdrawn
Activating > active > 200 > +renew, -timeout, acquired
Activating > fail > 4xx > terminate
Activating > retrying activate > 5xx, 408, 429 > +retry
Activating > waiting > 409 > +activate
Registering > done > signal > -timeout
Registering > done > timeout > timed out
Registering > fail > 4xx except 404 > terminate
Registering > retrying register > 5xx, 404, 408, 429 > +retry
Registering > active > 201 > +renew, -timeout, acquired
Registering > waiting > 202 > +activate
Releasing > done > signal >
Releasing > done > timeout >
Releasing > fail > 4xx > terminate
Releasing > released > 204 > released
Releasing > retrying release > 5xx, 408, 429 > +retry
Renewing > Aborting > signal > PATCH aborted
Renewing > Releasing > release > PATCH released
Renewing > active > 200 > +renew
Renewing > fail > 4xx > terminate
Renewing > retrying renew > 5xx, 408, 429 > +retry
Withdrawing > done > signal >
Withdrawing > done > timeout >
Withdrawing > fail > 4xx > terminate
Withdrawing > retrying withdraw > 5xx, 408, 429 > +retry
Withdrawing > withdrawn > 204 >
active > Aborting > signal > PATCH aborted, -renew
active > Releasing > release > PATCH released, -renew
active > Renewing > renew > PATCH ttl
retrying abort > Aborting > retry > PATCH aborted
retrying abort > done > signal >
retrying abort > done > timeout >
retrying activate > Aborting > signal > PATCH aborted, -retry
retrying activate > Activating > retry > PATCH active
retrying activate > Withdrawing > timeout > PATCH withdrawn, -retry
retrying register > Registering > retry > POST
retrying register > done > signal > -timeout
retrying register > done > timeout > timed out
retrying release > Releasing > retry > PATCH released
retrying release > done > signal >
retrying release > done > timeout >
retrying renew > Aborting > signal > PATCH aborted, -retry
retrying renew > Releasing > release > PATCH released, -retry
retrying renew > Renewing > retry > PATCH ttl
retrying withdraw > Withdrawing > retry > PATCH withdrawn
retrying withdraw > done > signal >
retrying withdraw > done > timeout >
waiting > Aborting > signal > PATCH aborted, -activate
waiting > Activating > activate > PATCH active
waiting > Withdrawing > timeout > PATCH withdrawn, -activate
";

/// The timers that the document's table of states gives each state. The ending states' timeout timer is not in that
/// table but in the rows: theirs bounds the repetition of the last request.
const TIMERS: &[(&str, &str)] = &[
    ("Registering", "timeout"),
    ("retrying register", "retry timeout"),
    ("waiting", "activate timeout"),
    ("Activating", "timeout"),
    ("retrying activate", "retry timeout"),
    ("active", "renew"),
    ("Renewing", ""),
    ("retrying renew", "retry"),
    ("Releasing", "timeout"),
    ("retrying release", "retry timeout"),
    ("Withdrawing", "timeout"),
    ("retrying withdraw", "retry timeout"),
    ("Aborting", "timeout"),
    ("retrying abort", "retry timeout"),
];

fn in_short(action: &Action) -> String {
    match action.to_string().as_str() {
        "send POST" => "POST".into(),
        "send PATCH ttl" => "PATCH ttl".into(),
        "tell: refused" => "terminate".into(),
        text => {
            let text =
                text.replace("send PATCH status=", "PATCH ").replace("tell: ", "").replace(" timer", "");
            text.replace("start ", "+").replace("cancel ", "-")
        }
    }
}

fn condition_in_short(condition: Condition) -> String {
    let text = condition.to_string();
    match text.as_str() {
        "client releases" => "release".into(),
        _ => text.replace("response ", "").replace(" timer", ""),
    }
}

#[test]
fn the_table_is_the_specifications_row_for_row() {
    let ours: BTreeSet<String> = TRANSITIONS
        .iter()
        .map(|row| {
            let actions: Vec<String> = row.then.iter().map(in_short).collect();
            let line = format!(
                "{} > {} > {} > {}",
                row.from,
                row.to,
                condition_in_short(row.on),
                actions.join(", ")
            );
            line.trim().to_string()
        })
        .collect();
    let lines = SPECIFICATION.lines().map(str::trim).filter(|line| !line.is_empty());
    let theirs: BTreeSet<String> = lines.clone().map(String::from).collect();
    assert_eq!(theirs.len(), lines.count(), "the specification says something twice");
    assert_eq!(ours.len(), TRANSITIONS.len(), "the table says something twice");
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let invented: Vec<_> = ours.difference(&theirs).collect();
    assert!(missing.is_empty() && invented.is_empty(), "missing: {missing:#?}\ninvented: {invented:#?}");
}

/// What can happen to a claim in this state: a response if it waits for one, a timer if it has it, a signal always.
fn possible(state: State) -> BTreeMap<String, Event> {
    let mut events = BTreeMap::new();
    if state == State::New {
        return BTreeMap::from([("start".into(), Event::Start)]);
    }
    if state.is_final() {
        return events;
    }
    events.insert("signal".into(), Event::Signal);
    if state.request().is_some() {
        for status in 100..=599 {
            events.insert(format!("response {status}"), Event::Response(status));
        }
    }
    if state.is_holding() {
        events.insert("release".into(), Event::ReleaseRequested);
    }
    let timers = TIMERS.iter().find(|(name, _)| *name == state.to_string()).unwrap().1;
    for timer in [Timer::Timeout, Timer::Retry, Timer::Renew, Timer::Activate] {
        if timers.split(' ').any(|name| name == timer.to_string()) {
            events.insert(format!("{timer}"), Event::Fired(timer));
        }
    }
    events
}

fn every_event() -> Vec<Event> {
    let timers = [Timer::Timeout, Timer::Retry, Timer::Renew, Timer::Activate].map(Event::Fired);
    let responses = (100..=599).map(Event::Response);
    let rest = [Event::Start, Event::Signal, Event::ReleaseRequested];
    timers.into_iter().chain(responses).chain(rest).collect()
}

#[test]
fn no_pair_is_missing_and_none_is_dead() {
    let mut used = BTreeSet::new();
    for state in State::ALL {
        let possible = possible(state);
        for (name, event) in &possible {
            let row = step(state, *event).unwrap_or_else(|| panic!("{state}: {name} has no row"));
            used.insert(TRANSITIONS.iter().position(|known| known == row).unwrap());
        }
        for event in every_event() {
            let is_possible = possible.values().any(|known| *known == event);
            assert_eq!(step(state, event).is_some(), is_possible, "{state}: {event:?}");
        }
    }
    let dead: Vec<_> =
        TRANSITIONS.iter().enumerate().filter(|(at, _)| !used.contains(at)).map(|(_, row)| row).collect();
    assert!(dead.is_empty(), "rows that nothing leads to: {dead:#?}");
}

#[test]
fn every_state_is_reached_and_every_claim_can_end() {
    let mut reached = BTreeSet::from([State::New]);
    for _ in State::ALL {
        reached.extend(
            TRANSITIONS
                .iter()
                .filter(|row| reached.contains(&row.from))
                .map(|row| row.to)
                .collect::<Vec<_>>(),
        );
    }
    assert_eq!(reached.len(), State::ALL.len());
    let mut ends: BTreeSet<State> = State::ALL.into_iter().filter(|state| state.is_final()).collect();
    for _ in State::ALL {
        ends.extend(
            TRANSITIONS.iter().filter(|row| ends.contains(&row.to)).map(|row| row.from).collect::<Vec<_>>(),
        );
    }
    assert_eq!(ends.len(), State::ALL.len());
    assert_eq!(TRANSITIONS.iter().filter(|row| row.from.is_final()).count(), 0);
}

#[test]
fn a_named_status_goes_before_its_class_and_nonsense_counts_as_unknown() {
    assert_eq!(step(State::Activating, Event::Response(409)).unwrap().to, State::Waiting);
    assert_eq!(step(State::Activating, Event::Response(410)).unwrap().to, State::Fail);
    assert_eq!(step(State::Registering, Event::Response(404)).unwrap().to, State::RetryingRegister);
    assert_eq!(step(State::Registering, Event::Response(302)).unwrap().to, State::RetryingRegister);
    assert_eq!(step(State::Releasing, Event::Response(200)).unwrap().to, State::RetryingRelease);
    assert!(step(State::Waiting, Event::Response(200)).is_none());
}

#[test]
fn too_many_and_too_slow_are_never_the_end_of_a_claim() {
    for state in State::ALL.into_iter().filter(|state| state.request().is_some()) {
        for status in [408, 429] {
            let to = step(state, Event::Response(status)).unwrap().to;
            assert_eq!(to.retries(), state.request(), "{state}: {status}");
        }
    }
}

#[test]
fn a_request_is_sent_exactly_where_a_response_is_awaited() {
    for row in TRANSITIONS {
        let sent: Vec<Request> = row
            .then
            .iter()
            .filter_map(|action| if let Action::Send(request) = action { Some(*request) } else { None })
            .collect();
        assert_eq!(sent, row.to.request().into_iter().collect::<Vec<_>>(), "{row:?}");
        if let Some(request) = row.to.retries() {
            assert_eq!(row.from.request(), Some(request), "{row:?}");
            assert_eq!(row.then, [Action::Start(Timer::Retry)], "{row:?}");
        }
    }
}

fn page() -> String {
    let mut page = String::from(
        "# The claim machine\n\
         \n\
         For authors of clients: the states that a claim goes through in its client, and what moves it from one to the next. The requests are those\n\
         of the [claims API](claims.md). Users of a client find what they need in [client.md](client.md).\n\
         \n\
         How to read the transitions:\n\
         \n\
         - In the state `from`, when `on` happens, the client does `then` and is in the state `to`. In states with a capital letter, a request is on its way.\n\
         - A row that names a status goes before one that names its class: 404 before 4xx.\n\
         - No answer, or one that makes no sense in its place, counts as a 5xx: nobody knows what became of the request.\n\
         - A failed request is repeated after the `Retry-After` of its answer, or after growing pauses if there is none.\n\
         - A 4xx that says that the claim has already ended, in the way that the request wanted, counts as the 204 whose answer was lost.\n\
         - The timeout timer bounds how long the claim waits. In the ending states (`Releasing`, `Withdrawing`, `Aborting`) it bounds how long the\n\
         \x20\x20last request is repeated.\n\
         \n\
         This page is made from `crates/client/src/transitions.rs`; `UPDATE_DOCS=1 cargo test -p leasehold-client --test specification` writes it anew.\n\n\
         ## States\n\n\
         | state | meaning |\n|---|---|\n",
    );
    for state in State::ALL {
        writeln!(page, "| {state} | {} |", state.meaning()).unwrap();
    }
    page += "\n## Transitions\n\n| from | on | to | then |\n|---|---|---|---|\n";
    for row in TRANSITIONS {
        let actions: Vec<String> = row.then.iter().map(ToString::to_string).collect();
        writeln!(page, "| {} | {} | {} | {} |", row.from, row.on, row.to, actions.join(", ")).unwrap();
    }
    page += "\n## Diagram\n\n```mermaid\nstateDiagram-v2\n    [*] --> new\n";
    let name = |state: State| state.to_string().replace(' ', "_");
    let mut arrows: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for row in TRANSITIONS {
        let label = row.on.to_string().replace("response ", "").replace('-', "start");
        arrows.entry((name(row.from), name(row.to))).or_default().push(label);
    }
    for ((from, to), labels) in arrows {
        writeln!(page, "    {from} --> {to} : {}", labels.join(" / ")).unwrap();
    }
    for state in State::ALL.into_iter().filter(|state| state.is_final()) {
        writeln!(page, "    {} --> [*]", name(state)).unwrap();
    }
    page += "```\n";
    page
}

#[test]
fn the_documentation_is_made_from_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/claim-machine.md");
    let page = page();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(committed, page, "docs/claim-machine.md is out of date: run this test with UPDATE_DOCS=1");
}
