//! `GET /v1/events`: what happens, as server-sent events, while it happens.
//!
//! In:    `Last-Event-ID` (or `after=`, or `last=`), `prefix=`, `kind=`, `heartbeat=`, `who=`. Out: one event a change, with an id that is
//!        the same on every node; a comment now and then, so that proxies see life.
//! Never: holds up the table: a reader that can't keep up is told `lagged` and goes on with what is left.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use leasehold_core::{Event, EventKind, Mode, Status};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::access::Caller;
use crate::api::dashboard::Who;
use crate::app::App;
use crate::message::body::{Piece, ResponseBody};
use crate::message::connection::Connection;
use crate::message::connection::Full;
use crate::message::headers::Headers;
use crate::message::problem::problem;
use crate::message::query::parameters;
use crate::message::request::Request;
use crate::message::time::rfc3339;
use crate::message::{Response, json, typed};
use crate::observe::hub::EventPosition;

/// Seconds between signs of life, unless asked for others: below the idle timeouts of common proxies.
const HEARTBEAT_DEFAULT: f64 = 15.0;
/// Events in one piece ...
const PIECE_LEN: usize = 256;
/// ... and about how many bytes: what a reader that does not read keeps of the service's memory.
const PIECE_BYTES: usize = 32 << 10;
/// Between two pieces: a busy table wakes a stream a hundred times a second, not ten thousand times.
const PACE: Duration = Duration::from_millis(10);

/// The newest events that a stream can begin with.
const LAST_MAX: usize = 1000;

/// The kinds there are, as `kind=` and the `event:` field name them.
pub const KINDS: [&str; 9] =
    ["queued", "active", "renewed", "revoking", "aborted", "expired", "released", "revoked", "withdrawn"];

/// What a reader wants.
#[derive(Debug, PartialEq)]
struct Wanted {
    prefix: String,
    /// Empty: all.
    kinds: Vec<&'static str>,
    heartbeat: Duration,
    /// Where to go on; `None`: with what comes next.
    after: Option<EventPosition>,
    /// Unless that is said: begin with this many of the newest.
    last: usize,
    /// Whether events say what their claims tell of host, user, process and command.
    who: bool,
}

/// The word for what happened.
pub fn kind_of(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Queued => "queued",
        EventKind::Activated { .. } => Status::Active.as_str(),
        EventKind::Renewed => "renewed",
        EventKind::Revoking => "revoking",
        EventKind::Ended { status, .. } => status.as_str(),
    }
}

