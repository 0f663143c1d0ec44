//! Outcomes, events and claims -> lines of a script.
//!
//! In:    what the table gave back. Out: its own one-line `Display`, and what that leaves out.
//! Never: prints more than a dozen lines of a kind for one entry: those are counted by their first word.

use leasehold_core::{Applied, Event, EventKind, Outcome, Rejection, Status, Table, View};

/// So many outcomes or events of one entry are printed one by one.
const LINES_MAX: usize = 12;

/// The lines for one entry: its outcomes, then its events, indented.
pub(crate) fn applied(applied: &Applied) -> Vec<String> {
    let outcomes = counted(applied.outcomes.iter().map(outcome).collect());
    let events = counted(applied.events.iter().map(event).collect());
    outcomes.into_iter().chain(events.into_iter().map(|line| format!("  {line}"))).collect()
}

fn counted(lines: Vec<String>) -> Vec<String> {
    if lines.len() <= LINES_MAX {
        return lines;
    }
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for line in &lines {
        let word = line.split([' ', ':']).next().unwrap_or_default();
        match kinds.iter_mut().find(|(known, _)| *known == word) {
            Some((_, count)) => *count += 1,
            None => kinds.push((word, 1)),
        }
    }
    kinds.into_iter().map(|(word, count)| format!("{count} x {word}")).collect()
}

fn outcome(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Granted(view)
        | Outcome::Queued(view)
        | Outcome::Existing(view)
        | Outcome::Active(view)
        | Outcome::Renewed(view)
        | Outcome::Finished(view)
        | Outcome::Revoking(view) => format!("{outcome}{}", until(view)),
        Outcome::LockedAll(views) if views.is_empty() => outcome.to_string(),
        Outcome::LockedAll(views) => {
            let views: Vec<String> = views.iter().map(brief).collect();
            format!("{outcome}: {}", views.join(", "))
        }
        Outcome::LockedNone { rejection, .. } | Outcome::Rejected(rejection) => {
            format!("{outcome} (code {}{})", rejection.code(), cause(rejection))
        }
        Outcome::Revoked { .. } | Outcome::Done => outcome.to_string(),
    }
}

/// The claim that a rejection shows.
fn cause(rejection: &Rejection) -> String {
    match rejection {
        Rejection::Busy(view)
        | Rejection::Waiting(view)
        | Rejection::NotHeld(_, Some(view))
        | Rejection::Final(view)
        | Rejection::NotOwner(view)
        | Rejection::Revoking(view)
        | Rejection::NotAlone(view)
        | Rejection::Blocked { by: view, .. }
        | Rejection::VersionMismatch(view) => format!(": {}", brief(view)),
        Rejection::KeyReused(id) => format!(": {id}"),
        _ => String::new(),
    }
}

fn brief(view: &View) -> String {
    format!("{view}{}", until(view))
}

fn until(view: &View) -> String {
    view.claim.deadline_us().map_or(String::new(), |deadline_us| format!(" until={}", time(deadline_us)))
}

fn event(event: &Event) -> String {
    match event.kind {
        EventKind::Activated { waited_us } if waited_us > 0 => format!("{event} waited={}", time(waited_us)),
        EventKind::Ended { held_us, .. } if event.token > 0 => format!("{event} held={}", time(held_us)),
        _ => event.to_string(),
    }
}

/// Everything about a claim.
pub(crate) fn claim(view: &View) -> String {
    let claim = &view.claim;
    let mut words = vec![claim.status.to_string(), format!("on {}", claim.resource)];
    let mut put = |name: &str, value: Option<String>| {
        words.extend(value.map(|value| format!("{name}={value}")));
    };
    put("owner", Some(claim.owner.to_string()));
    put("ttl", claim.ttl_us().map(time));
    put("position", view.position.map(|position| position.to_string()));
    put("until", claim.deadline_us().map(time));
    put("token", view.token().map(|token| token.to_string()));
    put("version", Some(claim.version.to_string()));
    put("created", Some(wall(claim.created_us, claim.created_wall_us)));
    put("waited", Some(time(claim.waited_us(view.now_us))));
    put("activated", (claim.token > 0).then(|| wall(claim.activated_us, claim.activated_wall_us)));
    put("held", claim.held_us(view.now_us).map(time));
    put("renewals", (claim.renewals > 0).then(|| claim.renewals.to_string()));
    put("renewed-wall", (claim.renewals > 0).then(|| time(claim.renewed_wall_us)));
    put("unpicked", claim.unpicked.then(|| "yes".into()));
    let polls = claim.live.as_ref().and_then(|live| live.polls);
    put("asked", polls.map(|polls| time(polls.last_us)));
    put("longest-pause", polls.map(|polls| time(polls.longest_us)));
    let data = claim.data.as_ref();
    let text = |bytes: &[u8]| match bytes.len() {
        0..100 => String::from_utf8_lossy(bytes).into_owned(),
        len => format!("{len} bytes"),
    };
    put("revoking", claim.is_revoking().then(|| "yes".into()));
    put("waiters", (view.waiters > 0).then(|| view.waiters.to_string()));
    put("data", data.map(|data| format!("{:?}:{}", data.format, text(&data.bytes))));
    put("key", claim.idempotency.as_ref().map(|known| format!("{}/{}", known.key, known.fingerprint)));
    put("ended", claim.end.as_ref().map(|end| wall(end.ended_us, end.ended_wall_us)));
    put("reason", claim.reason().map(|reason| format!("{reason:?}")));
    put("session", view.session().map(ToString::to_string));
    words.extend(view.items().iter().map(ToString::to_string));
    words.join(" ")
}

/// The counters of a table.
pub(crate) fn table(table: &Table) -> String {
    let counts: String = Status::ALL
        .into_iter()
        .filter(|status| table.count(*status) > 0)
        .map(|status| format!(" {status}={}", table.count(status)))
        .collect();
    let (clock, token) = (time(table.clock().now_us), table.last_token());
    let earliest = table.earliest_deadline_us().map_or("never".into(), time);
    let unchecked = match table.unchecked_waits() {
        0 => String::new(),
        waits => format!(" unchecked={waits}"),
    };
    let resources = table.resource_count();
    format!("clock={clock} token={token} resources={resources} earliest={earliest}{counts}{unchecked}")
}

/// What is used of the byte budgets.
pub(crate) fn bytes(table: &Table) -> String {
    let (live, finished) = table.bytes_used();
    format!("live: {live}; finished: {finished}")
}

/// An instant, with the wall clock where it differs.
fn wall(now_us: u64, wall_us: u64) -> String {
    if now_us == wall_us { time(now_us) } else { format!("{}(wall {})", time(now_us), time(wall_us)) }
}

fn time(us: u64) -> String {
    match us {
        0 => "0s".into(),
        us if us % 1_000_000 == 0 => format!("{}s", us / 1_000_000),
        us if us % 1_000 == 0 => format!("{}ms", us / 1_000),
        us => format!("{us}us"),
    }
}
