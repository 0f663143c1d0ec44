//! `leasehold watch`: tells of every change on a resource until it is interrupted.
//!
//! In:    a resource, its claims, and the service's event stream (`stream.rs`). Out: a line for each change of a claim.
//! Never: ends because the service is away for a while, and never misses a change: a broken stream goes on after the last
//!        event, and where the service has forgotten events, all claims of the resource are compared with what was told.

mod stream;

use std::collections::HashMap;
use std::time::Duration;

use hyper::Method;
use leasehold_client::ClaimInfo;
use leasehold_client::internals::http::{Call, Streamed};
use leasehold_client::internals::wire::FINAL;
use leasehold_client::{Api, Error};
use serde::Deserialize;
use serde_json::json;

use self::stream::{Event, Reader};
use super::connect::{ConnectArgs, block_on};
use super::output;

/// Between two signs of life of the service.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long the service may be silent before its stream counts as broken.
const SILENCE_MAX: Duration = Duration::from_secs(5);
/// How long a stream may take to begin, at all addresses together.
const OPEN_WITHIN: Duration = Duration::from_secs(15);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(500);
/// Claims that are remembered, so that none is told twice; beyond that, those that the service has forgotten go.
const KNOWN_MAX: usize = 200_000;

#[derive(clap::Args)]
pub(crate) struct WatchArgs {
    /// The resource to watch
    resource: String,
    /// Without effect: release 0.1.0 looked this often; now changes are shown as they happen
    #[arg(long, hide = true)]
    interval: Option<super::seconds::Seconds>,
    /// Print JSON, one claim a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

pub(crate) fn run(args: &WatchArgs) -> anyhow::Result<()> {
    block_on(async {
        let mut watch =
            Watch { args, api: args.connect.api()?, known: HashMap::new(), has_compared: false, after: None };
        let mut told = None;
        loop {
            let error = match watch.follow(&mut told).await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            // A right that is missing does not come back by itself.
            if matches!(error, Error::Refused { status: 400..=403, .. }) {
                return Err(error.into());
            }
            if told.as_ref() != Some(&error) {
                super::complain(&format!("{}; trying again", output::plain(&error.to_string())));
                told = Some(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
}

/// What has been told, and where the stream goes on.
struct Watch<'a> {
    args: &'a WatchArgs,
    api: Api,
    /// How far each claim had come.
    known: HashMap<String, u8>,
    has_compared: bool,
    /// The id of the last event; `None`: no stream has lasted until its first one.
    after: Option<String>,
}

/// What an event says.
#[derive(Deserialize)]
struct Change {
    kind: String,
    resource: String,
    claim: String,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    token: Option<u64>,
    #[serde(default)]
    reason: Option<String>,
    time: String,
}

/// Nothing: a stream is followed until it breaks.
enum Never {}

impl Watch<'_> {
    async fn follow(&mut self, trouble: &mut Option<Error>) -> Result<Never, Error> {
        let mut stream = self.open().await?;
        // Changes from now on are in the stream; earlier ones are in the list.
        if self.after.is_none() {
            self.compare(!self.has_compared).await?;
            self.has_compared = true;
        }
        *trouble = None;
        let mut reader = Reader::default();
        loop {
            let piece = match stream.next(SILENCE_MAX).await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Err(Error::Unreachable(format!("{} has ended the stream", stream.from))),
                Err(failure) => {
                    return Err(Error::Unreachable(format!("{}: {}", stream.from, failure.why())));
                }
            };
            for event in reader.read(&piece).map_err(Error::Unreachable)? {
                self.hear(&event).await?;
                if !event.id.is_empty() {
                    self.after = Some(event.id);
                }
            }
        }
    }

    async fn open(&self) -> Result<Streamed, Error> {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("prefix", &self.args.resource)
            .append_pair("heartbeat", &HEARTBEAT.as_secs().to_string())
            .finish();
        let mut call = Call::new(Method::GET, format!("events?{query}"), "");
        if let Some(after) = &self.after {
            call = call.header("last-event-id", after);
        }
        let stream = self.api.open(&call, OPEN_WITHIN).await?;
        if stream.status == 200 {
            return Ok(stream);
        }
        let (status, from) = (stream.status, stream.from.clone());
        let body = stream.rest(4096, SILENCE_MAX).await;
        let detail = format!("{from}: {}", leasehold_client::internals::wire::detail(&body));
        Err(Error::Refused { status, detail })
    }

    async fn hear(&mut self, event: &Event) -> Result<(), Error> {
        match event.kind.as_str() {
            "" | "renewed" => return Ok(()),
            "lagged" => return self.compare(false).await,
            _ => {}
        }
        let Ok(change) = serde_json::from_str::<Change>(&event.data) else { return Ok(()) };
        if change.resource != self.args.resource {
            return Ok(());
        }
        let status = if change.kind == "queued" { "waiting" } else { change.kind.as_str() };
        if !self.is_news(&change.claim, status) {
            return Ok(());
        }
        // The claim tells more than the event, but may have gone on meanwhile.
        let claim = self.api.get(&change.claim).await.ok().map(|claim| as_of(claim, status));
        self.tell(&claim.unwrap_or_else(|| bare(&change, status)));
        if self.known.len() > KNOWN_MAX {
            self.compare(false).await?;
        }
        Ok(())
    }

    /// Compares all claims of the resource with what was shown. The first comparison does not show claims that have ended.
    async fn compare(&mut self, is_first: bool) -> Result<(), Error> {
        let claims = self.api.list(&[("resource", &self.args.resource)], KNOWN_MAX).await?;
        let before = std::mem::take(&mut self.known);
        for claim in claims {
            let (id, stage) = (claim.id().to_string(), stage(&claim.status));
            let is_news = before.get(&id).is_none_or(|known| *known < stage);
            if is_news && !(is_first && stage == OVER) {
                self.tell(&claim);
            }
            self.known.insert(id, stage);
        }
        Ok(())
    }

    /// Whether the claim has come further than was told.
    fn is_news(&mut self, claim: &str, status: &str) -> bool {
        let stage = stage(status);
        let known = self.known.entry(claim.to_string()).or_insert(0);
        let is_news = *known < stage;
        *known = stage.max(*known);
        is_news
    }

    fn tell(&self, claim: &ClaimInfo) {
        if self.args.json {
            let json = serde_json::to_string(claim).unwrap_or_default();
            output::print(&format!("{}\n", output::json_text(&json)));
            return;
        }
        let when = claim.status_history.last().and_then(|entry| entry["timestamp"].as_str()).unwrap_or("-");
        let token = claim.token.map_or(String::new(), |token| format!("  token {token}"));
        let reason = output::reason(claim).map_or(String::new(), |reason| format!("  reason: {reason}"));
        let line =
            format!("{when}  {:<9}  {}{token}  {}{reason}", claim.status, claim.id(), output::holder(claim));
        output::print(&format!("{}\n", output::plain(&line)));
    }
}

/// A claim's life goes one way.
fn stage(status: &str) -> u8 {
    match status {
        "waiting" => 1,
        "active" => 2,
        "revoking" => 3,
        _ => OVER,
    }
}

const OVER: u8 = 4;

/// The claim as it was when it came to this status.
fn as_of(mut claim: ClaimInfo, status: &str) -> ClaimInfo {
    if claim.status != status {
        if let Some(at) = claim.status_history.iter().position(|entry| entry["status"] == status) {
            claim.status_history.truncate(at + 1);
        }
        if !FINAL.contains(&status) {
            claim.reason = None;
        }
        claim.status = status.into();
    }
    claim
}

/// What the event alone tells of the claim.
fn bare(change: &Change, status: &str) -> ClaimInfo {
    let mut claim = ClaimInfo::default();
    claim.url.clone_from(&change.claim);
    claim.resource.clone_from(&change.resource);
    claim.status = status.into();
    claim.status_history = vec![json!({ "status": status, "timestamp": change.time })];
    claim.owner.clone_from(&change.owner);
    claim.token = change.token;
    claim.reason.clone_from(&change.reason);
    claim
}