/// Opens a stream.
pub fn answer(
    app: &Arc<App>,
    connection: &Connection,
    request: &Request,
    caller: &Caller,
) -> Result<Response, Response> {
    let wanted = parse(request.uri().query(), request.headers())
        .map_err(|mistakes| json(StatusCode::BAD_REQUEST, format!("{}\n", serde_json::json!(mistakes))))?;
    let hub = &app.observer.hub;
    let owner = caller.owner(connection, request.headers());
    let place = app.streams.take(&owner).map_err(too_many_streams)?;
    let membership = hub.join();
    let (pieces, body) = mpsc::channel(1);
    let mut stopping = app.stopping.clone();
    let start = wanted.after.unwrap_or_else(|| hub.place_before(wanted.last, |event| wanted.picks(event)));
    let stream = Stream { app: app.clone(), place: start, wanted, caller: caller.clone() };
    let caller = caller.clone();
    tokio::spawn(async move {
        let _counted = (place, membership);
        tokio::select! {
            () = stream.run(&pieces) => {}
            () = pieces.closed() => {}
            _ = caller.superseded() => drop(pieces.try_send(Piece::Last(Bytes::new()))),
            _ = stopping.wait_for(|stopping| *stopping) => drop(pieces.try_send(Piece::Last(Bytes::new()))),
        }
    });
    let mut response = typed(StatusCode::OK, "text/event-stream", Bytes::new());
    *response.body_mut() = ResponseBody::Stream(Box::new(body.into()));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // nginx gathers answers unless told not to.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

fn too_many_streams(full: Full) -> Response {
    let whose = if full == Full::Client { " of this client" } else { "" };
    let detail = format!("too many event streams{whose} are open already: close some, or ask another node");
    let mut response = problem(StatusCode::SERVICE_UNAVAILABLE, "too-many-streams", &detail);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

fn parse(query: Option<&str>, headers: &Headers) -> Result<Wanted, BTreeMap<String, String>> {
    let heartbeat = Duration::from_secs_f64(HEARTBEAT_DEFAULT);
    let (prefix, kinds) = (String::new(), Vec::new());
    let mut wanted = Wanted { prefix, kinds, heartbeat, after: None, last: 0, who: false };
    let (parameters, mut mistakes) = parameters(query);
    for (name, value) in parameters {
        if let Err(mistake) = set(&mut wanted, &name, &value) {
            mistakes.insert(name.into_owned(), mistake);
        }
    }
    // A browser that reconnects repeats the query; where it really was stands in the header.
    if let Some(id) = headers.get("last-event-id").filter(|id| !id.as_bytes().is_empty()) {
        match id.to_str().and_then(|id| id.parse().ok()) {
            Some(place) => wanted.after = Some(place),
            None => drop(mistakes.insert("Last-Event-ID".into(), BAD_PLACE.into())),
        }
    }
    if mistakes.is_empty() { Ok(wanted) } else { Err(mistakes) }
}

const BAD_PLACE: &str = "must be the id of an event, such as 17.0";

fn set(wanted: &mut Wanted, name: &str, value: &str) -> Result<(), String> {
    match name {
        "prefix" => wanted.prefix = value.to_string(),
        "kind" => {
            for name in value.split(',').filter(|name| !name.is_empty()) {
                let known = KINDS.into_iter().find(|kind| *kind == name);
                wanted.kinds.push(known.ok_or_else(|| format!("must be some of {}", KINDS.join(",")))?);
            }
        }
        "heartbeat" => {
            let seconds = value.parse().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
            let seconds = seconds.ok_or("must be a number of seconds from 0.1 to 60")?;
            wanted.heartbeat = Duration::from_secs_f64(seconds);
        }
        "after" => wanted.after = Some(value.parse().map_err(|_| BAD_PLACE)?),
        "last" => {
            let last = value.parse().ok().filter(|last| *last <= LAST_MAX);
            wanted.last = last.ok_or_else(|| format!("must be a whole number from 0 to {LAST_MAX}"))?;
        }
        "who" => wanted.who = value.parse().map_err(|_| "must be true or false")?,
        _ => return Err("unknown parameter; there are prefix, kind, heartbeat, after, last, who".into()),
    }
    Ok(())
}

impl Wanted {
    fn picks(&self, event: &Event) -> bool {
        event.resource.starts_with(&self.prefix)
            && (self.kinds.is_empty() || self.kinds.contains(&kind_of(event.kind)))
    }
}

struct Stream {
    app: Arc<App>,
    place: EventPosition,
    wanted: Wanted,
    /// Who reads, with the rights they had when they came.
    caller: Caller,
}

impl Stream {
    /// Sends until the reader is gone.
    async fn run(mut self, pieces: &mpsc::Sender<Piece>) {
        let mut piece = String::from("retry: 1000\n: these are the events of Leasehold\n\n");
        let mut silent_since = Instant::now();
        loop {
            let more = self.read(&mut piece, silent_since);
            if !piece.is_empty() {
                if pieces.send(Piece::More(std::mem::take(&mut piece).into())).await.is_err() {
                    return;
                }
                silent_since = Instant::now();
                tokio::time::sleep(PACE).await;
            }
            if !more {
                let heartbeat = tokio::time::sleep_until(silent_since + self.wanted.heartbeat);
                tokio::select! {
                    () = self.app.observer.hub.rung(self.place) => {}
                    () = heartbeat => {}
                }
            }
        }
    }

    /// Writes what there is; tells whether there is more.
    fn read(&mut self, piece: &mut String, silent_since: Instant) -> bool {
        let found = self.app.observer.hub.after(self.place, PIECE_LEN);
        let mut more = found.events.len() == PIECE_LEN;
        let silent = silent_since.elapsed() >= self.wanted.heartbeat;
        if let Some(place) = found.lagged {
            self.place = place;
            lagged(piece, place, "events were missed: this reader was too slow, or away for too long");
        } else if self.place.index > found.newest.index && silent {
            // A follower may be a moment behind; a new data directory never catches up.
            self.place = found.newest;
            lagged(piece, self.place, "that id is unknown: the log of this service ends before it");
        }
        for (place, event) in &found.events {
            if piece.len() >= PIECE_BYTES {
                more = true;
                break;
            }
            self.place = *place;
            if self.wants(*place, event) {
                self.write(piece, *place, event);
            }
        }
        if !more {
            self.place = self.place.max(found.newest);
        }
        if piece.is_empty() && silent {
            // With an id: who filters much goes on from here, not from its last event.
            let _ = write!(piece, ": heartbeat\nid: {}\n\n", self.place);
        }
        more
    }

    fn wants(&self, place: EventPosition, event: &Event) -> bool {
        self.wanted.picks(event)
            && self.caller.may_see(&event.resource, &event.owner)
            && (!self.caller.is_checked() || self.may_see_all(place, event))
    }

    /// Whether this reader may see every item of the claim. Of a claim that was forgotten, the events beside this one tell them;
    /// what nobody can tell any more is not shown.
    fn may_see_all(&self, place: EventPosition, event: &Event) -> bool {
        let known = self
            .app
            .engine
            .read(|table, _| table.whose(event.claim).map(|claim| self.caller.may_see_all(&claim)));
        known.unwrap_or_else(|| {
            let items = self.app.observer.hub.items_at(place);
            items.is_some_and(|items| items.iter().all(|item| self.caller.may_see(item, &event.owner)))
        })
    }

    /// An event, with what the claim tells of its maker, if this reader asked for it, and of its slots, while it is known.
    fn write(&self, piece: &mut String, place: EventPosition, event: &Event) {
        let has_slots = matches!(event.mode, Mode::Slots { .. }) && event.token > 0;
        let view = (self.wanted.who || has_slots)
            .then(|| self.app.engine.read(|table, now_us| table.claim_view(event.claim, now_us)))
            .flatten();
        let item = view.as_ref().and_then(|view| view.items().get(usize::from(event.item)));
        let slots = item.map(|item| &*item.slots).filter(|slots| has_slots && !slots.is_empty());
        let who = view.as_ref().filter(|_| self.wanted.who).and_then(|view| Who::of(&view.claim));
        write_event(piece, place, event, slots, who);
    }
}

fn lagged(piece: &mut String, place: EventPosition, detail: &str) {
    let data = serde_json::json!({ "id": place.to_string(), "kind": "lagged", "detail": detail });
    let _ = write!(piece, "id: {place}\nevent: lagged\ndata: {data}\n\n");
}

fn write_event(
    piece: &mut String,
    place: EventPosition,
    event: &Event,
    slots: Option<&[u16]>,
    who: Option<Who>,
) {
    let kind = kind_of(event.kind);
    let _ = write!(
        piece,
        "id: {place}\nevent: {kind}\ndata: {{\"id\": \"{place}\", \"kind\": \"{kind}\", \"resource\": {}, \"claim\": \
         \"{}\", \"owner\": {}, \"token\": ",
        quoted(&event.resource),
        event.claim,
        quoted(&event.owner)
    );
    let _ = match event.token {
        0 => write!(piece, "null"),
        token => write!(piece, "{token}"),
    };
    let _ = write!(piece, ", \"mode\": \"{}\"", event.mode.as_str());
    if let Mode::Slots { take, of } = event.mode {
        let _ = write!(piece, ", \"take\": {take}, \"of\": {of}");
    }
    if let Some(slots) = slots {
        let _ = write!(piece, ", \"slots\": {slots:?}");
    }
    let _ = match event.kind {
        EventKind::Activated { waited_us } => write!(piece, ", \"waited\": {:?}", waited_us as f64 / 1e6),
        EventKind::Ended { held_us, .. } => write!(piece, ", \"held\": {:?}", held_us as f64 / 1e6),
        _ => Ok(()),
    };
    if let Some(reason) = &event.reason {
        let _ = write!(piece, ", \"reason\": {}", quoted(reason));
    }
    if let Some(who) = who {
        let _ = write!(piece, ", \"who\": {}", who.to_json());
    }
    let _ = write!(piece, ", \"time\": \"{}\"}}\n\n", rfc3339(event.stamp.wall_us));
}

/// As JSON: without line breaks, whatever the name has in it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mistake_is_named() {
        let headers = Headers::from_iter([("Last-Event-ID", "x")]);
        let mistakes = parse(Some("kind=active,lost&heartbeat=0&color=red&after=q"), &headers).unwrap_err();
        assert_eq!(
            mistakes.keys().collect::<Vec<_>>(),
            ["Last-Event-ID", "after", "color", "heartbeat", "kind"]
        );
    }

    #[test]
    fn the_header_goes_before_the_query() {
        let headers = Headers::from_iter([("Last-Event-ID", "9.2")]);
        let wanted = parse(Some("after=1.0&prefix=db/&kind=active,expired"), &headers).unwrap();
        assert_eq!(wanted.after, Some(EventPosition { index: 9, n: 2 }));
        assert_eq!((wanted.prefix.as_str(), wanted.kinds), ("db/", vec!["active", "expired"]));
    }
}
